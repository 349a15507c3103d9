"""Writes calls of hand-written kernels with known sizes, straight to the compiled function.

Serves extern nodes whose choice is "own". Arguments are in the order of `kernels.small_gemm`'s
launchers (``run_linear``, ``run_convolution``); sizes are literals, or expressions over the call's
symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import ExternNode, Program, Strided
from inductor_backend.ir.size_text import size_expression
from inductor_backend.kernels import attention, conv1x1, packed, winograd
from inductor_backend.kernels.packed_ops import geometry
from inductor_backend.kernels.selection import Operand, is_last_only
from inductor_backend.kernels.small_gemm import POSTS, form

#: The number of a matrix, in the text of a call whose form has this name.
BATCH = "batch"

#: A launcher's name and its arguments, as text or expressions.
Launch = tuple[str, Sequence[str | Expr]]


@dataclass(frozen=True, slots=True)
class OwnCall:
    """A call of a hand-written kernel."""

    program: Program
    node: ExternNode
    #: Returns the text of a tensor's address.
    address: Callable[[Strided], str]
    #: What the kernel writes.
    result: Strided

    def addresses(self, *tensors: Strided | None) -> list[str | Expr]:
        """Returns the texts of the addresses, 0 for None."""
        return [0 if tensor is None else self.address(tensor) for tensor in tensors]

    def channels_last(self, *tensors: Strided) -> list[str | Expr]:
        """Returns 1 for each tensor that is channels-last and not also contiguous, else 0."""
        dtypes = [self.program.buffers[tensor.buffer].dtype for tensor in tensors]
        return [
            int(is_last_only(Operand(tensor.layout.sizes, tensor.layout.strides, dtype)))
            for tensor, dtype in zip(tensors, dtypes, strict=True)
        ]


def call_text(launcher: str, numbers: Sequence[str | Expr]) -> str:
    """Returns the call as Python text."""
    texts = (
        number if isinstance(number, str) else size_expression(number, "python")
        for number in numbers
    )
    return f"{launcher}({', '.join(texts)})"


def _linear(call: OwnCall) -> Launch:
    *_, a, b = call.node.args
    row, column = b.layout.strides
    layout, ldw = (0, column) if row == 1 else (1, row)
    operands: list[str | Expr] = [
        layout,
        call.address(a),
        a.layout.strides[0],
        call.address(b),
        ldw,
    ]
    return "run_linear", [*operands, *_after_operands(call)]


def _blocked(call: OwnCall) -> Launch:
    *_, a, b = call.node.args
    operands: list[str | Expr] = [
        call.address(a),
        *a.layout.strides,
        call.address(b),
        *b.layout.strides,
    ]
    return "run_blocked", [*operands, *_after_operands(call)]


def _batch(call: OwnCall) -> Launch:
    """Returns the launch of one product of a batch, whose number is `BATCH`."""
    a, b = call.node.args
    (_, m, k), n = a.layout.sizes, b.layout.sizes[2]
    addresses = [_of_batch(call, one) for one in (a, b, call.result)]
    numbers: list[str | Expr] = [addresses[0], *a.layout.strides[1:]]
    numbers += [addresses[1], *b.layout.strides[1:], addresses[2], call.result.layout.strides[1]]
    return "run_blocked", [*numbers, m, n, k, 0, 0, 0, POSTS["none"]]


def _of_batch(call: OwnCall, operand: Strided) -> str:
    """Returns the address of a matrix of a batch."""
    step = operand.layout.strides[0] * call.program.buffers[operand.buffer].dtype.itemsize
    return f"{call.address(operand)} + {BATCH} * {size_expression(step)}"


def _after_operands(call: OwnCall) -> list[str | Expr]:
    """Returns the arguments that follow the operands in both matmul launchers."""
    *bias, a, b = call.node.args
    (m, k), result, residual = a.layout.sizes, call.result, call.node.residual
    given = call.addresses(bias[0] if bias else None, residual)
    ldr = residual.layout.strides[0] if residual else 0
    sizes = [call.address(result), result.layout.strides[0], m, b.layout.sizes[1], k]
    return [*sizes, *given, ldr, POSTS[call.node.post]]


def _convolution(call: OwnCall) -> Launch:
    x, weight, bias, stride, padding, dilation, *_ = call.node.args
    batch, *_ = x.layout.sizes
    count, _, kh, kw = weight.layout.sizes
    oh, ow = call.result.layout.sizes[2:]
    flags = call.channels_last(x, weight, call.result)
    direct = form(batch * oh * ow, oh * ow, count, kh * kw, not any(flags)) == "direct"
    numbers = call.addresses(x, weight, bias, call.node.residual, call.result)
    numbers += [*x.layout.sizes, kh, kw, *stride, *padding, *dilation, oh, ow, count]
    return "run_convolution", [*numbers, POSTS[call.node.post], *flags, int(direct)]


def _convolution_backward(call: OwnCall) -> Launch:
    dy, x, weight, _, stride, padding, dilation, *_, mask = call.node.args
    count, _, kh, kw = weight.layout.sizes
    tensors = (dy, weight if mask[0] else x, call.result)
    numbers = call.addresses(*tensors)
    numbers += [*x.layout.sizes, kh, kw, *stride, *padding, *dilation, *dy.layout.sizes[2:], count]
    launcher = f"run_convolution_backward_{'input' if mask[0] else 'weight'}"
    return launcher, [*numbers, *call.channels_last(*tensors)]


def _winograd(call: OwnCall) -> Launch:
    """Returns the launch of a Winograd convolution, or of its input's gradient."""
    args = call.node.args
    gradient = len(args) > 9
    weight, bias = (args[2], None) if gradient else args[1:3]
    read, padding = args[0].layout.sizes, args[5 if gradient else 4]
    numbers = winograd.numbers(
        read, call.result.layout.sizes, padding, weight.layout.strides, gradient
    )
    return "run_planes", [*call.addresses(args[0], weight, bias, call.result), *numbers]


