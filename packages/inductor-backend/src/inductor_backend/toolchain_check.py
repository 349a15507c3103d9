"""What `compile()` checks before the first call: that there is a compiler."""

from __future__ import annotations

from typing import Any

from inductor_backend.runtime.toolchain import find_compiler


def check(options: Any, mode: str) -> None:
    """Raises BackendError naming the package to install where no C++ compiler works."""
    find_compiler()
