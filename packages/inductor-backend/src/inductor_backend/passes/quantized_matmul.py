"""Rewrites matmuls of few rows whose weights are converted from integers of 8 or 4 bits: their kernel
reads the integers, once, in place of a converted copy.

A weight is an int8 or uint8 that is converted, or ``(integer - zero) * scale`` with one zero and one
scale for each group of terms, or for each column. Recognized is this arithmetic, whatever views lie
between, not who wrote it. A factor and a bias for each column after the matmul become the kernel's.
Integers of 4 bits are ``w & 15`` and ``w >> 4`` of bytes, one beside the other.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels.packed_ops import quantized_mm
from inductor_backend.kernels.quantized import (
    GROUP_STEP,
    HIGH_FIRST,
    INTEGERS,
    LOW_FIRST,
    NUMBERS,
)
from inductor_backend.kernels.selection import reads_integers
from inductor_backend.options import InductorOptions
from inductor_backend.passes.frozen_rewrites import put
from inductor_backend.passes.fx_edit import Editor, aten, copy_of
from tracer_core.plugin_api import CompileSpec, Trait, overloads_with

Node = torch.fx.Node

_RESHAPES = overloads_with(Trait.RESHAPES) | {aten.unsqueeze.default}
_WIDE_INTEGERS = frozenset({torch.int32, torch.int64})

#: Zeros that bfloat16 holds.
_MAX_ZERO = 256

#: Zeros that differences of integers of 4 bits with 8 bits hold.
_MAX_NIBBLE_ZERO = 128

_ANDS = frozenset({aten.bitwise_and.Scalar, aten.bitwise_and.Tensor, aten.__and__.Scalar})
_SHIFTS = frozenset({
    aten.bitwise_right_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor, aten.__rshift__.Scalar,
})  # fmt: skip


def with_quantized_matmuls(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy whose matmuls of few rows read quantized weights."""
    values = (_tensor(node) for node in gm.graph.nodes)
    if not any(value is not None and value.dtype in INTEGERS for value in values):
        return gm
    options, editor = spec.options, Editor(copy_of(gm), ())
    rounds_all = isinstance(options, InductorOptions) and options.numerics == "eager"
    for node in list(editor.graph.nodes):
        rule = _RULES.get(node.target)
        if rule is not None and not node.kwargs:
            rule(editor, node, rounds_all)
    return editor.gm


@dataclass(frozen=True, slots=True)
class _Weight:
    """The second operand of a matmul, [K, N]."""

    #: The tensor of integers, which holds the matrix's elements in order.
    integers: Node
    #: The matrix: [N, K] where it is transposed, else [K, N].
    shape: tuple[int, int]
    transposed: bool
    #: Scale and zero: a tensor, a number or None, and the elements that share one of its elements.
    scale: tuple[Any, int]
    zero: tuple[Any, int]
    #: The order of integers of 4 bits, or 0: see `quantized.LOW_FIRST`.
    nibbles: int = 0

    @property
    def terms_and_columns(self) -> tuple[int, int]:
        rows, columns = self.shape
        return (columns, rows) if self.transposed else (rows, columns)

    @property
    def group(self) -> int:
        """The terms that share scale and zero, 0 where there are none."""
        runs = [run for number, run in (self.scale, self.zero) if number is not None]
        return min(self.terms_and_columns[0], *runs) if runs else 0

    @property
    def is_supported(self) -> bool:
        """Whether the kernel reads this layout."""
        value, group = self.integers.meta["val"], self.group
        if self.nibbles and (not value.is_contiguous() or not self.transposed or self.shape[1] % 2):
            return False
        if tuple(value.shape) != self.shape and not value.is_contiguous():
            return False
        if not group:
            return 1 in value.stride()[-2:]
        terms, columns = self.terms_and_columns
        runs = {self.scale[1], self.zero[1]} <= {group, terms, terms * columns}
        in_order = self.nibbles or value.stride()[-1 if self.transposed else 0] == 1
        return bool(
            runs and in_order and (group == terms or (terms % group, group % GROUP_STEP) == (0, 0))
        )


