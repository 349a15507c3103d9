"""Names that the tracer cannot do without; `releases.refusal` checks them before this module's
import.

The package does not import this module itself: without one of the names, programs run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode", "OpOverload", "OpOverloadPacket", "TensorBase", "pytree"]


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that torch leaves as it is: others it wraps so that their first operator imports
    torch._dynamo."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


#: The C base class of `torch.Tensor`.
TensorBase: Any = torch._C.TensorBase

#: Sets grad mode; a function that a graph may call.
set_grad_mode: Callable[[bool], None] = torch._C._set_grad_enabled
#: The numbers of active function modes and dispatch modes.
function_modes: Callable[[], int] = torch._C._len_torch_function_stack
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

#: The dispatch keys of a tensor.
key_set: Callable[[torch.Tensor], Any] = torch._C._dispatch_keys
#: The state of torch.jit.trace, None outside of it.
jit_tracing: Callable[[], Any] = torch._C._get_tracing_state
is_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
is_autocast_on: Callable[[], bool] = torch._C._is_any_autocast_enabled
#: The namespace of torch.autograd.forward_ad, whose `AD_LEVEL` is negative outside of dual levels.
forward_ad: dict[str, Any] = vars(torch.autograd.forward_ad)
AD_LEVEL = "_current_level"

#: The namespace of torch.autograd.profiler, whose `PROFILING` says whether a profiler records.
profiler_state: dict[str, Any] = vars(torch.autograd.profiler)
PROFILING = "_is_profiler_enabled"
#: A row of a profile, unseen by dispatch modes: called with a name, values and keyword values.
ProfilerRow: Any = torch._C._profiler._RecordFunctionFast


def is_emitting_nvtx() -> bool:
    """Returns whether the active profiler is ``torch.autograd.profiler.emit_nvtx``."""
    return bool(torch._C._autograd._profiler_type() == torch._C._profiler.ActiveProfilerType.NVTX)
