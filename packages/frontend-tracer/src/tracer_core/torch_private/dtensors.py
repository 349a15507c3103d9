"""DTensors: tensors of which each process holds a part, placed on a mesh of processes.

A DTensor consists of its local tensor and its spec: mesh, placements, global sizes and strides.
torch's dispatcher of their operators is C++ and Python that reads specs and local tensors alone,
so that it runs on fakes as it is: what it computes and sends is what the local tensors see.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from tracer_core.torch_private.names import names

_API = "torch.distributed.tensor._api"
_PLACEMENTS = "torch.distributed.tensor.placement_types"
#: What a DTensor consists of beside its spec.
LOCAL_PART = "_local_tensor"


def is_dtensor(value: Any) -> bool:
    """Returns whether a value is a DTensor; not one of a subclass."""
    module = sys.modules.get(_API)
    return module is not None and type(value) is module.DTensor


def dispatches_in_c(kind: type) -> bool:
    """Returns whether C++ code of torch dispatches the operators of a class: DTensor."""
    module = sys.modules.get(_API)
    return module is not None and kind is module.DTensor


@functools.cache
def _placement_types() -> frozenset[type]:
    module = sys.modules[_PLACEMENTS]
    names = ("Shard", "Replicate", "Partial", "_StridedShard")
    return frozenset(getattr(module, name) for name in names if hasattr(module, name))


def is_placement(kind: type) -> bool:
    """Returns whether a class is one of the placements, whose instances nothing changes."""
    return _PLACEMENTS in sys.modules and kind in _placement_types()


def spec_of(value: Any) -> Any:
    """Returns the spec of a DTensor."""
    return value._spec


def is_spec(value: Any) -> bool:
    """Returns whether a value is the spec of a DTensor."""
    module = sys.modules.get(_API)
    return module is not None and isinstance(value, module.DTensorSpec)


def dtensor_of(local: torch.Tensor, spec: Any) -> Any:
    """Returns the DTensor of a local tensor."""
    return sys.modules[_API].DTensor(local, spec, requires_grad=False)


@functools.lru_cache(maxsize=4096)
def _text_of(spec: Any) -> str:
    """Describes a spec for a guard; equal specs of all meshes of equal processes share it."""
    meta = spec.tensor_meta
    order = getattr(spec, "shard_order", None)
    sizes = (tuple(meta.shape), tuple(meta.stride), meta.dtype)
    return f"{_shape_of(spec.mesh)} {spec.placements!r} {sizes} {order!r}"


@functools.lru_cache(maxsize=256)
def _shape_of(mesh: Any) -> str:
    return f"{mesh.device_type}{mesh.mesh.tolist()}{mesh.mesh_dim_names or ''}"


def holds_state(spec: Any) -> bool:
    """Returns whether a context is a spec with a placement that keeps values between operators, as
    the one of an embedding whose rows are split does."""
    return is_spec(spec) and not all(is_placement(type(placement)) for placement in spec.placements)


#: Operators whose placements may keep a mask. The dispatcher remembers placements by arguments, so
#: that a fake mask would be there in the program's next call, and the program's in a trace.
MASKING = frozenset(
    names("embedding.default embedding_dense_backward.default gather.default", of="ops.aten")
)


def forget_shardings() -> None:
    """Empties the dispatcher's memory of which placements follow from which arguments."""
    propagator = sys.modules[_API].DTensor._op_dispatcher.sharding_propagator
    propagator.propagate_op_sharding.cache_clear()
    in_c: Any = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)  # since 2.10
    if in_c is not None:
        in_c()


def dispatcher_settings() -> tuple[bool, int]:
    """Returns what programs set of the dispatcher: whether plain tensors count as replicated, and
    how many operators have handlers of their own."""
    dispatcher = sys.modules[_API].DTensor._op_dispatcher
    handlers = dispatcher._custom_op_handlers
    return bool(dispatcher._allow_implicit_replication), len(handlers)


def tangent_context(spec: Any) -> Any:
    """Returns the spec of the tangents of a DTensor: that of a sum over processes that is still to
    be made has the whole value everywhere. Any other context of a tensor of a subclass stays."""
    if not is_spec(spec) or not any(placement.is_partial() for placement in spec.placements):
        return spec
    replicate = sys.modules[_PLACEMENTS].Replicate()
    placements = tuple(replicate if item.is_partial() else item for item in spec.placements)
    return type(spec)(spec.mesh, placements, tensor_meta=spec.tensor_meta)


def replaced_tangent(tangent: Any, spec: Any) -> Any:
    """Returns a tangent, placed as a spec says where it is a DTensor of the same sizes on the same
    mesh; any other tangent unchanged."""
    if not is_spec(spec) or not is_dtensor(tangent):
        return tangent
    inputs = tangent._spec
    if (
        inputs.mesh != spec.mesh
        or tangent.shape != spec.shape
        or tangent.dtype != spec.tensor_meta.dtype
    ):
        return tangent
    if inputs.placements != spec.placements:
        tangent = tangent.redistribute(placements=spec.placements)
    return dtensor_of(waited(tangent._local_tensor), spec)


def waited(value: torch.Tensor) -> torch.Tensor:
    """Returns a tensor once the collective that makes it is done."""
    module = sys.modules.get("torch.distributed._functional_collectives")
    if module is None or type(value) is not module.AsyncCollectiveTensor:
        return value
    tensor: torch.Tensor = value.wait()  # type: ignore[attr-defined]
    return tensor


def sets_up_rng(value: Any) -> bool:
    """Returns whether torch's dispatcher keeps random numbers apart on the processes of a DTensor:
    on devices whose generators have states that it can set."""
    return str(value._spec.mesh.device_type) != "cpu"


def _place_in(mesh: Any) -> tuple[Any, ...]:
    """Returns where this process is in a mesh, and the names of the mesh's process groups, one a
    dimension; nothing where it is no part of the mesh."""
    here = mesh.get_coordinate()
    if here is None:
        return ()
    known = getattr(mesh, "_dim_group_names", None)
    if known is None:
        known = [str(mesh.get_group(dim).group_name) for dim in range(mesh.ndim)]
    return (*here, *known)


def described_mesh(mesh: Any) -> tuple[str, tuple[Any, ...]]:
    """Describes a mesh for a guard: its processes, this one's place among them, and the groups that
    its collectives use."""
    return _shape_of(mesh), _place_in(mesh)


def described_spec(value: Any) -> tuple[str, tuple[Any, ...]]:
    """Describes the spec of a DTensor for a guard."""
    spec = value._spec
    return _text_of(spec), _place_in(spec.mesh)


def is_mesh(value: Any) -> bool:
    """Returns whether a value is a mesh of processes."""
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(value, module.DeviceMesh)
