"""TENSOR guards: what a graph relies on in an input tensor, and the expressions and functions that
check it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.storage.released_parameters import ReleasedParameter
from tracer_core.torch_private.needed import key_set


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a graph relies on in an input tensor."""

    type: type
    dtype: Any
    device: Any
    #: The dispatch key set, as `raw_repr()` gives it.
    keys: int
    requires_grad: bool
    #: An int per dimension, None where it may change.
    shape: tuple[int | None, ...]
    #: None when unchecked (symbolic sizes) or not strided.
    stride: tuple[int, ...] | None


def tensor_facts(value: torch.Tensor, dims: tuple[int | None, ...] | None = None) -> TensorFacts:
    """Returns what a guard checks of a tensor. dims: sizes, and then strides, None where any is
    accepted."""
    symbolic = dims is not None and None in dims
    return TensorFacts(
        type=type(value),
        dtype=value.dtype,
        device=value.device,
        keys=torch_private.dispatch_keys(value),
        requires_grad=value.requires_grad,
        shape=tuple(value.shape) if dims is None else dims[: value.dim()],
        stride=None if symbolic else value.stride(),
    )


#: Device types with a single device, which the dispatch keys identify.
_ONE_OF_A_KIND = frozenset({"cpu", "meta"})


def tensor_checks(facts: TensorFacts, value: str, constant: Callable[[Any], str]) -> dict[str, str]:
    """Property of a tensor -> the check of it, in the order in which they are made."""
    checks = {
        "type": _kind(value, facts.type, constant),
        "dtype": f"{value}.dtype is {constant(facts.dtype)}",
        "keys": f"keys({value}).raw_repr() == {facts.keys}",
        "requires_grad": f"{value}.requires_grad is {facts.requires_grad}",
    }
    if facts.device.type not in _ONE_OF_A_KIND:
        checks["device"] = f"{value}.device == {constant(facts.device)}"
    if None in facts.shape:
        checks["ndim"] = f"{value}.ndim == {len(facts.shape)}"
        checks |= {
            f"shape[{i}]": f"{value}.shape[{i}] == {n}"
            for i, n in enumerate(facts.shape)
            if n is not None
        }
    else:
        checks["shape"] = f"{value}.shape == {tuple(facts.shape)!r}"
    if facts.stride is not None:
        checks["stride"] = f"{value}.stride() == {tuple(facts.stride)!r}"
    return checks


def _kind(value: str, kind: type, constant: Callable[[Any], str]) -> str:
    """Returns the check of the exact type.

    A parameter that was released since then passes as a parameter: a frozen graph does not read it.
    """
    if kind is torch.nn.Parameter:
        return f"type({value}) in {constant(_PARAMETERS)}"
    return f"type({value}) is {constant(kind)}"


_PARAMETERS = (torch.nn.Parameter, ReleasedParameter)


def tensor_is(
    value: Any,
    kind: Any,
    dtype: Any,
    keys: int,
    grad: bool,
    shape: Any,
    stride: Any,
    device: Any = None,
) -> bool:
    """Checks a TENSOR guard without symbolic sizes in one call: a large model has hundreds, and
    compiling their text takes time.
    """
    return (
        (type(value) is kind or (kind is torch.nn.Parameter and type(value) is ReleasedParameter))
        and value.dtype is dtype
        and key_set(value).raw_repr() == keys
        and value.requires_grad is grad
        and value.shape == shape
        and (stride is None or value.stride() == stride)
        and (device is None or value.device == device)
    )


def subclass_is(
    value: Any,
    kind: Any,
    dtype: Any,
    keys: int,
    grad: bool,
    shape: Any,
    stride: Any,
    device: Any,
) -> bool:
    """Checks a TENSOR guard of a tensor subclass, without a call of its hooks. shape: None for
    sizes that may change."""
    if type(value) is not kind:
        return False
    with torch_private.functions_off():
        return (
            value.dtype is dtype
            and key_set(value).raw_repr() == keys
            and value.requires_grad is grad
            and value.ndim == len(shape)
            and all(n is None or n == size for n, size in zip(shape, value.shape, strict=True))
            and (stride is None or value.stride() == stride)
            and value.device == device
        )


def tensor_text(facts: TensorFacts, value: str, constant: Callable[[Any], str]) -> str:
    """Returns the text of a TENSOR guard."""
    if facts.type in torch_private.BASE_TENSOR_TYPES:
        return " and ".join(tensor_checks(facts, value, constant).values())
    stride = None if facts.stride is None else tuple(facts.stride)
    arguments = [value, constant(facts.type), constant(facts.dtype), str(facts.keys)]
    arguments += [str(facts.requires_grad), repr(tuple(facts.shape)), repr(stride)]
    return f"subclass_is({', '.join([*arguments, constant(facts.device)])})"


def tensor_call(facts: TensorFacts, value: str, constant: Callable[[Any], str]) -> str:
    """Returns the text of a `tensor_is` call for a TENSOR guard, or "" where a size is symbolic."""
    if None in facts.shape or facts.type not in torch_private.BASE_TENSOR_TYPES:
        return ""
    stride = None if facts.stride is None else tuple(facts.stride)
    arguments = [value, constant(facts.type), constant(facts.dtype), str(facts.keys)]
    arguments += [str(facts.requires_grad), repr(tuple(facts.shape)), repr(stride)]
    if facts.device.type not in _ONE_OF_A_KIND:
        arguments.append(constant(facts.device))
    return f"tensor_is({', '.join(arguments)})"
