"""The rows of the effect table, by library. Importing this package fills `effects.EFFECTS`."""

from tracer_core.natives.tables import builtins, containers, libraries, torch_functions

__all__ = ["builtins", "containers", "libraries", "torch_functions"]
