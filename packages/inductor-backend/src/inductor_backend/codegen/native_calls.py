"""Writes calls of hand-written kernels with known sizes, straight to the compiled function.

Serves extern nodes whose choice is "native". Arguments are in the order of `kernels.small_gemm`'s
launchers (``run_linear``, ``run_convolution``); sizes are literals, or expressions over the call's
symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import ExternNode, LoopProgram, Strided
from inductor_backend.ir.size_source import size_expression
from inductor_backend.kernels import attention, conv1x1, packed_weights, quantized, winograd
from inductor_backend.kernels.native import EPILOGUES as ALL_EPILOGUES
from inductor_backend.kernels.packed_ops import geometry, name_of
from inductor_backend.kernels.selection import (
    FEW_ROWS_FORMS,
    GROUPED_FORM,
    Operand,
    is_last_only,
)
from inductor_backend.kernels.small_gemm import EPILOGUES, form

#: The number of a matrix, in the text of a call whose form has this name.
BATCH = "batch"

#: A launcher's name and its arguments, as text or expressions.
Launch = tuple[str, Sequence[str | Expr]]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call of a hand-written kernel."""

    program: LoopProgram
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


def native_launch(
    program: LoopProgram, node: ExternNode, address: Callable[[Strided], str], form: str
) -> Launch:
    """Returns the launch of the hand-written kernel for an operator call. form: see
    `KernelChoice.form`."""
    (name,) = node.writes
    result = Strided(name, program.buffers[name].layout)
    return NATIVE_CALLS[form or name_of(node.target)](NativeCall(program, node, address, result))


def call_source(launcher: str, numbers: Sequence[str | Expr]) -> str:
    """Returns the call as Python text."""
    texts = (
        number if isinstance(number, str) else size_expression(number, "python")
        for number in numbers
    )
    return f"{launcher}({', '.join(texts)})"


def _linear(call: NativeCall) -> Launch:
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


def _few_rows(call: NativeCall) -> Launch:
    *bias, a, b = call.node.args
    dtype = call.program.buffers[a.buffer].dtype
    return f"run_{FEW_ROWS_FORMS[dtype]}", _of_few_rows(call, a, b, bias[0] if bias else None)


def _of_few_rows(
    call: NativeCall, a: Strided, b: Strided, bias: Strided | None
) -> list[str | Expr]:
    """Returns the arguments that all forms of few rows take."""
    (m, k), n = a.layout.sizes, b.layout.sizes[1]
    added = call.addresses(bias)
    numbers = [call.address(call.result), n, m, n, k, *added, EPILOGUES[call.node.epilogue]]
    return [*_rows_and_weights(call, a, b), *numbers]


def _rows_and_weights(call: NativeCall, a: Strided, b: Strided) -> list[str | Expr]:
    """Returns the operands of few rows: addresses, strides, and how the matrices of `b` lie."""
    row, column = b.layout.strides[-2:]
    layout, ldw = (0, column) if row == 1 else (1, row)
    return [call.address(a), *a.layout.strides, call.address(b), ldw, layout]


def _quantized(call: NativeCall) -> Launch:
    a, b, bias, factor, scale, zero, group, at_once, nibbles = call.node.args
    element, integer = (call.program.buffers[tensor.buffer].dtype for tensor in (a, b))
    numbers = [*_of_few_rows(call, a, b, bias), *call.addresses(factor), int(at_once), group]
    for value, usual in ((scale, 1.0), (zero, 0.0)):
        if isinstance(value, Strided):
            kind = quantized.NUMBERS[call.program.buffers[value.buffer].dtype]
            numbers += [call.address(value), kind, *value.layout.strides]
        else:
            bits = quantized.bits_of(usual if value is None else value)
            numbers += [bits, quantized.ONE_NUMBER, 0, 0]
    swapped = int(nibbles == quantized.HIGH_FIRST)
    return f"run_{quantized.form(element, integer, nibbles)}", [*numbers, swapped]


def _grouped(call: NativeCall) -> Launch:
    a, b, ends = call.node.args
    (m, k), (groups, _, n) = a.layout.sizes, b.layout.sizes
    result = [call.address(call.result), call.result.layout.strides[0], m, n, k]
    of_groups = [groups, b.layout.strides[0], call.address(ends)]
    return f"run_{GROUPED_FORM}", [*_rows_and_weights(call, a, b), *result, *of_groups]


