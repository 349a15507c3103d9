"""What several tests of the CPU compiler look at."""

from __future__ import annotations

import pytest

from inductor_backend import kernel_stages


@pytest.fixture
def texts(monkeypatch) -> list[str]:
    """The modules that are compiled."""
    actual: list[str] = []
    original = kernel_stages.load_module

    def load(text, *rest):
        actual.append(text)
        return original(text, *rest)

    monkeypatch.setattr(kernel_stages, "load_module", load)
    return actual
