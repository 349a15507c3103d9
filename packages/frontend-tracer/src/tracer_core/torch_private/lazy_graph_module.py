"""Graph modules that generate their Python code on first use, because most of them never run.

A `Deferred` behaves like any `torch.fx.GraphModule`: `forward`, a call, `code` and copies use the
graph as it is when the first of them is requested; from then on, the code changes with
`recompile()` only. torch drops the text of the code together with the function.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.torch_private.python_side import forget_source_with


def add_node(graph: torch.fx.Graph, op: str, target: Any, args: Any, kwargs: Any) -> torch.fx.Node:
    """Does what `create_node` does in half its time.

    `create_node` searches its arguments for symbolic numbers, to warn of them.
    """
    node = graph.create_node(op, target)
    if args:
        node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


class Deferred(torch.fx.GraphModule):
    """A lazy graph module.

    opening: whether the module is being constructed. Each instance has a class of its own, as torch
    gives graph modules.
    """

    _opening = False

    def __init__(self, root: Any, graph: torch.fx.Graph, class_name: str = "GraphModule") -> None:
        cls = type(self)
        cls._opening = True
        try:
            super().__init__(root, graph, class_name)
        finally:
            cls._opening = False

    def recompile(self) -> Any:
        """Generates the code, except during construction."""
        if type(self)._opening:
            return None
        written = super().recompile()
        forget_source_with(self)
        return written

    def _write(self) -> None:
        if "forward" not in vars(type(self)):
            self.recompile()

    @property
    def forward(self) -> Any:  # type: ignore[override]
        """The graph's function; replaces this property once it is generated."""
        self._write()
        return self.forward

    @property
    def code(self) -> str:
        self._write()
        return super().code

    def __str__(self) -> str:
        self._write()
        return super().__str__()

    def __reduce__(self) -> Any:
        self._write()  # what is stored is the code
        return super().__reduce__()
