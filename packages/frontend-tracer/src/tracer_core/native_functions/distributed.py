"""Communication between processes: torch.distributed, DistributedDataParallel, fully_shard."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tracer_core.graph_breaks import RunEagerly
from tracer_core.native_effects import data_parallel
from tracer_core.native_effects.effects import breaks, interpreted_as, special_each
from tracer_core.torch_private.modules import FULLY_SHARD
from tracer_core.torch_private.names import names
from tracer_core.trace.guarded_calls import applied, query
from tracer_core.trace.process_groups import name_of, rank_and_size
from tracer_core.trace.tracer import Tracer

interpreted_as(
    data_parallel.replicated_forward, *names("nn.parallel.DistributedDataParallel.forward")
)


@special_each(*names("nn.modules.module.Module._call_impl"))
def module_call(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Interprets the forward of a module prepared by fully_shard; its hooks run eagerly. A module
    with hooks of `register_backward_hook` runs eagerly: they see the autograd node of its last
    operator."""
    if isinstance(args[0], torch.nn.Module) and args[0]._get_backward_hooks()[1]:
        raise RunEagerly(f"a {type(args[0]).__name__} has hooks of register_backward_hook")
    # The set of hooks is not guarded: their ids differ from block to block, and they run eagerly.
    # That there are none is guarded by what `function` reads.
    if (
        FULLY_SHARD in sys.modules
        and isinstance(args[0], torch.nn.Module)
        and data_parallel.has_forward_hooks(args[0])
        and applied(tracer, data_parallel.has_shards, args[0])
    ):
        return tracer.calls.prepare(data_parallel.sharded_call, [*args], kwargs)
    return tracer.calls.frame_of(function, [*args], kwargs)


for _function, _reason in (
    (data_parallel.enter_replica, "DistributedDataParallel begins its forward"),
    (data_parallel.leave_replica, "DistributedDataParallel ends its forward"),
    (data_parallel.leave_failed_replica, "DistributedDataParallel is left with an exception"),
    (data_parallel.before_sharded, "fully_shard gathers the parameters from all processes"),
    (data_parallel.after_sharded, "fully_shard splits the parameters again"),
):
    breaks("processes", _reason, [_function])

# They look for the autograd node that they have just made, and put hooks on it.
breaks("autograd_in_graph", "the hooks of a module's backward are set up", [
    *names("utils.hooks.BackwardHook.setup_input_hook utils.hooks.BackwardHook.setup_output_hook")
])  # fmt: skip


# -- queries about the process group --


_QUERIES = "is_available is_initialized"
_OF_GROUPS = "get_rank get_world_size"


@special_each(*(names(f"{_QUERIES} {_OF_GROUPS}", of="distributed") if dist.is_available() else ()))
def group_query(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Guards the function's answer. args, kwargs: a group, if any."""
    groups = [argument for argument in (*args, *kwargs.values()) if argument is not None]
    if not groups:
        return query(tracer, partial(function, *args, **kwargs))
    return rank_and_size(tracer, name_of(tracer, groups[0]))[function is dist.get_world_size]
