"""Freezing: compiles a graph whose parameters are constants (`CompileSpec.constants`), so that
nodes that depend on them alone run once, when the constants are bound.

Binding compiles nothing, and the tensors that it computes belong to the one function that it
returns.
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
    """graph, spec: the graph without its constant subgraph, whose results are its last inputs.
    folded: the constant subgraph."""

    graph: torch.fx.GraphModule
    spec: CompileSpec
    folded: Folded


def frozen_editor(gm: torch.fx.GraphModule, spec: CompileSpec) -> Editor:
    """Returns an editor of a copy of the graph, with the spec's constants."""
    copied = copy_of(gm)
    placeholders = copied.graph.find_nodes(op="placeholder")
    return Editor(copied, [placeholders[index] for index in spec.constants])


def without_constants(editor: Editor, spec: CompileSpec) -> FrozenGraph:
    """Splits the constant subgraph off the rewritten graph."""
    placeholders = editor.graph.find_nodes(op="placeholder")
    folded = split(editor, [placeholders[index] for index in spec.constants])
    extra = [
        InputSpec(node.name, Role.BUFFER, f"made from parameters: {node.name}", stable_address=True)
        for node in folded.results
    ]
    return FrozenGraph(editor.gm, replace(spec, inputs=(*spec.inputs, *extra)), folded)


def frozen_runner(runner: Runner, frozen: FrozenGraph) -> Runner:
    """Returns a runner with `bind_constants`. runner: takes the inputs, then the results of the
    constant subgraph. Calls before `bind_constants` bind the constants again each time."""
    run, indices = runner.run, frozen.spec.constants

    def bind_constants(tensors: Sequence[torch.Tensor]) -> RunFunction:
        result = frozen.folded.prepare(tensors)

        def bound(inputs: list[Any]) -> Sequence[Any]:
            inputs += result
            return run(inputs)

        return bound

    def run_unbound(inputs: list[Any]) -> Sequence[Any]:
        return bind_constants([inputs[index] for index in indices])(inputs)

    return runner.with_run(
        run_unbound, bind_constants=bind_constants, constants_read=frozen.folded.read
    )
