"""Limits of package files: beyond them a file counts as damaged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tests.limits.case import Watched, change
from tracer_core.errors import StoredError
from tracer_core.storage import archive  # noqa: F401  (binds the limits)

#: Limit -> (a value that the package keeps, one that it goes beyond).
LIMITS = {"MAX_PACKAGE_MEMBERS": (16, 1), "MAX_PACKAGE_TEXT_BYTES": (1 << 20, 50)}


@pytest.fixture
def package(tmp_path):
    path = tmp_path / "model.tracer"
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    tracer_core.package(model, (torch.ones(1, 3),), path)
    return path, model


@pytest.mark.parametrize("name", LIMITS)
def test_under(package, monkeypatch, name):
    path, model = package
    limit = Watched(LIMITS[name][0])
    change(monkeypatch, name, limit)
    torch.testing.assert_close(
        tracer_core.load_package(path)(torch.ones(1, 3)), model(torch.ones(1, 3))
    )
    assert limit.asked


@pytest.mark.parametrize("name", LIMITS)
def test_beyond(package, monkeypatch, name):
    path, _ = package
    change(monkeypatch, name, Watched(LIMITS[name][1]))
    with pytest.raises(StoredError, match="is damaged, or is no file"):
        tracer_core.load_package(path)
