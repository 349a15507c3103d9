"""Decomposes ``_foreach_`` operators that have no lowering of their own into one operator a tensor.

Those of `lowering.foreach.EACH` stay whole: the chain of an optimizer's update fuses from them. The
others (pow and its exponents, norm, clamp, maximum with scalars, ...) become operators of single
tensors, so that they fuse with what surrounds them instead of ending a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.torch_private import OpOverload
from tracer_core.plugin_api import operators

aten = operators("aten")

_PREFIX = "_foreach_"


def _norm(x: Any, ord: Any = 2, dtype: Any = None) -> Any:
    """aten._foreach_norm"""
    return aten.linalg_vector_norm.default(x, ord, None, False, dtype=dtype)


def _powsum(x: Any, ord: Any = 2, dtype: Any = None) -> Any:
    """aten._foreach_powsum"""
    return torch.sum(torch.pow(torch.abs(x), ord), dtype=dtype)


def _bounded(of_tensor: str, of_scalar: str) -> Callable[[Any, Any], Any]:
    """aten._foreach_maximum, aten._foreach_minimum: the bounds may be scalars."""

    def bounded(x: Any, bound: Any) -> Any:
        name = of_tensor if isinstance(bound, torch.Tensor) else of_scalar
        return getattr(torch, name)(x, bound)

    return bounded


#: Name of a ``_foreach_`` operator -> what computes it of one tensor, where that is not the operator
#: of the rest of the name.
_OF_ONE: dict[str, Callable[..., Any]] = {
    "norm": _norm,
    "powsum": _powsum,
    "maximum": _bounded("maximum", "clamp_min"),
    "minimum": _bounded("minimum", "clamp_max"),
    "clamp_min": _bounded("maximum", "clamp_min"),
    "clamp_max": _bounded("minimum", "clamp_max"),
}
#: Operators whose scalars are the elements of one tensor: that which multiplies the last operand.
_SCALED: dict[str, Callable[[Any, Any], Any]] = {"addcdiv": torch.div, "addcmul": torch.mul}


def _each(name: str) -> Callable[..., list[Any]]:
    of_one = _OF_ONE.get(name) or getattr(torch.ops.aten, name)

    def decomposition(*args: Any, **kwargs: Any) -> list[Any]:
        count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
        return [
            of_one(*(a[i] if isinstance(a, (list, tuple)) else a for a in args), **kwargs)
            for i in range(count)
        ]

    return decomposition


def _scaled(combined: Callable[[Any, Any], Any]) -> Callable[..., list[Any]]:
    def decomposition(inputs: Any, first: Any, second: Any, scalars: Any) -> list[Any]:
        return [
            torch.add(x, torch.mul(combined(a, b), scalars.select(0, i)))
            for i, (x, a, b) in enumerate(zip(inputs, first, second, strict=True))
        ]

    return decomposition


#: The operators, by the rest of their names.
_NAMES = """
    acos.default asin.default atan.default ceil.default clone.default cos.default cosh.default erf.default
    erfc.default expm1.default floor.default frac.default lgamma.default log.default log10.default
    log1p.default log2.default round.default sigmoid.default sin.default sinh.default tan.default
    tanh.default trunc.default max.default mm.default norm.Scalar powsum.Scalar
    clamp_max.Scalar clamp_max.List clamp_max.ScalarList clamp_min.Scalar clamp_min.List
    clamp_min.ScalarList maximum.Scalar maximum.ScalarList minimum.Scalar minimum.ScalarList
    lerp.ScalarList pow.List pow.Scalar pow.ScalarList pow.ScalarAndTensor
    addcdiv.Tensor addcmul.Tensor
"""


def _decompositions() -> dict[Any, Callable[..., Any]]:
    result: dict[Any, Callable[..., Any]] = {}
    for path in _NAMES.split():
        name, _, overload = path.partition(".")
        scaled = overload == "Tensor" and name in _SCALED
        created = _scaled(_SCALED[name]) if scaled else _each(name)
        target = getattr(getattr(aten, _PREFIX + name), overload)
        if isinstance(target, OpOverload):  # this torch has it
            result[target] = created
    return result


DECOMPOSITIONS = _decompositions()
