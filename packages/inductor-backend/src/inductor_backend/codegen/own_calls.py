"""Writes calls of hand-written kernels with known sizes, straight to the compiled function.

Serves extern nodes whose choice is "own". Arguments are in the order of `kernels.small_gemm`'s
launchers (``run_linear``, ``run_convolution``); sizes are literals, or expressions over the call's
symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import ExternNode, Layout, Program, Strided
from inductor_backend.ir.size_text import size_expression
from inductor_backend.kernels import attention, conv1x1, packed, winograd
from inductor_backend.kernels.packed_ops import geometry
from inductor_backend.kernels.selection import Operand, _is_last_only
from inductor_backend.kernels.small_gemm import POSTS, form

Address = Callable[[Strided], str]

#: A launcher's name and its arguments, as text or expressions.
Launch = tuple[str, Sequence[str | Expr]]


def call_text(launcher: str, numbers: Sequence[str | Expr]) -> str:
    """Returns the call as Python text."""
    texts = (
        number if isinstance(number, str) else size_expression(number, "python")
        for number in numbers
    )
    return f"{launcher}({', '.join(texts)})"


def _linear(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    *_, a, b = node.args
    row, column = b.layout.strides
    layout, ldw = (0, column) if row == 1 else (1, row)
    numbers: list[str | Expr] = [layout, address(a), a.layout.strides[0], address(b), ldw]
    numbers += _after_operands(node, address, result, post, residual)
    return "run_linear", numbers


def _blocked(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    *_, a, b = node.args
    numbers: list[str | Expr] = [address(a), *a.layout.strides, address(b), *b.layout.strides]
    numbers += _after_operands(node, address, result, post, residual)
    return "run_blocked", numbers


def _after_operands(
    node: ExternNode, address: Address, result: Strided, post: str, residual: Strided | None
) -> list[str | Expr]:
    """Returns the arguments that follow the operands in both matmul launchers."""
    *bias, a, b = node.args
    m, k = a.layout.sizes
    return [
        address(result),
        result.layout.strides[0],
        m,
        b.layout.sizes[1],
        k,
        address(bias[0]) if bias else 0,
        address(residual) if residual else 0,
        residual.layout.strides[0] if residual else 0,
        POSTS[post],
    ]


def _last(layout: Layout, program: Program, tensor: Strided) -> int:
    dtype = program.buffers[tensor.buffer].dtype
    return int(_is_last_only(Operand(layout.sizes, layout.strides, dtype)))


def _convolution(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    x, weight, bias, (sh, sw), (ph, pw), (dh, dw), *_ = node.args
    batch, channels, height, width = x.layout.sizes
    count, _, kh, kw = weight.layout.sizes
    oh, ow = result.layout.sizes[2:]
    flags = [_last(t.layout, program, t) for t in (x, weight, result)]
    direct = form(batch * oh * ow, oh * ow, count, kh * kw, not any(flags)) == "direct"
    numbers: list[str | Expr] = [
        address(x),
        address(weight),
        address(bias) if bias is not None else 0,
        address(residual) if residual else 0,
        address(result),
        batch,
        channels,
        height,
        width,
        kh,
        kw,
        sh,
        sw,
        ph,
        pw,
        dh,
        dw,
        oh,
        ow,
        count,
        POSTS[post],
        *flags,
        int(direct),
    ]
    return "run_convolution", numbers


def _convolution_backward(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    dy, x, weight, _, (sh, sw), (ph, pw), (dh, dw), *_, mask = node.args
    of_input = mask[0]
    count, _, kh, kw = weight.layout.sizes
    other = weight if of_input else x
    numbers: list[str | Expr] = [address(t) for t in (dy, other, result)]
    numbers += [*x.layout.sizes, kh, kw, sh, sw, ph, pw, dh, dw, *dy.layout.sizes[2:], count]
    numbers += [_last(t.layout, program, t) for t in (dy, other, result)]
    return f"run_convolution_backward_{'input' if of_input else 'weight'}", numbers


def _on_planes(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    """Returns the launch of a Winograd convolution, or of its input's gradient."""
    gradient = len(node.args) > 9
    first, second, third, _, *how = (
        node.args if gradient else (*node.args[:3], None, *node.args[3:])
    )
    weight, bias = (third, None) if gradient else (second, third)
    numbers = winograd.numbers(
        first.layout.sizes, result.layout.sizes, how[1], weight.layout.strides, gradient
    )
    return "run_planes", [*_tensors(address, first, weight, bias, result), *numbers]


