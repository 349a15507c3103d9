"""What calls of operator programs leave: results, arguments, gradients, or the exception.

In: a function of the inputs of several programs, compiled or not. Out: an `Outcome` for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.opinfo.judge import Outcome
from tests.opinfo.values import leaves, tensors


def outcomes(
    function: Callable[[Any], Any],
    inputs: list[Any],
    gradients: bool,
    later: Sequence[Sequence[str]],
) -> list[Outcome]:
    """What a call of several programs leaves for each, its `later` statements done; one Outcome, with
    the exception and all arguments, where the call raises."""
    torch.manual_seed(0)
    try:
        with torch.set_grad_enabled(gradients):
            results = function(inputs)
        if gradients:
            _backward(results)
    except Exception as error:
        given = [leaf for value in inputs for leaf in leaves(list(value))]
        return [Outcome(args=given, error=error.with_traceback(None))]
    for lines, result, given in zip(later, results, inputs, strict=True):
        scope = {"r": result} | {f"i{k}": x for k, x in enumerate(given)}
        for line in lines:
            exec(line, {}, scope)
    return [
        Outcome(
            r, list(leaves(list(x))), [leaf.grad for leaf in leaves(list(x)) if leaf.requires_grad]
        )
        for r, x in zip(results, inputs)
    ]


def _backward(results: list[Any]) -> None:
    """Accumulates gradients, for weights that are exact in every type and that a program has alone
    and in its block."""
    ends, weights = [], []
    for result in results:
        generator = torch.Generator().manual_seed(7)
        for end in tensors(result):
            weight = torch.randint(1, 5, end.shape, generator=generator) / 4
            if end.requires_grad:
                ends.append(end)
                weights.append(weight.to(end.device, end.dtype))
    if ends:
        torch.autograd.backward(ends, weights)
