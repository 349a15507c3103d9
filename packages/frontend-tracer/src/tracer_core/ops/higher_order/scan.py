"""A loop over the slices of tensors as one operator, ``tracer_core::scan``.

A step takes (outer tensors, carry, one slice of each of the rows, numbers) and returns
(the carry, parts); the operator returns the last carry and the stacked parts,
all contiguous and without aliases. The step stands in the operator's argument `program`: the source
of an FX graph of functional ATen operators. A backend with kernels for such loops names the
operator in its `preserved_ops`; the gradient of a scan is a scan in the other direction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.ops.definitions import declare, implement

#: The operator's name in a backend's `preserved_ops`.
SCAN_OP_NAME = "tracer_core.scan.default"

SCAN = declare(
    "scan(Tensor[] outer, Tensor[] carry, Tensor[] rows, SymInt[] numbers, SymInt length,"
    " bool reverse, str program) -> Tensor[]"
)
#: The inclusive scan of contiguous rows. program: the step of a scan whose carry is the
#: combined slices, of pointwise operators alone; its parts are what it carries. Graphs have it where
#: gradients are off, for backends that keep `SCAN`.
ASSOCIATIVE = declare("associative_scan(Tensor[] rows, str program) -> Tensor[]")


# -- programs --


def program_of(graph: torch.fx.Graph) -> str:
    """Returns the source of a step. Raises LoweringUnsupported where it has none."""
    code = graph.python_code("self")
    unknown = [name for name in code.globals if name not in _names()]
    if unknown:
        raise LoweringUnsupported(f"the step of a scan names {', '.join(unknown)}")
    return code.src


@functools.lru_cache
def _names() -> Mapping[str, Any]:
    """The names that a program may use."""
    names = torch.fx.Graph().python_code("self").globals
    return {**names, "torch": torch, "device": torch.device, "inf": float("inf"),
            "nan": float("nan"), "NoneType": type(None)}  # fmt: skip


@functools.lru_cache(maxsize=256)
def function_of(program: str) -> Callable[..., Sequence[torch.Tensor]]:
    """Returns the step as a function of flat arguments."""
    space = dict(_names())
    exec(compile(program, "<step of a scan>", "exec"), space)
    return functools.partial(space["forward"], None)


# -- the operator --


def _kernel(
    outer: Sequence[torch.Tensor],
    carry: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
    numbers: Sequence[int],
    length: int,
    reverse: bool,
    program: str,
) -> list[torch.Tensor]:
    """Runs the steps one after the other, operator by operator."""
    step, count = function_of(program), len(carry)
    state = list(carry)
    parts: list[Sequence[torch.Tensor]] = []
    for k in range(length - 1, -1, -1) if reverse else range(length):
        results = step(*outer, *state, *(row.select(0, k) for row in rows), *numbers)
        state = list(results[:count])
        parts.append(results[count:])
    if reverse:
        parts.reverse()
    stacked = [torch.stack(list(pair)) for pair in zip(*parts, strict=True)]
    return [*(torch.clone(item, memory_format=torch.contiguous_format) for item in state), *stacked]


def _fake(
    outer: Sequence[torch.Tensor],
    carry: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    length: Any,
    reverse: bool,
    program: str,
) -> list[torch.Tensor]:
    inputs = [*outer, *carry, *(row.select(0, 0) for row in rows)]
    results = function_of(program)(*inputs, *numbers)
    count = len(carry)
    sizes = [*(tuple(result.shape) for result in results[:count]),
             *((length, *result.shape) for result in results[count:])]  # fmt: skip
    return [
        result.new_empty(size, dtype=result.dtype, device=result.device)
        for result, size in zip(results, sizes, strict=True)
    ]


def by_tree(rows: Sequence[torch.Tensor], program: str) -> list[torch.Tensor]:
    """The operator `ASSOCIATIVE` in ATen operators, as many as for a tree of slices."""
    step = function_of(program)

    def combine(left: list[Any], right: list[Any]) -> Sequence[Any]:
        return step(*left, *right)[: len(rows)]

    return [item.contiguous() for item in scanned_by_tree(combine, list(rows))]


def in_sequence(rows: Sequence[torch.Tensor], program: str) -> list[torch.Tensor]:
    """The operator `ASSOCIATIVE` as a scan, one slice after the other."""
    first, rest = [row[:1] for row in rows], [row[1:] for row in rows]
    scan = SCAN([], [item[0] for item in first], rest, [], rest[0].shape[0], False, program)
    parts = scan[len(rows) :]
    return [torch.cat([item, part]) for item, part in zip(first, parts, strict=True)]


def _associative_kernel(rows: Sequence[torch.Tensor], program: str) -> list[torch.Tensor]:
    return [item.clone() for item in by_tree(rows, program)]


def _associative_fake(rows: Sequence[torch.Tensor], program: str) -> list[torch.Tensor]:
    return [row.new_empty(row.shape) for row in rows]


implement(SCAN, _kernel, _fake)
implement(ASSOCIATIVE, _associative_kernel, _associative_fake)


# -- a captured scan --


@dataclass(eq=False)
class CapturedScan:
    """The call target of a captured scan. step: takes (outer values, carry, slices) and
    returns (carry, parts)."""

    step: torch.fx.GraphModule
    n_outer: int
    n_live: int

    def parts_of(self, inputs: Sequence[Any]) -> list[Any]:
        """Returns (outer values, carry, rows) of the node's inputs."""
        return list(inputs)


