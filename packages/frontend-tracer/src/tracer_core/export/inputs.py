"""The inputs of a package: takes the arguments of a call apart, and refuses those that the package
was not made for.

The rules stand in the manifest: the parameters, the structure of each, and of each tensor its
dtype, device, sizes (a number, or the name of a symbol with its range) and strides.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.errors import InputMismatchError
from tracer_core.execution.store.values import (
    Mismatch,
    as_text,
    constant,
    is_same,
    labels_of,
    leaves,
    shown,
    value_of,
)
from tracer_core.torch_private import storage_id
from tracer_core.torch_private.needed import key_set

#: What texts of conditions and strides may call.
_FUNCTIONS = {"math": math, "max": max, "min": min, "abs": abs, "float": float, "int": int}


def signature_of(parameters: list[dict[str, Any]]) -> inspect.Signature:
    """Returns the signature that a manifest describes."""
    return inspect.Signature(
        [
            inspect.Parameter(
                parameter["name"],
                getattr(inspect.Parameter, parameter["kind"]),
                default=_default(parameter) if parameter["optional"] else inspect.Parameter.empty,
            )
            for parameter in parameters
        ]
    )


#: Kind of a parameter -> its value in calls without such arguments.
_EMPTY: dict[str, Any] = {"VAR_POSITIONAL": (), "VAR_KEYWORD": {}}


class _OfTheProgram:
    """Shown as the default of a parameter whose value only the program has."""

    def __repr__(self) -> str:
        return "..."


def _default(parameter: dict[str, Any]) -> Any:
    node = parameter["default"]
    return _OfTheProgram() if node is None else value_of(node)


def _text(text: str, argument: str, name: str) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = eval(
        compile(f"lambda {argument}: {text}", f"<package {name}>", "eval"), dict(_FUNCTIONS)
    )
    return function


class ArgumentReader:
    """Reads the tensors of calls, in the order of the manifest's inputs."""

    def __init__(self, name: str, manifest: dict[str, Any]) -> None:
        self._name = name
        self._parameters: list[dict[str, Any]] = manifest["parameters"]
        self._n_tensors = len(manifest["graphs"][0]["inputs"])
        self.signature = signature_of(self._parameters)
        kinds = [parameter["kind"] for parameter in self._parameters]
        usual = all(kind.startswith("POSITIONAL") for kind in kinds)
        self._positional = [item["name"] for item in self._parameters] if usual else [""] * 256

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Returns the tensors of a call. Raises InputMismatchError where the other arguments are not
        those that the package was made for."""
        if not kwargs and len(args) == len(self._positional):  # the usual call, without bind's cost
            arguments = dict(zip(self._positional, args, strict=True))
        else:
            try:
                arguments = self.signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{self._name}{self.signature}: {error}") from None
        tensors: list[Any] = [None] * self._n_tensors
        try:
            for parameter in self._parameters:
                self._take(parameter, arguments, tensors)
        except Mismatch as error:
            raise InputMismatchError(
                self._name, error.where, error.expected, error.actual
            ) from None
        return tensors

    def _take(self, item: dict[str, Any], argument: dict[str, Any], tensors: list[Any]) -> None:
        """Puts the tensors of one argument in their places."""
        name, node = item["name"], item["structure"]
        if name not in argument and item["kind"] not in _EMPTY:
            if node is None or (item["optional"] and is_same(node, item["default"])):
                return
            raise Mismatch(name, shown(node), "nothing")
        value: Any = argument.get(name, _EMPTY.get(item["kind"]))
        if node is None:
            if item["default"] is not None and is_same(constant(value), item["default"]):
                return
            raise Mismatch(name, "calls without it", as_text(value))
        if item["kind"] == "VAR_KEYWORD":
            names = labels_of(node)
            if set(names) == set(value):
                value = {key: value[key] for key in names}
        for leaf, tensor, where in leaves(node, value, name):
            if not isinstance(tensor, torch.Tensor):
                raise Mismatch(where, "a tensor", as_text(tensor))
            tensors[leaf["tensor"]] = tensor


class Rules:
    """What one graph asks of the tensors of a call. same: groups of inputs that are one tensor."""

    def __init__(self, name: str, rules: dict[str, Any], same: list[list[int]]) -> None:
        self._name = name
        self._rows: list[dict[str, Any]] = rules["inputs"]
        self._rules = [None if row["unused"] else _rule(row) for row in self._rows]
        self._conditions = [
            (_text(item["check"], "t", name), item["says"]) for item in rules["conditions"]
        ]
        self._strides = _text(rules["strides"], "t", name)
        self._written = [i for i, row in enumerate(self._rows) if row["written"]]
        self._shared = same
        self._apart: bool = rules["distinct"]

    def mismatch(self, tensors: list[torch.Tensor]) -> InputMismatchError | None:
        """Returns why the graph does not take these tensors; None if it does."""
        try:
            self._check_all(tensors)
        except Mismatch as error:
            return InputMismatchError(self._name, error.where, error.expected, error.actual)
        return None

    def _check_all(self, tensors: list[torch.Tensor]) -> None:
        for tensor, rule, row in zip(tensors, self._rules, self._rows, strict=True):
            if rule is None or _fits(tensor, *rule):
                continue
            self._refuse(tensor, rule, row)
        for holds, says in self._conditions:
            if not holds(tensors):
                pairs = zip(self._rows, tensors, strict=True)
                sizes = ", ".join(f"{row['name']} of {tuple(item.shape)}" for row, item in pairs)
                raise Mismatch("its inputs", says, sizes)
        self._check_identity(tensors)

    def _refuse(self, tensor: torch.Tensor, rule: Any, row: dict[str, Any]) -> None:
        """Raises Mismatch naming what a tensor differs in."""
        dtype, device, bounds, keys = rule
        if type(tensor) not in _PLAIN:
            raise Mismatch(row["name"], "a plain tensor", f"a {type(tensor).__name__}")
        if tensor.device == device and key_set(tensor).raw_repr() not in keys:
            raise Mismatch(
                row["name"],
                "a strided tensor outside of torch.func, and not one that is conjugated or negated"
                " when it is read",
                f"one of {tensor.layout}",
            )
        other = tensor.dtype is not dtype or tensor.device != device
        if not other and tensor.dim() == len(bounds):
            ranged = [item is not None for item in row["ranges"]]
            for i, (now, (low, high)) in enumerate(zip(tensor.shape, bounds, strict=True)):
                if ranged[i] and not low <= now <= high:
                    wanted = in_range(row["ranges"][i])
                    raise Mismatch(f"{row['name']}.shape[{i}]", wanted, str(now))
        raise Mismatch(row["name"], described(row), as_text(tensor))

    def _check_identity(self, tensors: list[Any]) -> None:
        """Refuses tensors that share memory with one that the graph writes to, and other pairs of
        one object than those that the package was made for."""
        names = [row["name"] for row in self._rows]
        for first, *others in self._shared:
            for other in others:
                if tensors[other] is not tensors[first]:
                    where = f"{names[first]} and {names[other]}"
                    raise Mismatch(where, "one tensor for both", "two")
        if not (self._written or self._apart):
            return
        same = {frozenset((a, b)) for group in self._shared for a in group for b in group}
        for i, j in itertools.combinations(range(len(tensors)), 2):
            if {i, j} in same:
                continue
            where = f"{names[i]} and {names[j]}"
            if self._apart and tensors[i] is tensors[j]:
                raise Mismatch(where, "two tensors", "one for both")
            written = i in self._written or j in self._written
            if written and storage_id(tensors[i]) == storage_id(tensors[j]):
                raise Mismatch(where, "tensors in memory of their own", "some that share it")

    def laid_out(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors with the strides that the graph was compiled for: where only the
        strides of sizes of 1 differ as a view, else as a copy, which a tensor that is written to or
        of which a view is returned cannot be."""
        items = list(tensors)
        for i, strides in enumerate(self._strides(tensors)):
            tensor, row = tensors[i], self._rows[i]
            if strides is None or tensor.stride() == strides:
                continue
            sizes = tensor.shape
            if tensor.numel() == 0 or all(
                size == 1 or old == new
                for size, old, new in zip(sizes, tensor.stride(), strides, strict=True)
            ):
                items[i] = tensor.detach().as_strided(sizes, strides)
            elif row["kept"]:
                raise InputMismatchError(
                    self._name, row["name"], f"strides {strides}", f"strides {tensor.stride()}"
                )
            else:
                empty = torch.empty_strided(
                    sizes, strides, dtype=tensor.dtype, device=tensor.device
                )
                items[i] = empty.copy_(tensor.detach())
        return items


