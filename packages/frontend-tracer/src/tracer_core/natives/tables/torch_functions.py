"""What of torch is not a tensor operator: queries, settings, and questions about compilation.

Tensor operators need no row: `policy.is_torch_operator` recognises them and the recorder sees them.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.natives.arity import COUNTS
from tracer_core.natives.effects import EFFECTS, PURE, SHALLOW, breaks, declare, query, special


def _present(owner: Any, names: str) -> list[Any]:
    return [getattr(owner, name) for name in names.split() if hasattr(owner, name)]


#: Queries of settings that are guarded as a whole (torch_private.torch_state), or that never change.
declare(PURE, _present(torch, "is_grad_enabled is_inference_mode_enabled get_default_dtype"
    " is_floating_point_dtype finfo iinfo device dtype Size"
    " are_deterministic_algorithms_enabled promote_types result_type can_cast"))  # fmt: skip
declare(PURE, _present(torch._C, "_is_any_autocast_enabled _is_tracing _is_torch_function_mode_enabled"
    " _get_deterministic_algorithms _is_autocast_available"))  # fmt: skip


def _declare_query(function: Any) -> None:
    if function not in EFFECTS:  # torch and torch._C share some
        COUNTS[function] = 0, 0
        special(function)(lambda tracer, args, kwargs: query(tracer, function))


#: Settings that are guarded one by one, when they are asked.
for _query in (
    *_present(torch, "get_num_threads get_num_interop_threads is_warn_always_enabled"),
    *_present(torch._C, "_has_mkldnn _get_cudnn_allow_tf32 _get_cublas_allow_tf32 _get_warnAlways"),
):  # fmt: skip
    if callable(_query):
        _declare_query(_query)
declare(SHALLOW, [torch.Size.numel, torch._C._log_api_usage_once])


def _answer(answer: Any, function: Any) -> Any:
    def handler(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if function is torch._C._has_torch_function and not isinstance(args[0], (list, tuple)):
            tracer.break_graph("native_python", "_has_torch_function() of no list or tuple")
        asks = answer is None or args or kwargs
        return answer if asks else function()  # raises Python's own error

    return handler


#: A trace is no torch.jit trace, and plain tensors have no __torch_function__.
for _function in {
    f
    for f in (
        *_present(torch._C, "_has_torch_function _has_torch_function_unary _has_torch_function_variadic _get_tracing_state"),
        *_present(torch.overrides, "has_torch_function has_torch_function_unary has_torch_function_variadic"),
    )
}:  # fmt: skip
    if _function in (torch._C._get_tracing_state, torch._C._has_torch_function):
        COUNTS[_function] = (0, 0) if _function is torch._C._get_tracing_state else (1, 1)
    special(_function)(_answer(None if _function is torch._C._get_tracing_state else False, _function))


COUNTS[torch._C._len_torch_dispatch_stack] = COUNTS[torch._C._len_torch_function_stack] = 0, 0


@special(torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack)
def mode_count(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> int:
    """Nothing is traced under somebody else's modes, and every segment guards that."""
    return 0


@special(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def is_compiling(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """What libraries ask to choose code that a tracer follows; an optimizer's other code has other results."""
    asker = tracer.frames[-1]
    optimizer = asker.globals.get("__name__", "").startswith("torch.optim.")
    return not optimizer or asker.code.raw.co_name == "_accelerator_graph_capture_health_check"


@special(torch.jit.is_scripting, torch.compiler.is_exporting)
def is_something_else(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return False


breaks("side_effect_native", "torch's random number generator is seeded or read", [
    torch.manual_seed, torch.seed, torch.get_rng_state, torch.set_rng_state, torch.initial_seed])  # fmt: skip
# Its own Python hands everything but out= to those who look on.
breaks("side_effect_native", "torch.chain_matmul (deprecated) may write to out= unseen", [torch.chain_matmul])


@special(torch.Tensor.requires_grad_)
def requires_grad_(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Nothing for a tensor that requires gradients already; an intermediate may become a leaf."""
    tensor, wanted = args[0], args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    if wanted is True and tensor.requires_grad:
        return tensor
    if wanted is False and not tracer.recorder.as_fake(tensor).requires_grad:
        return tensor
    if wanted is True and tracer.may_require_grad(tensor):
        tracer.recorder.require_grad(tensor)
        return tensor
    return tracer.call_torch(torch.Tensor.requires_grad_, args, kwargs)
