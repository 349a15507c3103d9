"""DistributedDataParallel and fully_shard modules: their calls, with graph breaks at communication.

Polyfills of torch's calls run the inner module; the functions that they call (rows of
`native_functions/distributed.py`) run the steps before and after it eagerly. Both do what torch's
code does, in its order, including hooks and errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.nn.parallel import DistributedDataParallel

from tracer_core.torch_private.modules import FULLY_SHARD

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: Calls with packed arguments.
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


# -- DistributedDataParallel --


def replicated_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
    """DistributedDataParallel.forward"""
    inside, (inputs, kwargs) = enter_replica(self, inputs, kwargs)
    try:
        call = self.module.forward if self._delay_all_reduce_all_params else self.module
        output = call(*inputs, **kwargs)
    except BaseException:
        leave_failed_replica(inside)
        raise
    return leave_replica(self, inside, output)


def enter_replica(
    module: DistributedDataParallel, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ExitStack, Arguments]:
    """Does everything before the inner module's call: synchronizes buffers, notifies the reducer.
    The first result stays open until `leave_replica`."""
    with ExitStack() as inside:
        inside.enter_context(record_function("DistributedDataParallel.forward"))
        arguments = module._pre_forward(*inputs, **kwargs)
        if not (
            module._delay_all_reduce_all_params or getattr(module, "_use_python_reducer", False)
        ):
            inside.enter_context(module._inside_ddp_forward())
        return inside.pop_all(), arguments
    raise AssertionError("an ExitStack swallowed an exception")


def leave_replica(module: DistributedDataParallel, inside: ExitStack, output: Any) -> Any:
    """Does everything after the inner module's return."""
    with inside:
        return module._post_forward(output)


def leave_failed_replica(inside: ExitStack) -> None:
    inside.close()


# -- fully_shard --

_BACKWARD_HOOKS = ("_backward_pre_hooks", "_backward_hooks")
_FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def has_forward_hooks(module: torch.nn.Module) -> bool:
    return any(vars(module).get(name) for name in _FORWARD_HOOKS)


def has_shards(module: Any) -> bool:
    """Returns whether a module has fully_shard's hooks, and no others but ordinary forward hooks."""
    library = sys.modules.get(FULLY_SHARD)
    if library is None:
        return False
    tables = vars(module)
    hooks = [hook for name in _FORWARD_HOOKS for hook in tables.get(name, {}).values()]
    if not any(isinstance(getattr(hook, "__self__", None), library.FSDPState) for hook in hooks):
        return False
    everywhere = vars(torch.nn.modules.module)
    return not (
        any(everywhere[f"_global{name}"] for name in (*_BACKWARD_HOOKS, *_FORWARD_HOOKS))
        or any(tables.get(name) for name in (*_BACKWARD_HOOKS, "_forward_hooks_always_called"))
    )


def sharded_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Module._call_impl of a module whose only hooks run before and after its forward."""
    args, kwargs = before_sharded(self, args, kwargs)
    return after_sharded(self, args, kwargs, self.forward(*args, **kwargs))


def before_sharded(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments:
    """Runs the hooks before the forward, which unshard the parameters."""
    for hook_id, hook in tuple(module._forward_pre_hooks.items()):
        if hook_id not in module._forward_pre_hooks_with_kwargs:
            result: Any = hook(module, args)
            if result is not None:
                args = result if isinstance(result, tuple) else (result,)
            continue
        result = hook(module, args, kwargs)
        if result is None:
            continue
        if not isinstance(result, tuple) or len(result) != 2:
            raise RuntimeError(
                "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got"
                f" {result}."
            )
        args, kwargs = result
    return args, kwargs


def after_sharded(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Any:
    """Runs the hooks after the forward, which reshard the parameters."""
    for hook_id, hook in tuple(module._forward_hooks.items()):
        call: Callable[..., Any] = hook
        if hook_id in module._forward_hooks_with_kwargs:
            changed = call(module, args, kwargs, result)
        else:
            changed = call(module, args, result)
        if changed is not None:
            result = changed
    return result


def around_forward(called: Run, forward: Run) -> Run:
    """Returns what calls a compiled module with forward pre-hooks: where they are `fully_shard`'s, the
    hooks run around the compiled forward, which then has no graph breaks for them."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = args[0]
        if not has_shards(module):
            return called(args, kwargs)
        inputs, kwargs = before_sharded(module, args[1:], kwargs)
        return after_sharded(module, inputs, kwargs, forward((module, *inputs), kwargs))

    return call
