"""Handlers of opcodes, by family. Importing this package fills `code.HANDLERS`."""

from tracer_core.bytecode.opcodes import (
    branches,
    calls,
    containers,
    context,
    exceptions,
    iteration,
    names,
    operators,
    patterns,
    stack,
)

__all__ = [
    "branches",
    "calls",
    "containers",
    "context",
    "exceptions",
    "iteration",
    "names",
    "operators",
    "patterns",
    "stack",
]
