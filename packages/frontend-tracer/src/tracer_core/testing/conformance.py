"""What a backend must get right, as a table: small graphs over dtypes and shapes, without the tracer.

In: the name of an installed backend (or a `Backend`). Out: one `Row` a case. A row is ``ok`` (the backend ran
it all and the result is eager's), ``partly`` or ``eager`` (some or all of it ran eagerly, with the reason),
or ``wrong`` or ``error`` with what happened.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tracer_core.dispatch import compile_graph, fallback_of
from tracer_core.plugin_api import Backend
from tracer_core.testing.compare import Mismatch, Tolerance, compare, compare_aliasing
from tracer_core.testing.torch_graph import torch_graph
from tracer_core.validation import build_config


@dataclass(frozen=True, slots=True)
class Case:
    """fn: the program. inputs: ``(dtype, shape) -> its inputs``. dtypes: that it makes sense for."""

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[torch.dtype, tuple[int, ...]], tuple[Any, ...]]
    dtypes: Sequence[torch.dtype]
    shapes: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one case; see the module's docstring."""

    case: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    status: str
    detail: str = ""


FLOATS = (torch.float32, torch.float64, torch.bfloat16)
ANY = (*FLOATS, torch.int64, torch.int32, torch.bool)
NUMBERS = (*FLOATS, torch.int64, torch.int32)
SHAPES = ((), (1,), (0,), (7,), (3, 5), (1, 5), (2, 0, 3), (2, 3, 4, 5))
MATRICES = ((3, 5), (1, 1), (4, 1))