def _tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _shape(node: Any) -> tuple[int | str, ...]:
    """Returns the sizes of a tensor, symbols as text: comparing them makes no guards."""
    value = _tensor(node)
    sizes: Sequence[Any] = () if value is None else value.shape
    return tuple(size if isinstance(size, int) else str(size) for size in sizes)


def _weight(node: Any, dtype: torch.dtype) -> _Weight | None:
    """Returns what the second operand of a matmul of this dtype is computed from, or None."""
    transposed = False
    while _is_transpose(node) or _keeps_shape(node):
        transposed ^= _is_transpose(node)
        node = node.args[0]
    rows, columns = _shape(node) if len(_shape(node)) == 2 else (0, 0)
    if not (isinstance(rows, int) and isinstance(columns, int) and rows and columns):
        return None
    numbers: dict[str, tuple[Any, int]] = {}

    def weight_of(integers: Node, nibbles: int) -> _Weight:
        alone = (None, rows * columns)
        scale, zero = (numbers.get(name, alone) for name in ("scale", "zero"))
        return _Weight(integers, (rows, columns), transposed, scale, zero, nibbles)

    while (value := _tensor(node)) is not None:
        source: Any = node.args[0] if node.args else None
        if node.target is aten._to_copy.default and set(node.kwargs) == {"dtype"}:
            before = source.meta["val"].dtype
            if before in INTEGERS:
                integers, nibbles, first_zero = _integers(source)
                if first_zero is not None:
                    if "zero" in numbers:
                        return None
                    numbers["zero"] = first_zero, rows * columns
                return weight_of(integers, nibbles)
            if before.is_floating_point and not value.dtype.is_floating_point:
                return None
        elif node.target in _ARITHMETIC and not node.kwargs:
            name, first, integral = _ARITHMETIC[node.target]
            source, other = node.args
            if not first and _shape(source) != tuple(value.shape):
                source, other = other, source
            run = _run(other, value, transposed)
            if run is None or _shape(source) != tuple(value.shape) or "zero" in numbers:
                return None
            if name in numbers or not (integral or value.dtype.is_floating_point):
                return None
            if name == "zero" and not _is_held(other, value.dtype):
                return None
            numbers[name] = other, run
        elif (packed := _nibbles(node)) is not None:
            return weight_of(*packed)
        elif node.target not in _RESHAPES:
            return None
        if value.dtype not in (torch.float32, dtype) and value.dtype not in _WIDE_INTEGERS:
            return None
        node = source
    return None


def _integers(node: Node) -> tuple[Node, int, int | None]:
    """Returns integers; or the bytes that integers of 4 bits are made from, their order, and the zero
    that is subtracted from them as integers of 8 bits."""
    zero: Any = None
    at: Any = node
    signed = True
    while (packed := _nibbles(at)) is None:
        signed = signed and not _is_bytes(at)
        if at.target in _RESHAPES or _is_conversion(at, INTEGERS):
            at = at.args[0]
        elif at.target is aten.sub.Tensor and signed and zero is None and not at.kwargs:
            at, zero = at.args
            if not (isinstance(zero, int) and 0 <= zero <= _MAX_NIBBLE_ZERO):
                return node, 0, None
        else:
            return node, 0, None
    return *packed, zero


def _nibbles(node: Node) -> tuple[Node, int] | None:
    """Returns the bytes whose halves a node puts beside each other, and their order."""
    last = node.meta["val"].dim() - 1
    if node.target not in (aten.cat.default, aten.stack.default) or len(node.args[0]) != 2:  # type: ignore[arg-type]
        return None
    parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
    if dim not in (-1, last) or _shape(node)[-1] != 2:
        return None
    first, second = (_half(part) for part in parts)  # type: ignore[union-attr]
    if first is None or second is None or first[0] is not second[0]:
        return None
    return None if first[1] == second[1] else (first[0], HIGH_FIRST if first[1] else LOW_FIRST)


