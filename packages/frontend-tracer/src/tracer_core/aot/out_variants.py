"""out= variants of composite torch functions: computes the result functionally, then copies it.

Composite ``out=`` forms write through aliases that functional wrappers do not follow
(``_unsafe_view`` in ``torch.kron``), or fail on wrappers (``torch.linalg.matrix_rank``). torch
functionalizes operators with kernels itself. A result whose sizes differ from the given tensor's
raises LoweringUnsupported.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket, pytree


@functools.cache
def composed(function: Any) -> bool:
    """Whether the ``out=`` form of a torch function is composed of other operators, in C++ or in
    Python.
    """
    if isinstance(function, OpOverload):
        return torch_private.is_composite(function)
    packet = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    if not isinstance(packet, OpOverloadPacket):
        return True
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return any(torch_private.is_composite(item) for item in overloads if item._schema.is_mutable)


def call_into(function: Any, *args: Any, out: Any, **kwargs: Any) -> Any:
    """Computes ``function(*args, out=out, **kwargs)``."""
    result = function(*args, **kwargs)
    created, places = pytree.tree_leaves(result), pytree.tree_leaves(out)
    if [tuple(item.shape) for item in created] != [tuple(place.shape) for place in places]:
        raise LoweringUnsupported(
            f"out= of {getattr(function, '__name__', function)} has other sizes"
        )
    for value, place in zip(created, places, strict=True):
        place.copy_(value)
    return out
