"""Graph modules whose Python code is written when somebody asks for it: most are handed on and
never run; quick nodes.

In: an fx graph. Out: a `torch.fx.GraphModule` that behaves like any other. What always holds:
`forward`, a call, `code` and copies are those of the graph as it is when the first of them is asked
for; from then on, as for any GraphModule, they change with `recompile()` alone. torch forgets the
text of the code together with the function.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private


def add_node(graph: torch.fx.Graph, op: str, target: Any, args: Any, kwargs: Any) -> torch.fx.Node:
    """`create_node`, in half its time: it searches the arguments that it is given for symbolic
    numbers, to warn of them.
    """
    node = graph.create_node(op, target)
    if args:
        node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


class Deferred(torch.fx.GraphModule):
    """opening: whether the module is being made. Each instance has a class of its own, as torch
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
        """Writes the code, but not while the module is being made."""
        if type(self)._opening:
            return None
        written = super().recompile()
        torch_private.forget_source_with(self)
        return written

    def _write(self) -> None:
        if "forward" not in vars(type(self)):
            self.recompile()

    @property
    def forward(self) -> Any:  # type: ignore[override]
        """The graph's function, which replaces this property when it is written."""
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