def scanned_by_tree(
    combine: Callable[[list[Any], list[Any]], Sequence[Any]], items: list[Any]
) -> list[Any]:
    """Returns the inclusive scan of the slices of tensors, by a tree of depth log2(length).

    combine: of as many slices on the left and on the right.
    """
    length = items[0].shape[0]
    if length < 2:
        return items
    left, right = [item[: length - 1 : 2] for item in items], [item[1::2] for item in items]
    odd = scanned_by_tree(combine, list(combine(left, right)))
    even = [item[:1] for item in items]
    if length > 2:
        left = [item[: (length - 1) // 2] for item in odd]
        rest = combine(left, [item[2::2] for item in items])
        even = [torch.cat([first, others]) for first, others in zip(even, rest, strict=True)]
    full = length - length % 2  # the last element of an odd length has no partner
    both = [
        torch.stack([a[: full // 2], b], 1).flatten(0, 1) for a, b in zip(even, odd, strict=True)
    ]
    if full < length:
        both = [torch.cat([pairs, a[full // 2 :]]) for pairs, a in zip(both, even, strict=True)]
    return both


@dataclass(frozen=True, slots=True)
class Scan:
    """How a captured scan runs as the operator. order: for each input of the program, outer values
    first, which input of the captured node it is. n_outer, n_live, n_rows: how many inputs of
    each kind; numbers follow. forward: the program; saving: also returns the carry that
    it was given, as parts (None: no gradients). backward: takes (outer), (gradients of the carry,
    sums of the gradients of outer), (carry, rows, gradients of parts) and returns (these
    gradients and sums), (gradients of rows). differentiable: the positions of the outer tensors
    and of the rows that get a gradient; fixed: the results that require none. settings: those
    that the programs were made under. pointwise: the step reads nothing but what it carries and its
    slices, by pointwise operators."""

    order: tuple[int, ...]
    n_outer: int
    n_live: int
    n_rows: int
    forward: str
    settings: Any
    saving: str | None = None
    backward: str | None = None
    outer_gradients: tuple[int, ...] = ()
    row_gradients: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()
    pointwise: bool = False

    def associative(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Calls the operator `ASSOCIATIVE`."""
        self.require_same_settings()
        return list(ASSOCIATIVE([leaf.contiguous() for leaf in leaves], self.forward))

    def require_same_settings(self) -> None:
        """Raises LoweringUnsupported where the programs' operators would do something else."""
        if settings() != self.settings:
            raise LoweringUnsupported("a scan under autocast or another default dtype")

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        self.require_same_settings()
        arguments = [inputs[place] for place in self.order]
        tensors = [item.contiguous() for item in arguments[: self.n_tensors]]
        numbers, length = arguments[self.n_tensors :], tensors[-1].shape[0]
        if self.saving is not None and torch.is_grad_enabled():
            result: Any = _Gradient.apply(self, numbers, length, *tensors)  # type: ignore[no-untyped-call]
            return list(result)
        return list(SCAN(*self.parted(tensors), numbers, length, False, self.forward))

    @property
    def n_tensors(self) -> int:
        return self.n_outer + self.n_live + self.n_rows

    def parted(self, tensors: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns the outer tensors, the carry and the rows."""
        first, second = self.n_outer, self.n_outer + self.n_live
        return list(tensors[:first]), list(tensors[first:second]), list(tensors[second:])


def settings() -> Any:
    """The state that changes what a program's operators do."""
    casts = tuple(
        (device, torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    )
    return casts, torch.get_default_dtype()


class _Gradient(torch.autograd.Function):
    """The operator's autograd formula."""

    @staticmethod
    def forward(ctx: Any, scan: Scan, numbers: Any, length: Any, *tensors: Any) -> Any:
        outer, carry, rows = scan.parted(tensors)
        assert scan.saving is not None
        results = SCAN(outer, carry, rows, numbers, length, False, scan.saving)
        count = len(results) - scan.n_live
        ctx.mark_non_differentiable(*(results[place] for place in scan.fixed))
        ctx.save_for_backward(*outer, *rows, *results[count:])
        ctx.rest = scan, numbers, length
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        scan, numbers, length = ctx.rest
        saved = ctx.saved_tensors
        outer, rows = saved[: scan.n_outer], saved[scan.n_outer : scan.n_outer + scan.n_rows]
        states = saved[scan.n_outer + scan.n_rows :]
        wanted = [k for k in range(len(grads)) if k not in scan.fixed]
        dense = [grads[k].contiguous() for k in wanted]
        of_live = [g for g, k in zip(dense, wanted, strict=True) if k < scan.n_live]
        of_parts = [g for g, k in zip(dense, wanted, strict=True) if k >= scan.n_live]
        sums = [torch.zeros_like(outer[k]) for k in scan.outer_gradients]
        results = SCAN(
            list(outer),
            [*of_live, *sums],
            [*states, *rows, *of_parts],
            numbers,
            length,
            True,
            scan.backward,
        )
        result: list[Any] = [None] * scan.n_tensors
        after = iter(results)
        for k in wanted:
            if k < scan.n_live:
                result[scan.n_outer + k] = next(after)
        for k in scan.outer_gradients:
            result[k] = next(after)
        for k in scan.row_gradients:
            result[scan.n_outer + scan.n_live + k] = next(after)
        return None, None, None, *result


#: The captured scans, conds and loops of the graph that is lowered now: how each runs as an
#: operator (`Scan`, ...), or why it does not.
SCANS: ContextVar[Mapping[Any, Any]] = ContextVar("SCANS", default={})  # noqa: B039 (never mutated)


def is_lowered(value: Any) -> bool:
    """Returns whether a value stands for one of a graph that is captured or lowered now."""
    return torch_private.is_fake(value) or torch_private.is_functional(value)
