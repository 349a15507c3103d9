"""Decompositions that keep the checks which ATen's kernels make of their operands' values.

Torch's own leave them out. A requirement is written as the lookup of a row in a table of one, which
backends check as every index; eager mode, which runs after that, says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracer_core.torch_private.names import operators

aten = operators("aten")


def required(value: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
    """Returns the value; the graph raises where the condition does not hold."""
    table = torch.zeros((1, 1), dtype=value.dtype, device=value.device)
    zeros: torch.Tensor = aten.embedding.default(table, torch.where(condition, 0, 1))
    return value + zeros.squeeze(-1)


def _probability(value: torch.Tensor) -> torch.Tensor:
    return required(value, torch.logical_and(value >= 0, value <= 1))


def with_requirements(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Returns a table of decompositions whose binary_cross_entropy raises for what is no
    probability."""
    operator = aten.binary_cross_entropy.default
    simple = table[operator]

    def binary_cross_entropy(x: Any, target: Any, *rest: Any, **options: Any) -> Any:
        return simple(_probability(x), _probability(target), *rest, **options)

    return {**table, operator: binary_cross_entropy}
