"""The rows of the effect table, by library. Importing this package fills `effects.EFFECTS`."""

from tracer_core.natives.tables import (
    builtins,
    classes,
    containers,
    libraries,
    objects,
    torch_functions,
    torch_settings,
)

__all__ = ["builtins", "classes", "containers", "libraries", "objects", "torch_functions", "torch_settings"]
