"""Process groups and collectives, DistributedDataParallel's buckets, and the state that `fully_shard`
keeps for a module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

#: Namespaces of the functional collectives: every rank of a group must call them in one order.
_COLLECTIVES = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"}
)


def communicates(target: Any) -> bool:
    """Returns whether a node's target is a collective, or waits for one.

    It runs exactly once, in the program's order, on every rank.

    Args:
        target: The target of a ``call_function`` node.
    """
    return getattr(target, "namespace", None) in _COLLECTIVES


def default_group() -> Any:
    """Returns the default process group, or None before ``init_process_group``."""
    return torch.distributed.GroupMember.WORLD


def group_name(group: Any) -> str:
    """Returns the name by which functional collectives know a process group; empty for what is no
    group of this process, and for a group whose collectives are being coalesced."""
    if not isinstance(group, torch.distributed.ProcessGroup):
        return ""
    world = torch.distributed.distributed_c10d._world
    if group in world.pg_coalesce_state or group not in world.pg_map:
        return ""
    return str(group.group_name)


def default_group_name() -> str:
    return group_name(default_group())


def group_named(name: str) -> Any:
    """Returns the process group of that name."""
    return torch.distributed.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def group_rank_and_size(name: str) -> tuple[int, int]:
    """Returns this process's rank in a group, and the group's size."""
    group = group_named(name)
    return group.rank(), group.size()


def rank_within(name: str, rank: int) -> int:
    """Returns the rank in a group of a process whose global rank is given."""
    return torch.distributed.get_group_rank(group_named(name), rank)


def reduction_name(op: Any) -> str:
    """Returns the name by which functional collectives know a reduction; empty if they do not."""
    import torch.distributed._functional_collectives as functional  # heavy: DTensor's mesh

    table = functional.REDUCE_OP_TO_STR
    return next((text for known, text in table.items() if known == op), "")


def active_replica() -> Any:
    """Returns the DistributedDataParallel whose forward is running, or None."""
    return torch.nn.parallel.DistributedDataParallel._active_ddp_module


def buckets_of(replica: Any, ready: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Returns DistributedDataParallel's gradient buckets once it knows the gradients' order. ready:
    parameters in that order; parameters of other modules are ignored."""
    ignored = replica.parameters_to_ignore
    named = replica.module.named_parameters()
    own = [p for name, p in named if p.requires_grad and name not in ignored]
    order = {id(p): at for at, p in enumerate(own)}
    tensors = [p for p in ready if id(p) in order]
    # keeps the order of the parameters
    if replica.find_unused_parameters and not replica.static_graph:
        tensors.sort(key=lambda p: order[id(p)])
    config = getattr(replica, "_bucket_config", None)  # torch 2.13
    limits = list(getattr(config, "per_bucket_bytes_caps", ()))
    if not limits:
        default = getattr(replica, "bucket_bytes_cap_default", False)  # before it
        first = (
            torch.distributed._DEFAULT_FIRST_BUCKET_BYTES if default else replica.bucket_bytes_cap
        )
        limits = [getattr(config, "first_bucket_bytes_cap", first), replica.bucket_bytes_cap]
    if not tensors:
        return []
    assign = torch.distributed._compute_bucket_assignment_by_size
    groups, _ = assign(tensors, limits, [False] * len(tensors))
    return [[tensors[at] for at in group] for group in groups]


def share_module_state(original: torch.nn.Module, other: torch.nn.Module) -> None:
    """Shares the state that `fully_shard` and the like key by a module's identity with another
    module."""
    library = sys.modules.get("torch.distributed._composable_state")
    if library is None or type(original).__hash__ is None:  # which has no such state
        return
    state = library._get_module_state(original)
    if state is not None:
        library._insert_module_state(other, state)
