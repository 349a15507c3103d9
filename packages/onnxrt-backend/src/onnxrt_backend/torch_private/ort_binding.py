"""The calls behind ONNX Runtime's Python classes, without the work that those do in every call (a new
device object, checks for WebGPU)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def raw_device(kind: str, index: int) -> Any:
    """Returns a device as `raw_binding` takes it."""
    from onnxruntime.capi.onnxruntime_inference_collection import OrtDevice

    return OrtDevice.make(kind, index)._get_c_device()


def raw_binding(session: Any) -> tuple[Any, Callable[[], Any]]:
    """Returns (an IOBinding of a session, a function that runs the session on it). The binding's
    bind_input and bind_output take name, `raw_device`, element type, shape and address."""
    public = session.io_binding()
    raw, inner = public._iobinding, session._sess
    captures = getattr(inner, "is_webgpu_graph_capture_enabled", None)
    if captures is not None and captures():
        return raw, functools.partial(session.run_with_iobinding, public)
    return raw, functools.partial(inner.run_with_iobinding, raw, None)
