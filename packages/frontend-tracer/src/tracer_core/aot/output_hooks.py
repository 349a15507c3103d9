"""Hooks and retained gradients of a compiled graph's outputs.

All outputs of a graph belong to one autograd node. Autograd calls the hooks of each before the node
runs: with the gradient from outside of the graph alone, and with None for an output that has none.
In eager mode each output has a node of its own. So the outputs of a graph with several get a
dictionary of hooks that leaves None out. The hooks of an output that others are computed from wait
for a second run of the graph, which knows the whole gradient.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

Hook = Callable[[torch.Tensor], torch.Tensor | None]

_PARTIAL = (
    "a hook on an output of a compiled function, or its retained gradient, lacks the gradient"
    " through the other outputs that are computed from it; register the hook inside the function"
)


class OutputHook:
    """A hook as autograd calls it. waits: for the whole gradient."""

    __slots__ = ("hook", "waits")

    def __init__(self, hook: Hook, waits: bool) -> None:
        self.hook, self.waits = hook, waits

    def __call__(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return None if self.waits or gradient is None else self.hook(gradient)


class OutputHooks(OrderedDict[int, OutputHook]):
    """The hooks of one output, as ``Tensor.register_hook`` fills it. Mutable."""

    def __init__(self, output: torch.Tensor, waits: bool) -> None:
        super().__init__()
        self.output, self.waits = weakref.ref(output), waits

    def __setitem__(self, key: int, hook: Any) -> None:
        super().__setitem__(key, OutputHook(hook, self.waits))

    def retaining(self, node: Any) -> torch.Tensor | None:
        """Returns the output if its gradient is retained. node: of the graph; a write in place gives
        the tensor another one."""
        output = self.output()
        if output is None or not output.retains_grad or output.grad_fn is not node:
            return None
        return output

    def observe(self, node: Any, again: torch.Tensor, known: torch.Tensor | None) -> None:
        """Has the whole gradient given to the hooks and retained. again: the output of the second
        run. known: the gradient from outside of the graph, which is retained already."""
        output = self.retaining(node)

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            for waiting in tuple(self.values()):
                result = waiting.hook(gradient)
                gradient = gradient if result is None else result
            if output is not None:
                before = output.grad
                if before is None or known is None:
                    output.grad = gradient.clone() if before is None else before + gradient
                else:
                    output.grad = before + (gradient - known)
            return gradient

        again.register_hook(hook)


def watch(outputs: Sequence[Any], tangents: Sequence[int], interior: Sequence[int]) -> None:
    """Prepares the outputs of a graph for hooks. tangents: those with a gradient. interior: those
    that others are computed from; their hooks are noted on the node."""
    watched = []
    for index in tangents:
        output = outputs[index]
        node = output.grad_fn
        if node is None:
            continue
        hooks = output._backward_hooks = OutputHooks(output, index in interior)
        node._register_hook_dict(output)
        if hooks.waits:
            watched.append((index, hooks))
            node.watched = watched


def observed(
    node: Any, tangents: Sequence[torch.Tensor | None], can_run_again: bool
) -> list[tuple[int, OutputHooks]]:
    """Returns the interior outputs whose whole gradient the program asks for."""
    result = [item for item in node.watched if item[1] or item[1].retaining(node) is not None]
    if not result or can_run_again:
        return result
    warnings.warn(_PARTIAL, stacklevel=2)
    return []
