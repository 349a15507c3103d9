"""Small graphs over dtypes, shapes and layouts, and what a program does with views and writes.

In: nothing. Out: `CASES`. What always holds: a case is a pure function of its inputs, made from a
seed of its shape; it runs in eager mode in every dtype and shape that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Case:
    """fn: the program. inputs: ``(dtype, shape) -> its inputs``. dtypes: that it makes sense for.
    area: what of the support matrix it belongs to."""

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[torch.dtype, tuple[int, ...]], tuple[Any, ...]]
    dtypes: Sequence[torch.dtype]
    shapes: Sequence[tuple[int, ...]]
    area: str = "operators"


FLOATS = (torch.float32, torch.float64, torch.bfloat16)
ANY = (*FLOATS, torch.int64, torch.int32, torch.bool)
NUMBERS = (*FLOATS, torch.int64, torch.int32)
SHAPES = ((), (1,), (0,), (7,), (3, 5), (1, 5), (2, 0, 3), (2, 3, 4, 5))
SHAPES_2D = ((3, 5), (1, 1), (4, 1))
ROWS = ((7,), (3, 5), (1, 1))
TENSORS = ((7,), (3, 5), (2, 3, 4, 5))
IMAGES = ((2, 3, 8, 8),)
FLOAT = (torch.float32,)


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


def _operands(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(dtype, shape), make(dtype, (shape[1], 6))


def _images(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(dtype, shape), make(dtype, (4, shape[1], 3, 3))


def _transposed(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(dtype, shape[::-1]).permute(*range(len(shape) - 1, -1, -1)), make(dtype, shape)


def _sliced(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    full = make(dtype, tuple(2 * size + 3 for size in shape))
    return full[tuple(slice(3, None, 2) for _ in shape)], make(dtype, shape)


def _expanded(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(dtype, (shape[0], *(1 for _ in shape[1:]))).expand(shape), make(dtype, shape)


def _channels_last(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    image, weight = _images(dtype, shape)
    return image.to(memory_format=torch.channels_last), weight


def _batches(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(dtype, shape), make(dtype, (*shape[:-2], shape[-1], 4))


def _indexed(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(3)
    return make(dtype, shape), torch.randint(0, shape[-1], shape, generator=generator)


def _table(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return make(torch.int64, shape).abs(), make(dtype, (10, 4))


def _write(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).sum()


def _write_a_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x[0].add_(1)
    return x.t(), x


def _swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    x.copy_(y)
    y.copy_(copy)
    return x - y


def _shared_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + x
    return y, y.t(), y[0], y


def _attention(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x.flip(-1), x + 1)


def _batch_norm(x: torch.Tensor) -> torch.Tensor:
    ends = ((-1, 1), (1, 2))
    mean, var = (torch.linspace(*end, x.shape[1], dtype=x.dtype) for end in ends)
    return F.batch_norm(x, mean, var)


def _scatter(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).scatter_add(-1, index, x)


def _both_orders(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + y, x * 2, x.sum(-1), (x - y).t()


OPERATORS: tuple[Case, ...] = (
    Case("add", lambda x, y: x + y, _two, NUMBERS, SHAPES),
    Case("mul and sub", lambda x, y: x * y - x, _two, NUMBERS, SHAPES),
    Case("true division", lambda x, y: x / (y * y + 1), _two, NUMBERS, SHAPES),
    Case("comparison and where", lambda x, y: torch.where(x > y, x, y), _two, NUMBERS, SHAPES),
    Case("logic", lambda x, y: (x & y) | ~x, _two, (torch.bool, torch.int64), SHAPES),
    Case("transcendental", lambda x: (x.exp() + x.sin()).tanh() * x.abs().sqrt(), _one, FLOATS,
         SHAPES),
    Case("activations", lambda x: F.gelu(F.silu(F.relu(x))) + x.sigmoid(), _one, FLOATS, SHAPES),
    Case("clamp", lambda x: x.clamp(-1, 2), _one, NUMBERS, SHAPES),
    Case("cast", lambda x: (x.to(torch.float32), x.to(torch.int64)), _one, ANY, SHAPES),
    Case("promotion", lambda x: x + 1.5, _one, ANY, SHAPES),
    Case("sum", lambda x: (x.sum(), x.sum(-1, keepdim=True)), _one, NUMBERS, SHAPES[1:]),
    Case("mean and var", lambda x: (x.mean(-1), x.var(-1)), _one, FLOATS, TENSORS),
    Case("max and argmax", lambda x: (x.amax(-1), x.argmax(-1)), _one, NUMBERS, ROWS),
    Case("softmax", lambda x: (x.softmax(-1), x.log_softmax(0)), _one, FLOATS, ROWS),
    Case("layer norm", lambda x: F.layer_norm(x, x.shape[-1:]), _one, FLOATS, TENSORS),
    Case("matmul", lambda x, y: x @ y, _operands, FLOATS, SHAPES_2D),
    Case("linear and relu", lambda x, y: F.linear(x, y.t()).relu(), _operands, FLOATS, SHAPES_2D),
    Case("convolution", lambda x, w: F.conv2d(x, w, padding=1), _images, FLOAT, IMAGES),
    Case("pooling", lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), _one, FLOATS[:2], IMAGES),
    Case("embedding", F.embedding, _table, FLOATS, ((3,), (2, 5))),
    Case("batched matmul", lambda x, y: x @ y, _batches, FLOATS, ((2, 3, 5), (1, 1, 1), (2, 2, 3,
         4))),
    Case("attention", _attention, _one, FLOATS, ((2, 3, 5, 8), (1, 1, 1, 4))),
    Case("group norm", lambda x: F.group_norm(x, 2), _one, FLOATS, ((2, 4, 5), (1, 2, 3, 3))),
    Case("batch norm", _batch_norm, _one, FLOATS[:2], ((2, 3, 8, 8), (1, 1, 2, 2))),
    Case("depthwise convolution", lambda x, w: F.conv2d(x, w[:3, :1], groups=3, stride=2),
         _images, FLOAT, IMAGES),
    Case("transposed convolution", lambda x, w: F.conv_transpose2d(x, w[:3], stride=2), _images,
         FLOAT, IMAGES),
    Case("resize", lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), _one, FLOATS[:2],
         ((1, 2, 3, 3),)),
    Case("pad", lambda x: F.pad(x, (1, 2), value=3), _one, NUMBERS, ((3, 5), (7,))),
    Case("gather", lambda x, i: x.gather(-1, i), _indexed, NUMBERS, SHAPES_2D),
    Case("scatter", _scatter, _indexed, NUMBERS, SHAPES_2D),
    Case("index", lambda x, i: x[..., i[0]], _indexed, NUMBERS, SHAPES_2D),
    Case("cumulative sum", lambda x: x.cumsum(-1), _one, NUMBERS, SHAPES_2D),
    Case("sort and top", lambda x: (x.sort(-1)[0], x.topk(1, -1)[0]), _one, NUMBERS, SHAPES_2D),
    Case("whole division", lambda x, y: (x // (y.abs() + 1), x % (y.abs() + 1)), _two, NUMBERS,
         SHAPES),
    Case("powers and roots", lambda x: x**2 + x**3 + (x.abs() + 1).rsqrt() + x.erf(), _one,
         FLOATS, SHAPES),
    Case("any and all", lambda x: ((x > 0).any(), (x > 0).all(-1)), _one, NUMBERS, ROWS),
    Case("rounding", lambda x: (x.round(), x.floor(), x.trunc()), _one, FLOATS, SHAPES),
    Case("triangle and diagonal", lambda x: (x.tril(), x.diagonal()), _one, NUMBERS, SHAPES_2D),
)  # fmt: skip

VIEWS: tuple[Case, ...] = tuple(
    replace(case, area="views, aliasing, writes")
    for case in (
        Case("permute", lambda x: (x + 1).permute(1, 0), _one, ANY[:5], SHAPES_2D),
        Case("view of an input", lambda x: (x.t(), x[0]), _one, ANY, SHAPES_2D),
        Case("views of one result", _shared_views, _one, NUMBERS, SHAPES_2D),
        Case("split", lambda x: (x * 2).chunk(2, -1), _one, NUMBERS, ((3, 6), (4, 2))),
        Case("cat", lambda x, y: torch.cat([x, y, x], 0), _two, ANY, ((3, 5), (1,), (2, 0, 3))),
        Case("expand", lambda x: (x + 1).expand(4, *x.shape), _one, NUMBERS, SHAPES_2D),
        Case("result is an input", lambda x, y: (y, x + y, x), _two, NUMBERS, SHAPES_2D),
        Case(
            "constants", lambda x: (x * 2, torch.ones(3), torch.tensor(5)), _one, NUMBERS, SHAPES_2D
        ),
        Case("in place", _write, _one, NUMBERS, SHAPES_2D),
        Case("in place through a view", _write_a_view, _one, NUMBERS, SHAPES_2D),
        Case("inputs swapped", _swap, _two, NUMBERS, SHAPES_2D),
    )
)

LAYOUTS: tuple[Case, ...] = tuple(replace(case, area="strides") for case in (
    Case("transposed input", _both_orders, _transposed, NUMBERS, SHAPES_2D),
    Case("input with steps and an offset", _both_orders, _sliced, NUMBERS, SHAPES_2D),
    Case("expanded input", _both_orders, _expanded, NUMBERS, SHAPES_2D),
    Case("transposed factor", lambda x, y: x.t() @ y, _transposed, FLOATS, SHAPES_2D),
    Case("channels last", lambda x, w: F.conv2d(x, w, padding=1).relu(), _channels_last, FLOAT,
         ((2, 3, 8, 8), (1, 1, 4, 4))),
    Case("channels last, pointwise", lambda x, w: (x + 1).mean((2, 3)), _channels_last, FLOATS,
         IMAGES),
    Case("write to a transposed input", lambda x, y: x.add_(y).sum(0), _transposed, NUMBERS,
         SHAPES_2D),
    Case("write to a slice's base", lambda x, y: x.copy_(y) + 1, _sliced, NUMBERS, SHAPES_2D),
))  # fmt: skip

CASES: tuple[Case, ...] = (*OPERATORS, *VIEWS, *LAYOUTS)
