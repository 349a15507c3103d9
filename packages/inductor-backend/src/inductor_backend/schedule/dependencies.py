"""Computes which node must run before which.

A reader follows the earlier writers of its buffer, a writer of an input follows the earlier readers
of it, and random operators keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from inductor_backend.ir.index_expr import variables
from inductor_backend.ir.nodes import ExternNode, LoopNode, LoopProgram, Node
from inductor_backend.ir.values import Rewriter, Value


@dataclass(slots=True)
class Dependencies:
    """before: node name -> names that must run earlier. readers, writers: buffer -> nodes, in
    program order."""

    before: dict[str, set[str]] = field(default_factory=dict)
    readers: dict[str, list[Node]] = field(default_factory=dict)
    writers: dict[str, list[Node]] = field(default_factory=dict)


def dependencies(program: LoopProgram) -> Dependencies:
    """Returns the dependencies of all nodes."""
    result = Dependencies()
    last_sequential: str | None = None
    for node in program.nodes:
        before = result.before.setdefault(node.name, set(node.after))
        for buffer in program.with_earlier(node.reads()):
            before.update(writer.name for writer in result.writers.get(buffer, ()))
            result.readers.setdefault(buffer, []).append(node)
        for buffer in node.writes:
            before.update(reader.name for reader in result.readers.get(buffer, ()))
            result.writers.setdefault(buffer, []).append(node)
        before.discard(node.name)
        if isinstance(node, ExternNode) and node.sequential:
            if last_sequential is not None:
                before.add(last_sequential)
            last_sequential = node.name
    return result


def live_nodes(program: LoopProgram) -> list[Node]:
    """Dead-code elimination: returns, in order, the nodes whose results are used."""
    needed = program.with_earlier(program.output_names)
    inputs = {name for name, buffer in program.buffers.items() if buffer.kind.value == "input"}
    live: list[Node] = []
    for node in reversed(program.nodes):
        visible = any(name in needed or name in inputs for name in node.writes)
        if visible or (isinstance(node, ExternNode) and node.sequential):
            live.append(node)
            needed |= program.with_earlier(node.reads())
            needed |= {name for name in node.after}
    return live[::-1]


def stored_value(
    program: LoopProgram, writers: Mapping[str, Sequence[Node]], value: Value
) -> Value:
    """Returns the value that a loop stores, unrounded, where another loop loads it, if that is no
    reduction; else the value. writers: of the program's buffers."""
    if value.name != "load" or value.dtype not in (torch.float32, torch.float64):
        return value
    buffer = program.buffers[value.buffer]
    if buffer.dtype != value.dtype:
        return value
    sizes = buffer.layout.sizes
    first, *others = writers.get(value.buffer, (None,))
    if not others and isinstance(first, LoopNode) and len(first.stores) == 1:
        (store,) = first.stores
        covers = first.sizes == sizes and store.index == variables(sizes)
        if covers and store.is_assignment:
            return Rewriter(value.attr[1])(store.value)
    return value
