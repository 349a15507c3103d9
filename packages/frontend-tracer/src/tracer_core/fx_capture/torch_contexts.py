"""Handles for contexts that torch keeps in C++ objects, while a trace is inside them.

The program stores a handle where torch's own object would be. Generated code replaces a handle that
is open at the end of a code region by torch's object, entered for real, and a closed one by None.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.fx_capture.fx_recorder import Recorder
from tracer_core.torch_private import settings
from tracer_core.torch_private.names import name

_enter_inference_mode = name("autograd.grad_mode._enter_inference_mode")
_exit_inference_mode = name("autograd.grad_mode._exit_inference_mode")


class InferenceHandle:
    """Entered inference mode (mutable). Its node keeps the mode open in the graph until `close`."""

    def __init__(self, recorder: Recorder, mode: bool) -> None:
        self._recorder, self._mode, self.is_open = recorder, mode, True
        self._context = _enter_inference_mode(mode)
        self._node = recorder.state_node(_enter_inference_mode, (mode,))
        recorder.open_contexts.append(self)

    def close(self, for_good: bool = True) -> None:
        """Leaves the mode. for_good: the program left it; otherwise the trace ends inside it."""
        self._context.__exit__(None, None, None)
        self._recorder.state_node(_exit_inference_mode, (self._node,))
        self._recorder.open_contexts.remove(self)
        self.is_open = not for_good

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (_enter_inference_mode, (self._mode,)) if self.is_open else (type(None), ())


class VariableToken:
    """The token of ContextVar.set for a torch setting (mutable: it resets once)."""

    def __init__(self, name: str, before: Any) -> None:
        self.name, self.before, self.is_open = name, before, True

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (settings.entered, (self.name, self.before)) if self.is_open else (type(None), ())


class ProfilerHandle:
    """A profiler label (mutable)."""

    def __init__(self, name: str, note: str | None) -> None:
        self._name, self._note, self.is_open = name, note, True

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.is_open:
            return type(None), ()
        return torch.ops.profiler._record_function_enter_new, (self._name, self._note)
