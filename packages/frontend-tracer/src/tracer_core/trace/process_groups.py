"""Process groups in a trace: a group is known by its name, which is guarded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from tracer_core import torch_private
from tracer_core.graph_breaks import Break
from tracer_core.trace.guarded_calls import applied, query_call

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


@functools.cache
def _name_along(dim: int) -> Callable[[Any], str]:
    """Returns a function that gives the name of a mesh's group along a dimension."""

    def name(mesh: Any) -> str:
        return torch_private.group_name(mesh.get_group(dim))

    return name


def name_of(tracer: Tracer, group: Any) -> str:
    """Returns a process group's name, guarded. group: a ProcessGroup, its name, a DeviceMesh of one
    dimension, (mesh, dimension), or None for the default group."""
    name = ""
    if group is None:
        name = query_call(tracer, torch_private.default_group_name)
    elif isinstance(group, str):
        name = group
    elif isinstance(group, tuple) and len(group) == 2 and type(group[1]) is int:
        mesh, dim = group
        if tracer.provenance.source_of(mesh) is not None:
            name = applied(tracer, _name_along(dim), mesh)
    elif tracer.provenance.source_of(group) is not None:
        mesh_class = getattr(dist, "DeviceMesh", ())
        whole_mesh = isinstance(group, mesh_class) and group.ndim == 1
        find = _name_along(0) if whole_mesh else torch_private.group_name
        name = applied(tracer, find, group)
    if not name:
        refuse(f"a collective of a {type(group).__name__} that is no group of its own")
    return name


def refuse(reason: str) -> NoReturn:
    raise Break("processes", reason)


def rank_and_size(tracer: Tracer, name: str) -> tuple[int, int]:
    """Returns this process's rank in a group and the group's size, guarded."""
    numbers: tuple[int, int] = query_call(tracer, torch_private.group_rank_and_size, name)
    return numbers