def _blocked(call: NativeCall) -> Launch:
    *_, a, b = call.node.args
    operands: list[str | Expr] = [
        call.address(a),
        *a.layout.strides,
        call.address(b),
        *b.layout.strides,
    ]
    return "run_blocked", [*operands, *_after_operands(call), 0]


def _batch(call: NativeCall) -> Launch:
    """Returns the launch of one matmul of a batch, whose number is `BATCH`."""
    a, b = call.node.args
    (_, m, k), n = a.layout.sizes, b.layout.sizes[2]
    addresses = [_of_batch(call, value) for value in (a, b, call.result)]
    numbers: list[str | Expr] = [addresses[0], *a.layout.strides[1:]]
    numbers += [addresses[1], *b.layout.strides[1:], addresses[2], call.result.layout.strides[1]]
    return "run_blocked", [*numbers, m, n, k, 0, 0, 0, EPILOGUES["none"], 0]


def _of_batch(call: NativeCall, operand: Strided) -> str:
    """Returns the address of a matrix of a batch."""
    stride = operand.layout.strides[0] * call.program.buffers[operand.buffer].dtype.itemsize
    return f"{call.address(operand)} + {BATCH} * {size_expression(stride)}"


def _after_operands(call: NativeCall) -> list[str | Expr]:
    """Returns the arguments that follow the operands in both matmul launchers."""
    *bias, a, b = call.node.args
    (m, k), result, residual = a.layout.sizes, call.result, call.node.residual
    inputs = call.addresses(bias[0] if bias else None, residual)
    ldr = residual.layout.strides[0] if residual else 0
    sizes = [call.address(result), result.layout.strides[0], m, b.layout.sizes[1], k]
    return [*sizes, *inputs, ldr, EPILOGUES[call.node.epilogue]]


def _convolution(call: NativeCall) -> Launch:
    x, weight, bias, stride, padding, dilation, *_ = call.node.args
    batch, *_ = x.layout.sizes
    count, _, kh, kw = weight.layout.sizes
    oh, ow = call.result.layout.sizes[2:]
    flags = call.channels_last(x, weight, call.result)
    direct = form(batch * oh * ow, oh * ow, count, kh * kw, not any(flags)) == "direct"
    numbers = call.addresses(x, weight, bias, call.node.residual, call.result)
    numbers += [*x.layout.sizes, kh, kw, *stride, *padding, *dilation, oh, ow, count]
    return "run_convolution", [*numbers, EPILOGUES[call.node.epilogue], *flags, int(direct)]


def _convolution_backward(call: NativeCall) -> Launch:
    dy, x, weight, _, stride, padding, dilation, *_, mask = call.node.args
    count, _, kh, kw = weight.layout.sizes
    tensors = (dy, weight if mask[0] else x, call.result)
    numbers = call.addresses(*tensors)
    numbers += [*x.layout.sizes, kh, kw, *stride, *padding, *dilation, *dy.layout.sizes[2:], count]
    launcher = f"run_convolution_backward_{'input' if mask[0] else 'weight'}"
    return launcher, [*numbers, *call.channels_last(*tensors)]


def _winograd(call: NativeCall) -> Launch:
    """Returns the launch of a Winograd convolution, or of its input's gradient."""
    args = call.node.args
    gradient = len(args) > 9
    weight, bias = (args[2], None) if gradient else args[1:3]
    read, padding = args[0].layout.sizes, args[5 if gradient else 4]
    numbers = winograd.numbers(
        read, call.result.layout.sizes, padding, weight.layout.strides, gradient
    )
    return "run_winograd_planes", [*call.addresses(args[0], weight, bias, call.result), *numbers]


def _conv1x1(call: NativeCall) -> Launch:
    """Returns the launch of a 1x1 convolution, or of one of its gradients."""
    args = call.node.args
    gradient = len(args) > 9
    written = call.address(call.result)
    if gradient and args[-1][1]:
        dy, x = args[:2]
        return "run_conv1x1_weight", conv1x1.weight_numbers(
            call.address(dy), call.address(x), written, dy.layout.sizes, x.layout.sizes
        )
    read, weight = args[0], args[2 if gradient else 1]
    shapes = (weight.layout.sizes, weight.layout.strides, read.layout.sizes)
    (bias,) = call.addresses(None if gradient else args[2])
    numbers = conv1x1.numbers(
        call.address(weight), *shapes, call.address(read), written, gradient, bias
    )
    return "run_conv1x1", numbers


