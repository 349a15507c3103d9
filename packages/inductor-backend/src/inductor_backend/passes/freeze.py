"""Compiling a graph whose parameters are constants, and preparing them.

In: an ATen graph and a `CompileSpec` whose `constants` are not empty. Out: a runner with
`bind_constants`: constant tensors -> what runs the graph with what was made of them. What always
holds: binding compiles nothing, and what it makes belongs to that one callable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_backend.passes.constant_subgraph import Folded, split
from inductor_backend.passes.fx_edit import Editor, copy_of
from tracer_core.plugin_api import CompileSpec, InputSpec, Role, RunFunction, Runner


@dataclass(frozen=True, slots=True)
class FrozenGraph:
    """graph, spec: without its constant part, whose results are the last inputs. folded: that
    part.
    """

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


def frozen_runner(runner: Runner, frozen: FrozenGraph) -> Runner:
    """runner: takes the inputs and then what was made of the constants. Called before
    `bind_constants`, what this returns binds them anew in each call."""
    run, indices = runner.run, frozen.spec.constants

    def bind_constants(tensors: Sequence[torch.Tensor]) -> RunFunction:
        made = frozen.folded.prepare(tensors)

        def bound(inputs: list[Any]) -> Sequence[Any]:
            inputs += made
            return run(inputs)

        return bound

    def run_unbound(inputs: list[Any]) -> Sequence[Any]:
        return bind_constants([inputs[index] for index in indices])(inputs)

    return runner.with_run(
        run_unbound, bind_constants=bind_constants, constants_read=frozen.folded.read
    )
