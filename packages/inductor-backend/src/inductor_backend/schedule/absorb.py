"""Activations that our own products apply themselves, before the result is stored.

In: a `Program` after inlining. Out: the program without the pointwise nodes that only applied such an
activation to a product's result. What always holds: the activation read every element of the result, in
memory order, was its only reader, and its own result was no output; its readers now read the product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inductor_backend.index_expr import Index, contiguous_strides, reshape
from inductor_backend.loop_ir.nodes import Buffer, ExternNode, LoopNode, Node, Program, Strided
from inductor_backend.loop_ir.values import Rewriter, Value, make
from inductor_backend.schedule.extern_choice import choice_of
from inductor_backend.size_vars import SizeVars


def absorb(program: Program, sizes: SizeVars) -> list[str]:
    """Absorbs what it can; returns one line for each activation, absorbed or not and why not."""
    readers: dict[str, list[Node]] = {}
    for node in program.nodes:
        for name in node.reads():
            readers.setdefault(name, []).append(node)
    notes: list[str] = []
    for node in list(program.nodes):
        if isinstance(node, ExternNode) and len(node.writes) == 1 and not node.fallback and not node.unpack:
            _absorb_one(program, sizes, node, readers, notes)
    return notes


def _absorb_one(
    program: Program, sizes: SizeVars, node: ExternNode, readers: dict[str, list[Node]], notes: list[str]
) -> None:
    (name,) = node.writes
    users = readers.get(name, [])
    if len(users) != 1 or name in program.output_names or not isinstance(users[0], LoopNode):
        return
    user = users[0]
    if len(user.stores) != 1 or user.stores[0].reduce is not None or len(user.stores[0].value.args) != 1:
        return
    reason = _refusal(program, sizes, node, user)
    notes.append(f"{user.name} ({user.stores[0].value.name}) into {node.name}: {reason or 'absorbed'}")
    if reason is not None:
        return
    target = user.stores[0].buffers[0]
    place = program.nodes.index(node)
    program.nodes[place] = replace(node, post=user.stores[0].value.name)
    program.nodes.remove(user)
    _redirect(program, target, program.buffers[name])
    readers[name] = [n for n in program.nodes if name in n.reads()]


def _refusal(program: Program, sizes: SizeVars, node: ExternNode, user: LoopNode) -> str | None:
    (store,) = user.stores
    (argument,) = store.value.args
    source, target = program.buffers[node.writes[0]], program.buffers[store.buffers[0]]
    if argument.name != "load" or argument.buffer != source.name:
        return "not an activation of the result itself"
    if node.post != "none" or node.residual is not None or node.final != "none":
        return "it has an epilogue already"
    choice = choice_of(program, node, sizes)
    if choice.kind != "own" or store.value.name not in choice.posts:
        return f"the product is not ours, or does not know it ({choice.reason})"
    if store.value.dtype != torch.float32 or target.dtype != torch.float32:
        return "not float32"
    if target.name in program.output_names or target.kind.value != "temp" or target.storage != target.name:
        return "its result is an output, an input or shared"
    dense = all(b.layout.strides == contiguous_strides(b.layout.sizes) for b in (source, target))
    dense = dense or source.layout == target.layout
    same_place = source.layout.flat(argument.attr[1]) == target.layout.flat(store.index)
    if not dense or not same_place or source.layout.numel != target.layout.numel:
        return "another order of elements"
    return None


def _redirect(program: Program, old: str, new: Buffer) -> None:
    """Every reader of `old` reads `new`, which holds the same elements at the same addresses."""
    sizes = program.buffers[old].layout.sizes

    def on_load(found: Value, index: tuple[Index, ...]) -> Value | None:
        if found.buffer != old:
            return None
        return make(
            found.name, *found.args, attr=(new.name, reshape(new.layout.sizes, sizes, index), new.dtype)
        )

    for place, node in enumerate(program.nodes):
        if old not in node.reads():
            continue
        if isinstance(node, ExternNode):
            program.nodes[place] = _with_operand(node, old, new.name)
            continue
        rewrite = Rewriter(None, on_load)
        stores = tuple(
            replace(s, index=tuple(rewrite.index(i) for i in s.index), value=rewrite(s.value))
            for s in node.stores
        )
        program.nodes[place] = replace(node, stores=stores)


def _with_operand(node: ExternNode, old: str, new: str) -> ExternNode:
    def renamed(value: Any) -> Any:
        if isinstance(value, Strided):
            return Strided(new, value.layout) if value.buffer == old else value
        if isinstance(value, (list, tuple)):
            return [renamed(item) for item in value]
        return value

    kwargs = {name: renamed(value) for name, value in node.kwargs.items()}
    return replace(
        node, args=tuple(renamed(v) for v in node.args), kwargs=kwargs, residual=renamed(node.residual)
    )
