"""Comparison of results, as far as a program can tell them apart.

In: two structures of tensors and Python values. Out: nothing, or a Mismatch that names the place.
Compared are types, shapes, dtypes, strides, devices, `requires_grad`, values (tensors within
tolerance, everything else by equality), and which tensors are the same object or share memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.guards.numpy_types import ARRAY
from tracer_core.torch_private.memory_layout import same_strides


class Mismatch(AssertionError):
    """Two runs of a program differ. path: where, such as ``result[0].logits``."""

    def __init__(self, path: str, detail: str) -> None:
        self.path, self.detail = path, detail
        super().__init__(f"{path}: {detail}")


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """rtol, atol: None takes torch.testing's values for the dtype. strides: compare them."""

    rtol: float | None = None
    atol: float | None = None
    strides: bool = True


def compare(
    expected: Any, actual: Any, tolerance: Tolerance | None = None, path: str = "result"
) -> None:
    """Raises Mismatch at the first difference."""
    tolerance = tolerance or Tolerance()
    if type(expected) is not type(actual):
        raise Mismatch(path, f"type {type(actual).__name__}, expected {type(expected).__name__}")
    if isinstance(expected, torch.Tensor):
        compare_tensors(expected, actual, tolerance, path)
        return
    if isinstance(expected, ARRAY) and _is_rounded(expected, actual):
        compare_tensors(torch.tensor(expected), torch.tensor(actual), tolerance, path)
        return
    children = _children(expected)
    if children is None:
        _compare_values(expected, actual, path)
        return
    others = dict(_children(actual) or ())
    names = [name for name, _ in children]
    if names != list(others):
        raise Mismatch(path, f"has {list(others)}, expected {names}")
    for name, child in children:
        compare(child, others[name], tolerance, path + name)


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container with the text that reaches them; None for anything else."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f".{name}", getattr(value, name)) for name in names]
    return None


def _compare_values(expected: Any, actual: Any, path: str) -> None:
    if isinstance(expected, ARRAY):
        _compare_arrays(expected, actual, path)
        return
    if expected is actual or expected == actual:
        return
    if isinstance(expected, float) and (
        math.isclose(expected, actual, rel_tol=1e-6)
        or (math.isnan(expected) and math.isnan(actual))
    ):
        return
    if type(expected).__eq__ is object.__eq__ and hasattr(expected, "__dict__"):  # type: ignore[comparison-overlap]
        return  # an object without equality: its type is all that can be compared
    raise Mismatch(path, f"{actual!r}, expected {expected!r}")


def _is_rounded(expected: Any, actual: Any) -> bool:
    return bool(expected.dtype == actual.dtype and expected.dtype.kind == "f")


def _compare_arrays(expected: Any, actual: Any, path: str) -> None:
    same = expected.dtype == actual.dtype and expected.shape == actual.shape
    if not same or expected.tobytes() != actual.tobytes():
        raise Mismatch(path, f"{actual!r}, expected {expected!r}")


def compare_tensors(
    expected: torch.Tensor, actual: torch.Tensor, tolerance: Tolerance, path: str
) -> None:
    """Raises Mismatch where two tensors differ in layout or value."""
    for what in ("dtype", "shape", "device", "layout", "requires_grad"):
        want, got = getattr(expected, what), getattr(actual, what)
        if want != got:
            raise Mismatch(path, f"{what} {got}, expected {want}")
    compared = tolerance.strides and expected.layout is torch.strided
    if compared and not same_strides(expected, actual):
        raise Mismatch(path, f"strides {actual.stride()}, expected {expected.stride()}")
    try:
        torch.testing.assert_close(
            actual.detach(),
            expected.detach(),
            rtol=tolerance.rtol,
            atol=tolerance.atol,
            equal_nan=True,
        )
    except AssertionError as error:
        raise Mismatch(path, str(error)) from None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a structure, in order."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    for _, child in _children(value) or ():
        yield from tensors_in(child)


def compare_aliasing(
    expected: Sequence[Any], actual: Sequence[Any], path: str = "aliasing"
) -> None:
    """Raises Mismatch if tensors are the same object, or share memory, on one side only.

    expected, actual: structures that hold equally many tensors, such as ``[arguments, result]``.
    """
    for relation, key in (("object", id), ("memory", _memory)):
        want = _classes([key(tensor) for tensor in tensors_in(expected)])
        got = _classes([key(tensor) for tensor in tensors_in(actual)])
        if want != got:
            raise Mismatch(path, f"tensors with the same {relation}: {got}, expected {want}")


def _memory(tensor: torch.Tensor) -> int:
    return torch_private.storage_id(tensor) if tensor.layout is torch.strided else id(tensor)


def _classes(keys: Sequence[int]) -> list[int]:
    """For each key the position of the first equal one."""
    first: dict[int, int] = {}
    return [first.setdefault(key, index) for index, key in enumerate(keys)]


def relative_error(truth: Any, value: Any) -> float:
    """Returns the largest relative error of the floating-point tensors in `value`, in the 2-norm.

    Args:
        truth: The same structure in float64.
        value: What is compared.
    """
    worst = 0.0
    for exact, tensor in zip(tensors_in(truth), tensors_in(value), strict=True):
        if tensor.is_floating_point() and tensor.numel():
            reference = exact.detach().double()
            size = float(reference.norm()) or 1.0
            worst = max(worst, float((tensor.detach().double() - reference).norm()) / size)
    return worst


def error_ratio(truth: Any, eager: Any, compiled: Any) -> float:
    """How many times eager's own error the compiled result has, against float64 truth.

    An eager error below half a unit in the last place counts as that much.
    """
    dtypes = [tensor.dtype for tensor in tensors_in(eager) if tensor.is_floating_point()]
    floor = max((torch.finfo(dtype).eps / 2 for dtype in dtypes), default=1e-16)
    return relative_error(truth, compiled) / max(relative_error(truth, eager), floor)
