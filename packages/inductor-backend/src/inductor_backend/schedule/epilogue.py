"""Fuses activations into the epilogue of the backend's own CPU matmul kernels.

Runs after inlining. An activation is fused where it is the only reader of the matmul's result,
reads every element in memory order, and its own result is not a graph output. Its readers then read
the matmul's result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inductor_backend.ir.index_expr import Index, contiguous_strides, reshape
from inductor_backend.ir.nodes import Buffer, ExternNode, LoopNode, LoopProgram, Node, Strided
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Rewriter, Value, make
from inductor_backend.kernels.selection import KernelKind
from inductor_backend.schedule.kernel_choice import choice_of


def fuse_extern_epilogues(program: LoopProgram, sizes: SizeVars) -> list[str]:
    """Fuses what it can; returns one line for each activation: fused, or why not."""
    now = _Now(program)
    notes: list[str] = []
    matmuls = [node.name for node in program.nodes if _is_matmul(node)]
    for name in matmuls:
        _fuse_epilogue_of(program, sizes, now, now.node(name), notes)
    return notes


def _is_matmul(node: Node) -> bool:
    return (
        isinstance(node, ExternNode)
        and len(node.writes) == 1
        and not node.fallback
        and not node.unpack
    )


class _Now:
    """The current nodes of a program, by name and by what they read. Fusing an activation replaces
    the nodes that read its result, which may be the next matmuls and activations."""

    def __init__(self, program: LoopProgram) -> None:
        self._program = program
        self._nodes = {node.name: node for node in program.nodes}
        self._readers: dict[str, list[str]] = {}
        for node in program.nodes:
            self._note(node)

    def _note(self, node: Node) -> None:
        for buffer in node.reads():
            names = self._readers.setdefault(buffer, [])
            if node.name not in names:
                names.append(node.name)

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def readers(self, buffer: str) -> list[Node]:
        """Returns the remaining nodes that read a buffer."""
        result = (self._nodes.get(name) for name in self._readers.get(buffer, ()))
        return [node for node in result if node is not None and buffer in node.reads()]

    def replace(self, node: Node) -> None:
        """Replaces the node of the same name."""
        place = next(i for i, other in enumerate(self._program.nodes) if other.name == node.name)
        self._program.nodes[place] = self._nodes[node.name] = node
        self._note(node)

    def remove(self, node: Node) -> None:
        self._program.nodes[:] = [other for other in self._program.nodes if other.name != node.name]
        del self._nodes[node.name]


def _fuse_epilogue_of(
    program: LoopProgram, sizes: SizeVars, now: _Now, node: Node, notes: list[str]
) -> None:
    assert isinstance(node, ExternNode)
    (name,) = node.writes
    users = now.readers(name)
    if len(users) != 1 or name in program.output_names or not isinstance(users[0], LoopNode):
        return
    user = users[0]
    if (
        len(user.stores) != 1
        or user.stores[0].reduce is not None
        or len(user.stores[0].value.args) != 1
    ):
        return
    reason = _refusal(program, sizes, node, user)
    notes.append(f"{user.name} ({user.stores[0].value.name}) into {node.name}: {reason or 'fused'}")
    if reason is not None:
        return
    target = user.stores[0].buffers[0]
    now.replace(replace(node, epilogue=user.stores[0].value.name))
    now.remove(user)
    for reader in now.readers(target):
        now.replace(_redirected(program, reader, target, program.buffers[name]))


def _refusal(program: LoopProgram, sizes: SizeVars, node: ExternNode, user: LoopNode) -> str | None:
    (store,) = user.stores
    (argument,) = store.value.args
    source, target = program.buffers[node.writes[0]], program.buffers[store.buffers[0]]
    if argument.name != "load" or argument.buffer != source.name:
        return "not an activation of the result itself"
    if node.epilogue != "none" or node.residual is not None or node.last_epilogue != "none":
        return "it has an epilogue already"
    choice = choice_of(program, node, sizes)
    if choice.kind is not KernelKind.NATIVE or store.value.name not in choice.epilogues:
        return f"the matmul is not ours, or does not know it ({choice.reason})"
    if store.value.dtype != torch.float32 or target.dtype != source.dtype:
        return "another dtype"
    if (
        target.name in program.output_names
        or target.kind.value != "temp"
        or target.storage != target.name
    ):
        return "its result is an output, an input or shared"
    dense = all(b.layout.strides == contiguous_strides(b.layout.sizes) for b in (source, target))
    dense = dense or source.layout == target.layout
    same_place = source.layout.flat(argument.attr[1]) == target.layout.flat(store.index)
    if not dense or not same_place or source.layout.numel != target.layout.numel:
        return "another order of elements"
    return None


def _redirected(program: LoopProgram, node: Node, old: str, new: Buffer) -> Node:
    """Makes a reader of `old` read `new`, which holds the same elements at the same addresses."""
    if isinstance(node, ExternNode):
        return _with_operand(node, old, new.name)
    sizes = program.buffers[old].layout.sizes

    def on_load(value: Value, index: tuple[Index, ...]) -> Value | None:
        if value.buffer != old:
            return None
        return make(
            value.name,
            *value.args,
            attr=(new.name, reshape(new.layout.sizes, sizes, index), new.dtype),
        )

    rewrite = Rewriter(None, on_load)
    return replace(node, stores=tuple(store.rewritten(rewrite) for store in node.stores))


def _with_operand(node: ExternNode, old: str, new: str) -> ExternNode:
    def renamed(value: Any) -> Any:
        if isinstance(value, Strided):
            return Strided(new, value.layout) if value.buffer == old else value
        if isinstance(value, (list, tuple)):
            return [renamed(element) for element in value]
        return value

    kwargs = {name: renamed(value) for name, value in node.kwargs.items()}
    return replace(
        node,
        args=tuple(renamed(v) for v in node.args),
        kwargs=kwargs,
        residual=renamed(node.residual),
    )
