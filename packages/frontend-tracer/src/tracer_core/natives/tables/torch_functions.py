"""torch functions that are not tensor operators: queries, settings, and compilation status.

Tensor operators need no row: `policy.is_torch_operator` recognizes them and the recorder sees them.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.natives.arity import COUNTS
from tracer_core.natives.effects import EFFECTS, PURE, SHALLOW, breaks, declare, special
from tracer_core.natives.queries import query
from tracer_core.natives.tracing import Tracing
from tracer_core.torch_private.names import names

#: Queries of settings that are guarded as a whole (torch_private.torch_state) or never change.
declare(PURE, names("is_grad_enabled is_inference_mode_enabled get_default_dtype finfo iinfo device dtype Size"
    " are_deterministic_algorithms_enabled promote_types result_type can_cast"))  # fmt: skip
declare(PURE, names("_is_any_autocast_enabled _is_tracing _is_torch_function_mode_enabled _get_deterministic_algorithms"
    " _is_autocast_available", of="_C"))  # fmt: skip


def _declare_query(function: Any) -> None:
    if function not in EFFECTS:  # torch and torch._C share some
        COUNTS[function] = 0, 0
        special(function)(lambda tracer, args, kwargs: query(tracer, function))


#: Settings that are guarded one by one, when read.
for _query in (
    *names("get_num_threads get_num_interop_threads is_warn_always_enabled"),
    *names("_has_mkldnn _get_cudnn_allow_tf32 _get_cublas_allow_tf32 _get_warnAlways", of="_C"),
):  # fmt: skip
    if callable(_query):
        _declare_query(_query)
declare(SHALLOW, names("Size.numel _C._log_api_usage_once"))


#: A trace is no torch.jit trace.
for _function in names("_C._get_tracing_state"):
    COUNTS[_function] = 0, 0
    special(_function)(lambda tracer, args, kwargs: None)

#: These take a list, the others separate arguments.
_OF_A_LIST = names("_C._has_torch_function overrides.has_torch_function")


def _no_torch_function(function: Any) -> Any:
    """Plain tensors have no __torch_function__."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if function in _OF_A_LIST and not isinstance(args[0], (list, tuple)):
            tracer.break_graph("native_python", "_has_torch_function() of no list or tuple")
        return False if args or kwargs else function()  # raises Python's own error

    return handler


for _function in {  # torch.overrides and torch._C share them
    *_OF_A_LIST,
    *names("_has_torch_function_unary _has_torch_function_variadic", of="_C"),
    *names("has_torch_function_unary has_torch_function_variadic", of="overrides"),
}:
    if _function in _OF_A_LIST:
        COUNTS[_function] = 1, 1
    special(_function)(_no_torch_function(_function))


_STACKS = names("_C._len_torch_dispatch_stack _C._len_torch_function_stack")
COUNTS |= dict.fromkeys(_STACKS, (0, 0))


@special(*_STACKS)
def mode_count(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> int:
    """Returns 0: no trace runs under foreign modes, which every cache entry guards."""
    return 0


@special(*names("compiler.is_compiling compiler.is_dynamo_compiling"))
def is_compiling(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Returns the compilation status that libraries query; False for optimizers, whose results
    would differ."""
    asker = tracer.frames[-1]
    optimizer = asker.globals.get("__name__", "").startswith("torch.optim.")
    if optimizer and asker.code.raw.co_name != "_accelerator_graph_capture_health_check":
        return False
    return bool(tracer.is_compiling())


@special(*names("jit.is_scripting compiler.is_exporting"))
def is_something_else(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return False


breaks("side_effect_native", "torch's random number generator is seeded or read", names(
    "manual_seed seed get_rng_state set_rng_state initial_seed"))  # fmt: skip
# Its Python code passes everything but out= to __torch_function__.
breaks(
    "side_effect_native",
    "torch.chain_matmul (deprecated) may write to out= unseen",
    names("chain_matmul"),
)


@special(*names("Tensor.requires_grad_"))
def requires_grad_(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Does nothing if the tensor requires gradients already; an intermediate may become a leaf."""
    tensor, wanted = args[0], args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    if wanted is True and tensor.requires_grad:
        return tensor
    if wanted is False and not tracer.recorder.as_fake(tensor).requires_grad:
        return tensor
    if wanted is True and tracer.attribute_writes.may_require_grad(tensor):
        tracer.recorder.require_grad(tensor)
        return tensor
    return tracer.native_calls.call_torch(torch.Tensor.requires_grad_, args, kwargs)
