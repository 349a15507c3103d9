"""Weak references made by the tracer, told apart from the program's.

The tracer's own caches must not look like a weak reference through which the program could observe
an object's finalization (a graph break).
"""

from __future__ import annotations

import weakref
from typing import Any


class OwnReference(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that the tracer made."""

    __slots__ = ()


def is_watched(value: Any) -> bool:
    """Whether anything but the tracer has a weak reference to an object."""
    if weakref.getweakrefcount(value) == 0:
        return False
    return any(type(one) is not OwnReference for one in weakref.getweakrefs(value))