def _conv1x1(call: OwnCall) -> Launch:
    """Returns the launch of a 1x1 convolution, or of one of its gradients."""
    args = call.node.args
    gradient = len(args) > 9
    written = call.address(call.result)
    if gradient and args[-1][1]:
        dy, x = args[:2]
        return "run_points_weight", conv1x1.weight_numbers(
            call.address(dy), call.address(x), written, dy.layout.sizes, x.layout.sizes
        )
    read, weight = args[0], args[2 if gradient else 1]
    shapes = (weight.layout.sizes, weight.layout.strides, read.layout.sizes)
    numbers = conv1x1.numbers(call.address(weight), *shapes, call.address(read), written, gradient)
    return "run_points", numbers


def _packed_convolution(call: OwnCall) -> Launch:
    x, weight, bias, numbers, contiguous, scale = call.node.args
    batch, _, height, width = x.layout.sizes
    sizes = (batch, height, width, *call.result.layout.sizes[2:])
    name, values = packed.call(
        geometry(numbers), sizes, call.node.post, call.node.final, contiguous
    )
    tensors = call.addresses(x, weight, bias, call.node.residual, call.result)
    return name, [*tensors, *values, *call.addresses(scale)]


def _packed_linear(call: OwnCall) -> Launch:
    x, weight, bias, count = call.node.args
    residual, post, final = call.node.residual, call.node.post, call.node.final
    (m, k), ldx = x.layout.sizes, x.layout.strides[0]
    ldr = 0 if residual is None else residual.layout.strides[0]
    values = packed.linear_call(m, k, count, ldx, count, ldr, post, final)
    tensors = call.addresses(x, weight, bias, residual, call.result)
    return packed.dense_launcher(count), [*tensors, *values, 0]


def _pack(call: OwnCall) -> Launch:
    weight, numbers = call.node.args
    name, values = packed.pack_call(geometry(numbers), weight.layout.sizes, weight.layout.strides)
    return name, [*call.addresses(weight, call.result), *values]


def _lstm(call: OwnCall) -> Launch:
    *tensors, steps, backwards = call.node.args
    sizes = tensors[2].layout.sizes
    return "run_lstm", [*call.addresses(*tensors, call.result), steps, *sizes, int(backwards)]


def _attention(call: OwnCall) -> Launch:
    *tensors, mask, scale, causal, empty = call.node.args
    strides = [one.layout.strides for one in (*tensors, call.result)]
    query, key, value = (one.layout.sizes for one in tensors)
    given = None
    if mask is not None:  # the same for all of a dimension where it has one element
        pairs = zip(mask.layout.sizes, mask.layout.strides, strict=True)
        steps = [0 if size == 1 else stride for size, stride in pairs]
        given = [*[0] * (4 - len(steps)), *steps]
    numbers = attention.numbers(query, key, value[3], strides, given, scale, causal, empty)
    return "run_attention", [*call.addresses(*tensors, mask, call.result), *numbers]


#: operator name, or the form of a choice -> its launch
OWN_CALLS: dict[str, Callable[[OwnCall], Launch]] = {
    "batch": _batch,
    "blocked": _blocked,
    "planes": _winograd,
    "points": _conv1x1,
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
