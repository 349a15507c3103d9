"""Rows of the effect table, by library. Importing this package fills `effects.EFFECTS`."""

from collections.abc import Iterator

from tracer_core.natives.effects import EFFECTS, EffectKind, row_name
from tracer_core.natives.tables import (
    attributes,
    autograd,
    builtins,
    classes,
    construction,
    containers,
    copying,
    descriptors,
    distributed,
    frames,
    functional,
    heapq_bisect,
    higher_order,
    iteration,
    iterators,
    libraries,
    numbers,
    numpy,
    objects,
    operators,
    optimizers,
    side_effects,
    torch_functions,
    torch_settings,
    triton_kernels,
    type_parameters,
)

__all__ = [
    "numpy", "attributes", "autograd", "builtins", "classes", "construction", "containers",
    "copying", "descriptors",
    "distributed", "frames", "functional", "higher_order", "iteration", "iterators", "libraries",
    "numbers", "objects",
    "operators", "optimizers", "heapq_bisect", "side_effects", "rows", "torch_functions",
    "torch_settings",
    "triton_kernels",
    "type_parameters",
]  # fmt: skip


def rows() -> Iterator[tuple[str, EffectKind]]:
    """Yields (qualified name, kind) of every row of the table; names are unique."""
    for function, row in EFFECTS.items():
        yield row_name(function), row.kind