def _half(node: Any) -> tuple[Node, bool] | None:
    """Returns the bytes that a node holds the low or the high 4 bits of, and whether the high ones."""
    while node.target in _RESHAPES or _is_conversion(
        node, (*INTEGERS, torch.bfloat16, torch.float16)
    ):
        node = node.args[0]
    if node.kwargs or len(node.args) != 2:
        return None
    source, number = node.args
    if node.target in _ANDS and number == 15:
        inner = _half(source) if source.op == "call_function" else None
        if inner is not None and inner[1]:
            return inner
        return (source, False) if _is_bytes(source) else None
    shifted = node.target in _SHIFTS and number == 4 and _is_bytes(source)
    return (source, True) if shifted else None


def _is_bytes(node: Node) -> bool:
    value = _tensor(node)
    return value is not None and value.dtype == torch.uint8


def _is_conversion(node: Any, dtypes: Container[torch.dtype]) -> bool:
    """Returns whether a node converts to one of these dtypes, or to wide integers or float32."""
    if node.target is not aten._to_copy.default or set(node.kwargs) != {"dtype"}:
        return False
    to = node.kwargs["dtype"]
    return to in dtypes or to in _WIDE_INTEGERS or to == torch.float32


def _is_held(zero: Any, dtype: torch.dtype) -> bool:
    """Returns whether an operand of a difference is a tensor, or a number that is not rounded first."""
    if not isinstance(zero, (int, float)) or dtype == torch.float32:
        return True
    return bool(abs(zero) <= _MAX_ZERO and zero == int(zero))


def _is_transpose(node: Any) -> bool:
    if len(_shape(node)) != 2:
        return False
    if node.target is aten.permute.default:
        return [dim % 2 for dim in node.args[1]] == [1, 0]
    if node.target is aten.transpose.int:
        return bool(node.args[1] % 2 != node.args[2] % 2)
    return bool(node.target is aten.t.default)


def _keeps_shape(node: Any) -> bool:
    """Returns whether this is a reshape to the same shape, or the matrix of an expanded batch."""
    if not isinstance(node, Node):
        return False
    if node.target is aten.select.int:
        batch, dim, _ = node.args
        value = _tensor(batch)
        return bool(value is not None and value.dim() == 3 and dim == 0 and value.stride(0) == 0)
    views = (*_RESHAPES, aten.expand.default)
    return node.target in views and _shape(node)[-2:] == _shape(node.args[0])[-2:]


def _run(number: Any, value: torch.Tensor, transposed: bool) -> int | None:
    """Returns how many elements of `value`, one after the other (those of a column where the matrix is
    not transposed), share each element of a number that is broadcast; None where they do not."""
    if isinstance(number, (int, float)):
        return value.numel()
    tensor, shape = _tensor(number), list(value.shape)
    if tensor is None or tensor.dtype not in NUMBERS or tensor.dim() > len(shape):
        return None
    sizes = [1] * (len(shape) - tensor.dim()) + list(tensor.shape)
    if not transposed:
        if len(shape) != 2:
            return None
        sizes, shape = sizes[::-1], shape[::-1]
    shared = next(at for at in range(len(sizes) + 1) if set(sizes[at:]) <= {1})
    return math.prod(shape[shared:]) if sizes[:shared] == shape[:shared] else None


