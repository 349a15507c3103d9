"""Stages that rewrite the ATen graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from inductor_backend.autotune import matmul
from inductor_backend.compilation import Compilation, Stage, StageDevice
from inductor_backend.control_flow_steps import loop_rules
from inductor_backend.environment import FUEL
from inductor_backend.lowering.channels_last import CONVOLUTIONS
from inductor_backend.passes import cpu_scalars, kernel_prebuild
from inductor_backend.passes.freeze import frozen_editor, frozen_runner, without_constants
from inductor_backend.passes.fx_edit import Editor
from inductor_backend.passes.outline import outlined
from inductor_backend.passes.repeated_subgraphs import find_repeats
from inductor_backend.passes.weight_packing import pays_anywhere
from tracer_core.plugin_api import CompileSpec, RequirementError, graph_listing

Rewrite = Callable[[torch.fx.GraphModule, CompileSpec], torch.fx.GraphModule]


def rewritten(rewrite: Rewrite) -> Callable[[Compilation], None]:
    """Returns the stage that applies a rewrite of the graph."""

    def run(c: Compilation) -> None:
        c.gm = rewrite(c.gm, c.spec)

    return run


def split_host_side(c: Compilation) -> None:
    """Moves numbers that the host computes out of the graph."""
    split = cpu_scalars.split(c.gm, c.spec)
    if split is not None:
        c.gm = c.original = split.graph
        c.spec = split.spec
        c.wraps.append(split.join)


def outline_repeats(c: Compilation) -> None:
    """Outlines repeated subgraphs. Packed convolutions fuse the nodes around them, so with packing
    this happens later. On GPUs such graphs are lowered whole: all instances determine the
    convolutions' memory format, and equal matmuls are measured once anyway."""
    c.outline_late = not c.target.triton and (bool(c.spec.constants) or pays_anywhere(c.gm, c.spec))
    if not c.outline_late and not (c.target.triton and matmul.tuned(c)):
        _outline(c, resume_stage="constant_folding")


def outline_late_repeats(c: Compilation) -> None:
    """Outlines repeated subgraphs of graphs with packed weights."""
    if c.outline_late:
        _outline(c, resume_stage="prebuild")


def _outline(c: Compilation, resume_stage: str) -> None:
    if any(node.target in loop_rules() for node in c.gm.graph.nodes):
        return  # a loop is written for one call
    if FUEL.read() is not None:
        return
    repeats = find_repeats(c.gm.graph)
    if repeats is None:
        return
    if c.target.triton and any(
        repeats.calls[at].target in CONVOLUTIONS for at in repeats.instance(0)
    ):
        return
    c.outline, c.resume_stage = outlined(c.gm, repeats), resume_stage
    c.gm = c.outline.small


def freeze(c: Compilation) -> None:
    """Makes the parameters constants of the graph."""
    if c.target.triton:
        raise RequirementError(
            "inductor", "freeze", "freeze=True is not built for graphs on CUDA devices"
        )
    c.editor = frozen_editor(c.gm, c.spec)
    c.gm = c.editor.gm


def frozen(rewrite: Callable[[Editor], None]) -> Callable[[Compilation], None]:
    """Returns the stage that applies a rewrite of a frozen graph."""

    def run(c: Compilation) -> None:
        assert c.editor is not None
        rewrite(c.editor)

    return run


def constant_subgraph(c: Compilation) -> None:
    """Splits off what is computed of constants alone."""
    assert c.editor is not None
    c.frozen = frozen = without_constants(c.editor, c.spec)
    c.gm, c.spec = frozen.graph, frozen.spec
    c.wraps.append(lambda runner: frozen_runner(runner, frozen))


def prebuild(c: Compilation) -> None:
    """Starts building the kernels that the graph needs."""
    prepared = [] if c.frozen is None else [node for node, _ in c.frozen.folded.steps]
    kernel_prebuild.start_lowered([*c.gm.graph.nodes, *prepared])


def rewrite_stage(
    name: str,
    run: Callable[[Compilation], None],
    device: StageDevice = "any",
    frozen: bool = False,
    aot_standalone: bool = False,
) -> Stage:
    """Returns the stage for a rewrite of the ATen graph."""
    dump = lambda c: graph_listing([(c.spec.name, c.gm)])
    return Stage(
        name, run, device, dump=dump, suffix="py", frozen=frozen, aot_standalone=aot_standalone
    )
