"""DistributedDataParallel's buckets, and the state that `fully_shard` keeps for a module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch


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
    state = None if library is None else library._get_module_state(original)
    if library is not None and state is not None:
        library._insert_module_state(other, state)
