"""Calls that write to memory which another argument aliases.

A functional operator reads everything before it writes anything. Where eager's result, or its
error, could differ because of aliasing, the call is made element by element in eager's order (list
operators on the CPU), or LoweringUnsupported is raised and the graph runs eagerly.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracer_core.aot import memory_overlap
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.ops.calls import (
    AUGMENTED,
    KEYWORD_OPERATORS,
    WITHOUT_A_WRITE,
    is_elementwise,
    name_of,
)
from tracer_core.torch_private.names import classes, names
from tracer_core.torch_private.needed import OpOverload, pytree

#: Running statistics among the arguments of normalizations: their positions and names.
_STATISTICS: dict[Any, tuple[int, int]] = {
    **dict.fromkeys(names("batch_norm instance_norm", of="nn.functional"), (1, 2)),
    **dict.fromkeys(names("batch_norm instance_norm native_batch_norm"), (3, 4)),
    **dict.fromkeys(
        names("batch_norm.default instance_norm.default native_batch_norm.default", of="ops.aten"),
        (3, 4),
    ),
}
_RUNNING = ("running_mean", "running_var")

#: Types of functions that are one operator.
_SINGLE = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    *classes("_ops.OpOverload"),
)


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor argument of a call. slot: which argument. position: in its list, or None."""

    tensor: torch.Tensor
    slot: int | str
    position: int | None
    written: bool


class Clash(Exception):
    """Two tensors of a call share memory.

    in_order: whether running the elements of its lists in eager's order is enough.
    """

    def __init__(self, reason: str, in_order: bool) -> None:
        super().__init__(reason)
        self.in_order = in_order


class Watched(TorchFunctionMode):
    """Checks each call that writes inside the block; for Python functions in a captured graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not writes(func, kwargs):
            return func(*args, **kwargs)
        return call(func, func, args, kwargs, None)


def may_hold_calls(function: Any) -> bool:
    """Whether a captured call is a Python function, which may make several calls."""
    return not isinstance(function, _SINGLE)


def writes(function: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may write to its arguments."""
    return _is_writer(function) or kwargs.get("out") is not None


@functools.cache
def _is_writer(function: Any) -> bool:
    name = name_of(function)
    if name in WITHOUT_A_WRITE or function in KEYWORD_OPERATORS:
        return False
    if isinstance(function, OpOverload) and function._schema.is_mutable:
        return True
    return function in _STATISTICS or name.endswith("_") or name == "setitem" or name in AUGMENTED


def call(
    function: Any,
    run: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    eager: Any,
) -> Any:
    """Computes ``run(*args, **kwargs)``, the call of a function that `writes`.

    eager: (args, kwargs) as eager has them, if known: functional values of tensors with gaps have
    another layout.
    """
    try:
        require_apart(function, args, kwargs)
        if eager is not None and name_of(function) != "setitem":
            require_apart(function, *eager)
    except Clash as clash:
        if not clash.in_order:
            raise LoweringUnsupported(str(clash)) from None
        return _run_in_order(function, run, args, kwargs, eager, str(clash))
    return run(*args, **kwargs)


