"""Double backward: finds what running a captured graph again takes, or why it cannot run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tracer_core import torch_private
from tracer_core.aot.joint_graph import Joint
from tracer_core.aot.output_aliasing import FromGraph
from tracer_core.aot.partitioner import Split
from tracer_core.aot.recompute_forward import RecomputeForward
from tracer_core.aot.rng_double_backward import RngReplayNode
from tracer_core.aot.rng_saved import is_rng_node, rng_of, uses_accelerator_rng
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.torch_private import settings
from tracer_core.torch_private.names import operators

aten = operators("aten")

#: Operators that take inputs they do not read: positions of running statistics, and of
#: ``training``.
UNREAD = {aten._native_batch_norm_legit_functional.default: ((3, 4), 5)}


def recompute_forward(captured: CapturedGraph, joint: Joint, split: Split) -> RecomputeForward:
    """Returns what runs a captured graph again."""
    tangents = tuple(i for i, node in enumerate(joint.tangents) if node is not None)
    positions = {
        step.index: position
        for position, step in enumerate(joint.plan.steps)
        if isinstance(step, FromGraph)
    }
    replayed = _replayed(joint, split)
    return RecomputeForward(
        forward=captured.gm.forward,
        name=captured.name,
        differentiable=joint.differentiable,
        tangents=tangents,
        mutations=frozenset(joint.mutations),
        settings={
            name: value
            for name, value in settings.snapshot().items()
            if settings.SETTINGS[name].autocast
        },
        uses_rng=not replayed and any(map(is_rng_node, joint.forward)),
        replayed=() if isinstance(replayed, str) else replayed,
        versioned=tuple(
            index
            for index, value in enumerate(captured.real_inputs)
            if isinstance(value, torch.Tensor) and not value.is_inference()
        ),
        positions=positions,
        inputs=len(captured.real_inputs),
        obstacle=_obstacle(joint, tangents, positions, replayed),
    )


def _replayed(joint: Joint, split: Split) -> tuple[RngReplayNode, ...] | str:
    """Returns the random numbers of a graph that draws some on an accelerator, where its forward
    saves them all, or else why a second run does not have them. Empty for other graphs: the CPU's
    generator draws them again."""
    if not uses_accelerator_rng(joint.forward):
        return ()
    if joint.uses_other_rng:
        return joint.uses_other_rng
    first = len(split.saved_inputs)
    saved = {node: first + at for at, node in enumerate(split.values) if node is not None}
    return rng_of(joint.forward, saved)


def _obstacle(
    joint: Joint,
    tangents: Sequence[int],
    positions: Mapping[int, int],
    replayed: tuple[RngReplayNode, ...] | str,
) -> str:
    """Returns why the captured graph cannot run again, or ""."""
    if any(index not in positions for index in tangents):
        return "several of its outputs share memory"
    if isinstance(replayed, str):
        return replayed
    if any(torch_private.communicates(node.target) for node in joint.forward):
        return "it communicates, which the other ranks would not do again"
    placeholders = [node for node in joint.forward if node.op == "placeholder"]
    for index in joint.mutations:
        node = placeholders[index]
        reads = (user for user in node.users if user.target is not aten.copy_.default)
        if not all(_ignored(user, node) for user in reads):
            return f"it reads its input {node.name}, which it also changes"
    return ""


def _ignored(user: torch.fx.Node, value: torch.fx.Node) -> bool:
    """Whether an operator takes a value without using it for its result."""
    if user.target not in UNREAD:
        return all(other.target is aten.copy_.default for other in user.users)
    positions, training = UNREAD[user.target]
    at = [index for index, argument in enumerate(user.args) if argument is value]
    return bool(user.args[training]) and set(at) <= set(positions)
