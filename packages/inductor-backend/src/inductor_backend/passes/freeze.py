"""Compiling a graph whose parameters are constants, and preparing them.

In: an ATen graph and a `CompileSpec` whose `constants` are not empty. Out: a runner with `prepare`:
constant tensors -> a runner that reads what was made of them. What always holds: preparing compiles
nothing, and what it makes belongs to that one runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_backend.passes.constant_subgraph import Folded, split
from inductor_backend.passes.frozen_rewrites import fold_batch_norm, fuse_epilogues, pack_weights
from inductor_backend.passes.fx_edit import Editor, copy_of
from inductor_backend.passes.horizontal_matmul import merge_products
from inductor_backend.passes.lstm import pack_layers
from tracer_core.plugin_api import CompileSpec, InputSpec, Role, Runner


@dataclass(frozen=True, slots=True)
class FrozenGraph:
    """graph, spec: without its constant part, whose results are the last inputs. folded: that
    part.
    """

    graph: torch.fx.GraphModule
    spec: CompileSpec
    folded: Folded


def freeze(gm: torch.fx.GraphModule, spec: CompileSpec) -> FrozenGraph:
    """Rewrites and splits the graph (a copy of it)."""
    copied = copy_of(gm)
    placeholders = copied.graph.find_nodes(op="placeholder")
    constants = [placeholders[index] for index in spec.constants]
    editor = Editor(copied, constants)
    for rewrite in (fold_batch_norm, pack_layers, merge_products, pack_weights, fuse_epilogues):
        rewrite(editor)
    folded = split(editor, constants)
    extra = [
        InputSpec(node.name, Role.BUFFER, f"made from parameters: {node.name}", stable_address=True)
        for node in folded.results
    ]
    return FrozenGraph(editor.gm, replace(spec, inputs=(*spec.inputs, *extra)), folded)


class FrozenRunner:
    """run: takes the inputs and then what was made of the constants. reads: see
    `CompileSpec.constants`. Called without `prepare` it prepares anew each time."""

    def __init__(self, run: Runner, frozen: FrozenGraph) -> None:
        self.run, self.frozen = run, frozen
        self.artifact = run.artifact  # type: ignore[attr-defined]
        self.reads = frozen.folded.read

    def prepare(self, constants: Sequence[torch.Tensor]) -> Callable[[list[Any]], Sequence[Any]]:
        """A runner for these constants, in the order of the spec's `constants`."""
        made = self.frozen.folded.prepare(constants)
        run = self.run

        def prepared(inputs: list[Any]) -> Sequence[Any]:
            inputs += made
            return run(inputs)

        return prepared

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        tensors = [inputs[index] for index in self.frozen.spec.constants]
        return self.prepare(tensors)(inputs)