def require_apart(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises Clash where a tensor that the call writes to overlaps with another one, or with
    itself.
    """
    name = name_of(function)
    items = list(_given(function, name, args, kwargs))
    for item in items:
        if item.written and memory_overlap.overlaps_itself(item.tensor):
            raise Clash(f"{name} writes to a tensor whose elements share memory", False)
    sharing: dict[int, list[Given]] = {}
    for value in items:
        sharing.setdefault(memory_overlap.storage(value.tensor), []).append(value)
    later: Clash | None = None
    for group in sharing.values():
        for first, other in _near(group) if len(group) > 1 else ():
            if first.written or other.written:
                clash = _clash(function, name, first, other)
                if clash is not None and not clash.in_order:
                    raise clash
                later = later or clash
    if later is not None:
        raise later


def _near(group: list[Given]) -> Iterator[tuple[Given, Given]]:
    """Yields the pairs that may overlap."""
    at = [(memory_overlap.MemoryRange.of(member.tensor), member) for member in group]
    static = all(place.static for place, _ in at)
    if static:
        at.sort(key=lambda entry: entry[0].start)
    for index, (place, item) in enumerate(at):
        end = place.end()
        for other_place, other in at[index + 1 :]:
            if static and other_place.start >= end:
                break
            if not memory_overlap.apart(place, other_place):
                yield item, other


def _clash(function: Any, name: str, item: Given, other: Given) -> Clash | None:
    """Returns the Clash of two tensors that may overlap, one of which is written to, or None."""
    reason = f"{name} writes to memory that it is given by another name"
    if item.position is not None and other.position is not None and item.position != other.position:
        return Clash(reason, name.startswith("_foreach_") and name.endswith("_"))
    reads_first = not (item.written and other.written) and is_elementwise(name)
    if reads_first and memory_overlap.same(item.tensor, other.tensor):
        return None
    return Clash(reason, False)


def _given(
    function: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[Given]:
    """Yields the tensors of a call. Lists of lists (indices) count as one list."""
    slots: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    if name == "setitem" and len(args) == 3:
        slots = [(0, _target(*args)), *slots[1:]]
    for slot, value in slots:
        written = _writes_to(function, name, slot, kwargs)
        is_list = isinstance(value, (list, tuple))
        for position, item in enumerate(value if is_list else (value,)):
            strided = isinstance(item, torch.Tensor) and item.layout is torch.strided
            if strided and not item.is_nested:
                yield Given(item, slot, position if is_list else None, written)


def _writes_to(function: Any, name: str, slot: int | str, kwargs: Mapping[str, Any]) -> bool:
    if isinstance(function, OpOverload):
        named = {argument.name: argument for argument in function._schema.arguments}
        argument = list(named.values())[slot] if isinstance(slot, int) else named.get(slot)
        alias = None if argument is None else argument.alias_info
        if alias is not None and alias.is_write:
            return True
    if function in _STATISTICS:
        return slot in _STATISTICS[function] or slot in _RUNNING
    if name.startswith("_fused_"):
        return True  # parameters, gradients (scaled), states, counters
    if name == "_amp_foreach_non_finite_check_and_unscale_":
        return slot in (0, 1, "self", "found_inf")
    if kwargs.get("out") is not None:
        return slot == "out"
    return slot in (0, "self", "input")


def _target(receiver: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Returns what ``receiver[index] = value`` writes to, or all of `receiver`."""
    parts = index if isinstance(index, tuple) else (index,)
    numbers = (int, torch.SymInt)
    basic = all(
        part is None
        or part is Ellipsis
        or isinstance(part, slice)
        or (isinstance(part, numbers) and not isinstance(part, bool))
        for part in parts
    )
    if not basic or not isinstance(value, torch.Tensor):
        return receiver
    apart = memory_overlap.storage(value) != memory_overlap.storage(receiver)
    return receiver if apart else receiver.detach()[index]


def _run_in_order(
    function: Any,
    run: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    eager: Any,
    reason: str,
) -> Any:
    """Runs a call on lists element by element, in the order of eager's CPU kernels."""
    first = args[0] if args else kwargs["self"]
    tensors = [
        leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        raise LoweringUnsupported(f"{reason}: kernels work on several elements at once")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise LoweringUnsupported(f"{reason}, and gradients pass through it")
    for position in range(len(first)):
        single = _single(args, kwargs, position)
        try:
            require_apart(function, *single)
            if eager is not None:
                require_apart(function, *_single(eager[0], eager[1], position, strips=False))
        except Clash as clash:
            raise LoweringUnsupported(str(clash)) from None
        run(*single[0], **single[1])
    return None if isinstance(function, OpOverload) else first


def _single(
    args: Sequence[Any], kwargs: Mapping[str, Any], position: int, strips: bool = True
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments for one element of the lists. strips: also index a tensor that has one
    number per element.
    """

    def one_of(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [value[position]]
        if strips and isinstance(value, torch.Tensor) and value.dim() == 1:
            return value[position : position + 1]
        return value

    named = {name: one_of(value) for name, value in kwargs.items()}
    return [one_of(value) for value in args], named
