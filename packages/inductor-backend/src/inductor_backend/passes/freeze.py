"""Compiling a graph whose parameters are constants, and preparing them.

In: an ATen graph and a `CompileSpec` whose `constants` are not empty. Out: a runner with `prepare`: constant
tensors -> a runner that reads what was made of them. What always holds: preparing compiles nothing, and what it
makes belongs to that one runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_backend.passes.constant_subgraph import Folded, split
from inductor_backend.passes.fx_edit import Editor, copy_of
from tracer_core.plugin_api import CompileSpec, InputSpec, Role, Runner


@dataclass(frozen=True, slots=True)
class FrozenGraph:
    """graph, spec: without its constant part, whose results are the last inputs. folded: that part."""

    graph: torch.fx.GraphModule
    spec: CompileSpec
    folded: Folded


def frozen_editor(gm: torch.fx.GraphModule, spec: CompileSpec) -> Editor:
    """For rewrites of a copy of the graph."""
    copied = copy_of(gm)
    placeholders = copied.graph.find_nodes(op="placeholder")
    return Editor(copied, [placeholders[index] for index in spec.constants])


def without_constants(editor: Editor, spec: CompileSpec) -> FrozenGraph:
    """The rewritten graph in two."""
    placeholders = editor.graph.find_nodes(op="placeholder")
    folded = split(editor, [placeholders[index] for index in spec.constants])
    extra = [
        InputSpec(node.name, Role.BUFFER, f"made from parameters: {node.name}", stable_address=True)
        for node in folded.results
    ]
    return FrozenGraph(editor.gm, replace(spec, inputs=(*spec.inputs, *extra)), folded)


class FrozenRunner:
    """run: takes the inputs and then what was made of the constants. reads: see `CompileSpec.constants`.
    Called without `prepare` it prepares anew each time."""

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
