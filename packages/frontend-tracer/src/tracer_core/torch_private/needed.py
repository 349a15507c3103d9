"""Names that the tracer cannot do without: `releases.refusal` asks for them before it is imported.

In: nothing. Out: the names, as torch has them. The package does not import this module itself:
without one of the names, programs run natively.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["OpOverload", "OpOverloadPacket", "TensorBase", "TorchDispatchMode", "pytree"]

#: The class of C that `torch.Tensor` extends.
TensorBase: Any = torch._C.TensorBase

#: Switches grad mode, as a function that a graph may call.
set_grad_mode: Callable[[bool], None] = torch._C._set_grad_enabled
#: How many function modes, and how many dispatch modes, the caller is in.
function_modes: Callable[[], int] = torch._C._len_torch_function_stack
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

#: The dispatch keys of a tensor.
key_set: Callable[[torch.Tensor], Any] = torch._C._dispatch_keys
#: What torch.jit.trace writes to, None outside of it.
jit_tracing: Callable[[], Any] = torch._C._get_tracing_state
is_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
is_autocast_on: Callable[[], bool] = torch._C._is_any_autocast_enabled