def make(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A seeded tensor: floats around 0, small ints, booleans."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _one(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return (make(dtype, shape),)


def _two(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(dtype, shape), make(dtype, shape).flip(list(range(len(shape))))


def _matrices(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(dtype, shape), make(dtype, (shape[1], 6))


def _images(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(dtype, shape), make(dtype, (4, shape[1], 3, 3))


def _table(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(torch.int64, shape).abs(), make(dtype, (10, 4))


def _write(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).sum()


def _write_a_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x[0].add_(1)
    return x.t(), x


def _swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x - y


def _shared_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + x
    return y, y.t(), y[0], y


CASES: tuple[Case, ...] = (
    Case("add", lambda x, y: x + y, _two, NUMBERS, SHAPES),
    Case("mul and sub", lambda x, y: x * y - x, _two, NUMBERS, SHAPES),
    Case("true division", lambda x, y: x / (y * y + 1), _two, NUMBERS, SHAPES),
    Case("comparison and where", lambda x, y: torch.where(x > y, x, y), _two, NUMBERS, SHAPES),
    Case("logic", lambda x, y: (x & y) | ~x, _two, (torch.bool, torch.int64), SHAPES),
    Case("transcendental", lambda x: (x.exp() + x.sin()).tanh() * x.abs().sqrt(), _one, FLOATS, SHAPES),
    Case("activations", lambda x: F.gelu(F.silu(F.relu(x))) + x.sigmoid(), _one, FLOATS, SHAPES),
    Case("clamp", lambda x: x.clamp(-1, 2), _one, NUMBERS, SHAPES),
    Case("cast", lambda x: (x.to(torch.float32), x.to(torch.int64)), _one, ANY, SHAPES),
    Case("promotion", lambda x: x + 1.5, _one, ANY, SHAPES),
    Case("sum", lambda x: (x.sum(), x.sum(-1, keepdim=True)), _one, NUMBERS, SHAPES[1:]),
    Case("mean and var", lambda x: (x.mean(-1), x.var(-1)), _one, FLOATS, ((7,), (3, 5), (2, 3, 4, 5))),
    Case("max and argmax", lambda x: (x.amax(-1), x.argmax(-1)), _one, NUMBERS, ((7,), (3, 5), (1, 1))),
    Case("softmax", lambda x: (x.softmax(-1), x.log_softmax(0)), _one, FLOATS, ((7,), (3, 5), (1, 1))),
    Case("layer norm", lambda x: F.layer_norm(x, x.shape[-1:]), _one, FLOATS, ((7,), (3, 5), (2, 3, 4, 5))),
    Case("matmul", lambda x, y: x @ y, _matrices, FLOATS, MATRICES),
    Case("linear and relu", lambda x, y: F.linear(x, y.t()).relu(), _matrices, FLOATS, MATRICES),
    Case("convolution", lambda x, w: F.conv2d(x, w, padding=1), _images, (torch.float32,), ((2, 3, 8, 8),)),
    Case("pooling", lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), _one, FLOATS[:2], ((2, 3, 8, 8),)),
    Case("embedding", F.embedding, _table, FLOATS, ((3,), (2, 5))),
    Case("permute", lambda x: (x + 1).permute(1, 0), _one, ANY[:5], MATRICES),
    Case("view of an input", lambda x: (x.t(), x[0]), _one, ANY, MATRICES),
    Case("views of one result", _shared_views, _one, NUMBERS, MATRICES),
    Case("split", lambda x: (x * 2).chunk(2, -1), _one, NUMBERS, ((3, 6), (4, 2))),
    Case("cat", lambda x, y: torch.cat([x, y, x], 0), _two, ANY, ((3, 5), (1,), (2, 0, 3))),
    Case("expand", lambda x: (x + 1).expand(4, *x.shape), _one, NUMBERS, MATRICES),
    Case("result is an input", lambda x, y: (y, x + y, x), _two, NUMBERS, MATRICES),
    Case("constants", lambda x: (x * 2, torch.ones(3), torch.tensor(5)), _one, NUMBERS, MATRICES),
    Case("in place", _write, _one, NUMBERS, MATRICES),
    Case("in place through a view", _write_a_view, _one, NUMBERS, MATRICES),
    Case("inputs swapped", _swap, _two, NUMBERS, MATRICES),
)


def conformance(
    backend: Backend | str,
    *,
    cases: Sequence[Case] = CASES,
    dtypes: Sequence[torch.dtype] = ANY,
    options: Any = None,
) -> tuple[Row, ...]:
    """Runs every case in those of its dtypes that are in `dtypes`; see the module's docstring. Raises what `compile()`
    raises if the backend cannot run at all."""
    config = build_config(backend=backend, options=options)
    return tuple(_rows(cases, dtypes, config))


def _rows(cases: Sequence[Case], dtypes: Sequence[torch.dtype], config: Any) -> Iterator[Row]:
    for case in cases:
        for dtype in (dtype for dtype in case.dtypes if dtype in dtypes):
            for shape in case.shapes:
                status, detail = _run(case, dtype, shape, config)
                yield Row(case.name, dtype, shape, status, detail)


def _run(case: Case, dtype: torch.dtype, shape: tuple[int, ...], config: Any) -> tuple[str, str]:
    inputs = case.inputs(dtype, shape)
    with torch.no_grad():
        mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
        expected = case.fn(*theirs)
        captured = torch_graph(case.fn, copy.deepcopy(inputs))
        extra = captured.real_inputs[len(inputs) :]
        try:
            runner = compile_graph(captured, config)
            for given in (copy.deepcopy(inputs), mine):  # the first call is checked, the second is the usual
                result = runner([*given, *extra])
        except Exception as error:  # a row says what went wrong; the table goes on
            return "error", f"{type(error).__name__}: {error}"
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
    try:
        compare(expected, tuple(result), _tolerance(dtype))
        compare(theirs, mine, _tolerance(dtype), "inputs")
        compare_aliasing([theirs, expected], [mine, tuple(result)])
    except Mismatch as mismatch:
        return "wrong", str(mismatch)
    fallback = fallback_of(runner)
    if fallback is None:
        return "ok", ""
    return ("partly" if fallback.kind == "unsupported" else "eager"), fallback.reason


def _tolerance(dtype: torch.dtype) -> Tolerance:
    if dtype is torch.bfloat16:
        return Tolerance(2e-2, 2e-2)
    return Tolerance(1e-4, 1e-5) if dtype is torch.float32 else Tolerance()


def table(rows: Sequence[Row]) -> str:
    """The rows as text: one line a case with its counts, then every row that is not ``ok``."""
    lines = []
    for name in dict.fromkeys(row.case for row in rows):
        mine = [row.status for row in rows if row.case == name]
        counts = ", ".join(f"{mine.count(status)} {status}" for status in dict.fromkeys(mine))
        lines.append(f"{name:28} {counts}")
    for row in rows:
        if row.status != "ok":
            lines.append(f"  {row.case} {row.dtype} {row.shape}: {row.status}: {row.detail.splitlines()[0]}")
    return "\n".join(lines)
