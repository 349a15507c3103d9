"""Calls of autograd inside a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.torch_private.names import names


def grad_without_hooks(outputs: Any, inputs: Sequence[Any], *value: Any, **options: Any) -> Any:
    """Calls torch.autograd.grad while the hooks of the inputs are off: the nodes after it are these
    hooks. Target of a graph node."""
    real = [value for value in inputs if not torch_private.is_fake(value)]
    held = [(hooks, [*hooks.items()]) for item in real if (hooks := item._backward_hooks)]
    for hooks, _ in held:
        hooks.clear()
    try:
        return torch.autograd.grad(outputs, inputs, *value, **options)
    finally:
        for hooks, entries in held:
            hooks.update(entries)


#: Operators that run autograd inside a graph: the graph they differentiated is freed afterwards, as
#: in eager.
GRADIENT_CALLS = frozenset({*names("autograd.grad autograd.backward"), grad_without_hooks})