def _rule(row: dict[str, Any]) -> tuple[Any, ...]:
    """Returns what `_fits` compares."""
    device = torch.device(row["device"])
    bounds = [_bounds(*both) for both in zip(row["sizes"], row["ranges"], strict=True)]
    return getattr(torch, row["dtype"]), device, bounds, _plain_keys(device)


def _bounds(size: int | str, bounds: Sequence[int | None] | None) -> tuple[int, int]:
    """Returns the least and the largest value of a size."""
    if bounds is None:
        return int(size), int(size)
    lower, upper = bounds
    return lower or 0, 2**62 if upper is None else upper


def _fits(
    tensor: torch.Tensor,
    dtype: torch.dtype,
    device: torch.device,
    bounds: Sequence[tuple[int, int]],
    keys: frozenset[int],
) -> bool:
    """Returns whether a tensor is one that a row describes."""
    shape = tensor.shape
    if tensor.dtype is not dtype or len(shape) != len(bounds) or tensor.device != device:
        return False
    for now, (low, high) in zip(shape, bounds, strict=True):
        if not low <= now <= high:
            return False
    return type(tensor) in _PLAIN and key_set(tensor).raw_repr() in keys


@functools.cache
def _plain_keys(device: torch.device) -> frozenset[int]:
    """Returns the dispatch keys of tensors whose memory holds their values."""
    with torch.inference_mode():
        inference = key_set(torch.empty(0, device=device)).raw_repr()
    with torch.inference_mode(False):
        return frozenset({inference, key_set(torch.empty(0, device=device)).raw_repr()})


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether the memory of a tensor holds its values."""
    return key_set(tensor).raw_repr() in _plain_keys(tensor.device)


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def in_range(bounds: Sequence[int | None]) -> str:
    """Returns a range of sizes in words."""
    lower, upper = bounds
    return f"{lower} or more" if upper is None else f"{lower} to {upper}"


def described(row: dict[str, Any]) -> str:
    """Returns the tensor that a row asks for in words."""
    sizes = ", ".join(
        str(size) if bounds is None else in_range(bounds)
        for size, bounds in zip(row["sizes"], row["ranges"], strict=True)
    )
    comma = "," if len(row["sizes"]) == 1 else ""
    return f"a {row['dtype']} tensor of sizes ({sizes}{comma}) on {row['device']}"


def mismatch_of(
    name: str, rules: dict[str, Any], same: list[list[int]], tensors: list[torch.Tensor]
) -> InputMismatchError | None:
    """Returns why a graph with these rules does not take these tensors; None if it does."""
    return Rules(name, rules, same).mismatch(tensors)