def _packed_weight_convolution(call: NativeCall) -> Launch:
    x, weight, bias, numbers, contiguous, scale = call.node.args
    batch, _, height, width = x.layout.sizes
    result = (1, *call.result.layout.sizes[2:])[-2:]  # a sequence has one row
    name, values = packed_weights.call(
        geometry(numbers),
        (batch, height, width, *result),
        call.node.epilogue,
        call.node.last_epilogue,
        contiguous,
    )
    tensors = call.addresses(x, weight, bias, call.node.residual, call.result)
    return name, [*tensors, *values, *call.addresses(scale)]


def _packed_weight_linear(call: NativeCall) -> Launch:
    x, weight, bias, count, *matrix = call.node.args
    node, residual = call.node, call.node.residual
    (m, k), ldx = x.layout.sizes, x.layout.strides[0]
    ldr = 0 if residual is None else residual.layout.strides[0]
    if matrix:
        operands = [call.address(x), ldx, 1, call.address(matrix[0]), *matrix[0].layout.strides]
        result = [call.address(call.result), count, m, count, k, *call.addresses(bias, residual)]
        launch = [*operands, *result, ldr, ALL_EPILOGUES[node.epilogue], call.address(weight)]
        return "run_blocked", launch
    values = packed_weights.linear_call(
        m, k, count, ldx, count, ldr, node.epilogue, node.last_epilogue
    )
    tensors = call.addresses(x, weight, bias, residual, call.result)
    return packed_weights.dense_launcher(count), [*tensors, *values, 0]


def _pack(call: NativeCall) -> Launch:
    weight, numbers = call.node.args
    name, values = packed_weights.pack_call(
        geometry(numbers), weight.layout.sizes, weight.layout.strides
    )
    return name, [*call.addresses(weight, call.result), *values]


def _lstm(call: NativeCall) -> Launch:
    *tensors, steps, backwards = call.node.args
    sizes = tensors[2].layout.sizes
    return "run_lstm", [*call.addresses(*tensors, call.result), steps, *sizes, int(backwards)]


def _attention(call: NativeCall) -> Launch:
    *tensors, mask, scale, causal, empty = call.node.args
    strides = [tensor.layout.strides for tensor in (*tensors, call.result)]
    query, key, value = (tensor.layout.sizes for tensor in tensors)
    inputs = None
    if mask is not None:  # the same for all of a dimension where it has one element
        pairs = zip(mask.layout.sizes, mask.layout.strides, strict=True)
        of_mask = [0 if size == 1 else stride for size, stride in pairs]
        inputs = [*[0] * (4 - len(of_mask)), *of_mask]
    numbers = attention.numbers(query, key, value[3], strides, inputs, scale, causal, empty)
    return "run_attention", [*call.addresses(*tensors, mask, call.result), *numbers]


def _decoding_attention(call: NativeCall) -> Launch:
    *tensors, mask, scale, hidden, causal, empty = call.node.args
    buffers = call.program.buffers
    strides = [tensor.layout.strides for tensor in (*tensors, call.result)]
    query, key, value = (tensor.layout.sizes for tensor in tensors)
    of_mask = None if mask is None else (buffers[mask.buffer].dtype, mask.layout.strides)
    numbers = attention.decoding_numbers(
        query, key, value[3], strides, of_mask, scale, hidden, causal, empty
    )
    operands = call.addresses(*tensors, mask, call.result)
    return attention.DECODING[buffers[tensors[1].buffer].dtype], [*operands, *numbers]


#: operator name, or the form of a choice -> its launch
NATIVE_CALLS: dict[str, Callable[[NativeCall], Launch]] = {
    "batch": _batch,
    "blocked": _blocked,
    **dict.fromkeys(FEW_ROWS_FORMS.values(), _few_rows),
    GROUPED_FORM: _grouped,
    **{
        quantized.form(element, integer, nibbles): _quantized
        for element in quantized.ELEMENTS
        for integer, nibbles in quantized.FORMS
    },
    "winograd_planes": _winograd,
    "conv1x1": _conv1x1,
    "aten.mm.default": _linear,
    "aten.addmm.default": _linear,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "packed.pack": _pack,
    "packed.convolution": _packed_weight_convolution,
    "packed.linear": _packed_weight_linear,
    "packed.lstm": _lstm,
    "packed.attention": _attention,
    "packed.decoding_attention": _decoding_attention,
}
