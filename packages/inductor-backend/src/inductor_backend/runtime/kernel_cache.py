"""The store of compiled libraries and objects, which run on this kind of processor only."""

from __future__ import annotations

import functools

from inductor_backend.runtime.cpp.toolchain import processor
from tracer_core.plugin_api import Store


@functools.cache
def libraries() -> Store:
    """Returns the store of libraries and objects that run on this processor."""
    return Store("inductor-cpp", processor()[1])
