"""Handlers of opcodes, by family. Importing this package fills `code.HANDLERS`."""

from tracer_core.bytecode.opcodes import (
    branches,
    calls,
    containers,
    exceptions,
    iteration,
    names,
    operators,
    patterns,
    stack,
    with_statements,
)

__all__ = [
    "branches",
    "calls",
    "containers",
    "exceptions",
    "iteration",
    "names",
    "operators",
    "patterns",
    "stack",
    "with_statements",
]
