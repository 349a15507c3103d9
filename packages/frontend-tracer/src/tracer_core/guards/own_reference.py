"""Weak references of ours, told apart from the program's.

In: an object. Out: an `OwnReference`, or whether somebody else watches the object. What always
holds: what we watch for our own caches is not taken for something whose end the program sees (a
finalizer's break).
"""

from __future__ import annotations

import weakref
from typing import Any


class OwnReference(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that no program holds."""

    __slots__ = ()


def is_watched(value: Any) -> bool:
    """Whether anything but us has a weak reference to an object."""
    if weakref.getweakrefcount(value) == 0:
        return False
    return any(type(one) is not OwnReference for one in weakref.getweakrefs(value))
