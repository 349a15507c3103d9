"""The rows of the effect table, by library. Importing this package fills `effects.EFFECTS`."""

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
    "operators", "optimizers", "ordered", "outside", "torch_functions", "torch_settings", "triton_kernels", "type_parameters",
]  # fmt: skip