def _on_points(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    """Returns the launch of a 1x1 convolution, or of one of its gradients."""
    gradient = len(node.args) > 9
    if gradient and node.args[-1][1]:
        dy, x = node.args[:2]
        given = conv1x1.weight_numbers(
            address(dy), address(x), address(result), dy.layout.sizes, x.layout.sizes
        )
        return "run_points_weight", given
    read, weight = node.args[0], node.args[2 if gradient else 1]
    shapes = (weight.layout.sizes, weight.layout.strides, read.layout.sizes)
    numbers = conv1x1.numbers(address(weight), *shapes, address(read), address(result), gradient)
    return "run_points", numbers


def _optional(address: Address, tensor: Strided | None) -> str | int:
    return 0 if tensor is None else address(tensor)


def _tensors(address: Address, *tensors: Strided | None) -> list[str | int]:
    return [_optional(address, tensor) for tensor in tensors]


def _packed_convolution(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    x, weight, bias, numbers, winograd, scale = node.args
    batch, _, height, width = x.layout.sizes
    sizes = (batch, height, width, *result.layout.sizes[2:])
    name, values = packed.call(geometry(numbers), sizes, post, node.final, winograd)
    tensors = _tensors(address, x, weight, bias, residual, result)
    return name, [*tensors, *values, _optional(address, scale)]


def _packed_linear(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    x, weight, bias, count = node.args
    m, k = x.layout.sizes
    ldr = 0 if residual is None else residual.layout.strides[0]
    values = packed.linear_call(m, k, count, x.layout.strides[0], count, ldr, post, node.final)
    tensors = _tensors(address, x, weight, bias, residual, result)
    return packed.dense_launcher(count), [*tensors, *values, 0]


def _pack(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    weight, numbers = node.args
    name, values = packed.pack_call(geometry(numbers), weight.layout.sizes, weight.layout.strides)
    return name, [address(weight), address(result), *values]


def _lstm(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    inputs, weight, hidden, cells, steps, backwards = node.args
    batch, units = hidden.layout.sizes
    tensors = _tensors(address, inputs, weight, hidden, cells, result)
    return "run_lstm", [*tensors, steps, batch, units, int(backwards)]


def _attention(
    program: Program,
    node: ExternNode,
    address: Address,
    result: Strided,
    post: str,
    residual: Strided | None,
) -> Launch:
    query, key, value, mask, scale, causal, empty = node.args
    strides = [one.layout.strides for one in (query, key, value, result)]
    sizes = [one.layout.sizes for one in (query, key, value)]
    given = None
    if mask is not None:  # the same for all of a dimension where it has one element
        pairs = [
            (0 if size == 1 else stride)
            for size, stride in zip(mask.layout.sizes, mask.layout.strides, strict=True)
        ]
        given = [*[0] * (4 - len(pairs)), *pairs]
    numbers = attention.numbers(
        sizes[0], sizes[1], sizes[2][3], strides, given, scale, causal, empty
    )
    return "run_attention", [*_tensors(address, query, key, value, mask, result), *numbers]


#: operator name, or the form of a choice -> its launch
OWN_CALLS = {
    "blocked": _blocked,
    "planes": _on_planes,
    "points": _on_points,
    "aten.mm.default": _linear,
    "aten.addmm.default": _linear,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "packed.pack": _pack,
    "packed.convolution": _packed_convolution,
    "packed.linear": _packed_linear,
    "packed.lstm": _lstm,
    "packed.attention": _attention,
}
