"""The rows of the effect table, by library. Importing this package fills `effects.EFFECTS`."""

from collections.abc import Iterator

from tracer_core.natives.effects import EFFECTS, EffectKind, row_name
from tracer_core.natives.tables import (
    arrays,
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
    higher_order,
    iteration,
    iterators,
    libraries,
    numbers,
    objects,
    operators,
    optimizers,
    ordered,
    outside,
    torch_functions,
    torch_settings,
    triton_kernels,
    type_parameters,
)

__all__ = [
    "arrays", "attributes", "autograd", "builtins", "classes", "construction", "containers", "copying", "descriptors",
    "distributed", "frames", "functional", "higher_order", "iteration", "iterators", "libraries", "numbers", "objects",
    "operators", "optimizers", "ordered", "outside", "rows", "torch_functions", "torch_settings", "triton_kernels",
    "type_parameters",
]  # fmt: skip


def rows() -> Iterator[tuple[str, EffectKind]]:
    """(qualified name, kind) of every row of the table; names are unique."""
    for function, row in EFFECTS.items():
        yield row_name(function), row.kind
