"""Splits a graph in two: the constant subgraph, which depends on constants alone, and the rest,
which takes the subgraph's results as its last placeholders.

A view of a constant stays in the rest, where it costs no memory; so does a result that is much
bigger than the constants it is computed from.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.passes.fx_edit import Editor
from tracer_core.plugin_api import Trait, has_effect, overloads_with

VIEWS = overloads_with(Trait.VIEW)

#: A result is folded up to `GROWTH` times the elements of its constants, or `SMALL` elements.
GROWTH, SMALL = 2, 1 << 16


@dataclass(frozen=True, slots=True)
class Folded:
    """The constant subgraph."""

    #: Its nodes in order, each with the values to free after it.
    steps: tuple[tuple[torch.fx.Node, tuple[torch.fx.Node, ...]], ...]
    #: The placeholders that it reads -> position among the graph's constants.
    constants: dict[torch.fx.Node, int]
    #: Tensors of the graph module that it reads.
    known: dict[torch.fx.Node, torch.Tensor]
    #: The nodes to pass on.
    results: tuple[torch.fx.Node, ...]
    #: Positions of constants that the rest still reads.
    read: frozenset[int]

    def prepare(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the subgraph on these constants and returns its results."""
        env: dict[torch.fx.Node, Any] = {
            node: tensors[position].detach() for node, position in self.constants.items()
        } | self.known
        for node, unused in self.steps:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            for dead in unused:
                del env[dead]
        return [env[node] for node in self.results]


def split(editor: Editor, constants: Sequence[torch.fx.Node]) -> Folded:
    """Removes the constant subgraph from the editor's graph. constants: placeholders, in order."""
    graph = editor.graph
    results = [
        node for node in graph.nodes if _is_result(editor, node) and is_worth_it(editor, node)
    ]
    last = max(
        (node for node in graph.nodes if node.op == "placeholder"), key=list(graph.nodes).index
    )
    for node in results:
        with graph.inserting_after(last):
            last = graph.placeholder(f"folded_{node.name}")
        last.meta = dict(node.meta)
        outside = [user for user in node.users if user not in editor.constant]
        for user in outside:
            user.replace_input_with(node, last)
    needed = made_of(results)
    steps = tuple(node for node in graph.nodes if node in needed and node.op == "call_function")
    uses = {
        node: sum(source is node for step in steps for source in step.all_input_nodes)
        for node in needed
    }
    ordered: list[tuple[torch.fx.Node, tuple[torch.fx.Node, ...]]] = []
    for step in steps:
        done = []
        for source in step.all_input_nodes:
            uses[source] -= 1
            if uses[source] == 0 and source.op == "call_function" and source not in results:
                done.append(source)
        ordered.append((step, tuple(done)))
    known = {
        node: operator.attrgetter(str(node.target))(editor.gm)
        for node in needed
        if node.op == "get_attr"
    }
    main, copies = _without(editor, needed, results)
    editor.gm, editor.graph = main, main.graph
    positions = {node: k for k, node in enumerate(constants) if node in needed}
    read = frozenset(k for k, node in enumerate(constants) if copies[node].users)
    return Folded(tuple(ordered), positions, known, tuple(results), read)


def _without(
    editor: Editor, needed: set[torch.fx.Node], results: Sequence[torch.fx.Node]
) -> tuple[torch.fx.GraphModule, dict[torch.fx.Node, torch.fx.Node]]:
    """Returns the graph without nodes that only served the results, and a map from old nodes to
    their copies."""
    graph = torch.fx.Graph()
    result: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in editor.graph.nodes:
        result[node] = graph.node_copy(node, result.__getitem__)
        result[node].meta = dict(node.meta)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not has_effect(node.target):
            graph.erase_node(node)
    return torch.fx.GraphModule(editor.gm, graph), result


def _is_result(editor: Editor, node: torch.fx.Node) -> bool:
    """Checks for a constant tensor that the rest of the graph reads."""
    if node not in editor.constant or node.op != "call_function":
        return False
    return isinstance(node.meta["val"], torch.Tensor) and any(
        user not in editor.constant for user in node.users
    )


def is_worth_it(editor: Editor, node: torch.fx.Node) -> bool:
    """Checks that a constant node is no view, nor too big for the constants it is computed from."""
    root = node
    while root.op == "call_function" and root.target in VIEWS:
        root = root.args[0]  # type: ignore[assignment]
    if root.op == "placeholder":
        return False
    sources = [source for source in made_of([node]) if source.op == "placeholder"]
    return bool(
        node.meta["val"].numel()
        <= max(SMALL, GROWTH * sum(source.meta["val"].numel() for source in sources))
    )


def made_of(roots: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """Returns these nodes and all that they are computed from."""
    nodes: set[torch.fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in nodes:
            nodes.add(node)
            stack.extend(node.all_input_nodes)
    return nodes