def _matmul(editor: Editor, node: Node, rounds_all: bool) -> None:
    *added, x, matrix = node.args
    value = _tensor(x)
    assert value is not None
    weight = _weight(matrix, value.dtype)
    if weight is None or not weight.is_supported:
        return
    if not reads_integers(hint(value.shape[0]), value.dtype, weight.group > 0):
        return
    if rounds_all and weight.group and value.dtype != torch.float32:
        return
    bias: Any = added[0] if added else None
    if bias is not None and not _is_row(bias, node):
        return
    new = editor.before(node)
    integers = weight.integers
    stored = [weight.shape[0], weight.shape[1] // 2] if weight.nibbles else [*weight.shape]
    if _shape(integers) != tuple(stored):
        integers = new(aten.view.default, integers, stored)
    integers = new(aten.t.default, integers) if weight.transposed else integers
    numbers = [_of_groups(editor, node, weight, *of) for of in (weight.scale, weight.zero)]
    _put(editor, node, (x, integers, bias), (*numbers, weight.group, False, weight.nibbles))


def _weight_int8pack(editor: Editor, node: Node, rounds_all: bool) -> None:
    """aten._weight_int8pack_mm: sums are multiplied by the scales before they are rounded."""
    x, weight, scales = node.args
    value, integers = _tensor(x), _tensor(weight)
    assert value is not None and integers is not None
    if reads_integers(hint(value.shape[0]), value.dtype) and integers.stride(1) == 1:
        if _is_row(scales, node):
            columns = editor.call(node, aten.t.default, weight)
            _put(editor, node, (x, columns, None), (None, None, 0, True, 0), scales)


def _of_groups(editor: Editor, like: Node, weight: _Weight, number: Any, run: int) -> Any:
    """Returns scale or zero as [N, groups], which the operator takes."""
    if not isinstance(number, Node):
        return number
    terms, columns = weight.terms_and_columns
    new = editor.before(like)
    while _is_exact(number):
        number = number.args[0]
    sizes = [columns, terms // run] if run <= terms else [1, 1]
    shaped = new(aten.reshape.default, number, sizes)
    return new(aten.expand.default, shaped, [columns, terms // weight.group])


def _is_exact(node: Node) -> bool:
    """Returns whether a conversion keeps all values and leads from a dtype that the kernel reads."""
    if node.target is not aten._to_copy.default or set(node.kwargs) != {"dtype"}:
        return False
    before, after = (_tensor(value).dtype for value in (node.args[0], node))  # type: ignore[union-attr]
    return before in INTEGERS or (
        before.itemsize == 2 and before in NUMBERS and after == torch.float32
    )


def _put(
    editor: Editor, node: Node, operands: Sequence[Any], rest: Sequence[Any], factor: Any = None
) -> None:
    """Puts the operator in the place of a matmul, and of the factor and bias after it."""
    x, integers, bias = operands
    last: Node = node
    views: list[Node] = []
    if bias is None and factor is None:
        last, views, factor = _follower(node, aten.mul.Tensor)
    if bias is None and factor is not None:
        last, more, bias = _follower(last, aten.add.Tensor)
        views += more
    result = editor.call(last, quantized_mm, x, integers, bias, factor, *rest)
    for view in views:
        result = editor.call(last, view.target, result, *view.args[1:])
    put(editor, last, result)


def _follower(node: Node, target: Any) -> tuple[Node, list[Node], Any]:
    """Returns the only reader of a node, or of views of it, that combines a row with each of its rows;
    these views; and the row. The node, none and None where there is no such reader."""
    user, views = node, []
    while len(user.users) == 1:
        before, user = user, next(iter(user.users))
        if user.target in _RESHAPES and _shape(user)[-1:] == _shape(before)[-1:]:
            views.append(user)
            continue
        if user.target is not target or user.kwargs or len(user.args) != 2:
            break
        row = user.args[1] if user.args[0] is before else user.args[0]
        same = _shape(user) == _shape(before) and _tensor(user).dtype == _tensor(before).dtype  # type: ignore[union-attr]
        return (user, views, row) if same and _is_row(row, user) else (node, [], None)
    return node, [], None


def _is_row(value: Any, like: Node) -> bool:
    """Returns whether a tensor has one element for each column of a result, and its dtype."""
    tensor = _tensor(value)
    same = tensor is not None and tensor.dtype == like.meta["val"].dtype
    return same and _shape(value) == _shape(like)[-1:]


#: Operator -> the number it combines with a weight, whether the weight comes first, and whether integers
#: may be combined.
_ARITHMETIC = {
    aten.mul.Tensor: ("scale", False, False),
    aten.sub.Tensor: ("zero", True, True),
}

_RULES = {
    aten.mm.default: _matmul,
    aten.addmm.default: _matmul,
    aten._weight_int8pack_mm.default: _weight_int8pack,
}
