"""Chooses the kernel of each operator call, and where its result lives.

Runs after fusion. A result that one of the backend's native kernels writes lives in the arena (or
is a fresh output); an ATen operator that returns a tensor provides the memory. On GPUs matmuls and
convolutions stay with ATen (cuBLAS, cuDNN).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inductor_backend.ir.index_expr import contiguous_strides
from inductor_backend.ir.native_loop import CompiledSteps, NativeLoop
from inductor_backend.ir.nodes import BufferKind, ExternNode, LoopProgram, Strided
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.kernels import (
    collectives,
    linear_algebra,
    packed_ops,
    recurrent,
    selection,
    strided_copy,
    unaligned_gemm,
)
from inductor_backend.kernels.decoding_attention import DecodingAttention
from inductor_backend.kernels.selection import KernelChoice, KernelKind, Operand, aten_choice
from tracer_core.plugin_api import (
    FLEX_ATTENTION,
    FLEX_ATTENTION_BACKWARD,
    Trait,
    operators,
    overloads_with,
)

aten = operators("aten")

#: Matmuls whose call may have symbolic sizes: the choice of kernel does not depend on them.
SYMBOLIC = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        packed_ops.convolution,
        packed_ops.linear,
        packed_ops.pack,
    }
)


#: Operators with an ``out=`` variant, whose overload is named "out".
OUT_FORMS = overloads_with(Trait.MATMUL)

#: Operators that return several tensors, of which the backend's call computes one.
ONE_OF_SEVERAL = frozenset({aten.convolution_backward.default})

#: GPU operators that only the backend's own graph rewrites and lowerings create.
CUDA_KERNELS = {
    unaligned_gemm.mm: selection.function_in(
        unaligned_gemm, "mm", KernelKind.PYTHON, "a matmul for each class of rows", symbolic=True
    ),
    unaligned_gemm.matmul: selection.function_in(
        unaligned_gemm, "matmul", KernelKind.PYTHON, "rows of 16 bytes", symbolic=True
    ),
    collectives.wait: selection.WAIT,
    linear_algebra.checked: selection.CHECK,
    strided_copy.copy: selection.COPY,
}

#: The call of cuDNN's recurrent layers.
RECURRENT = selection.function_in(
    recurrent, "cudnn_rnn", KernelKind.PYTHON, "on the weights where they lie", symbolic=True
)

#: CPU operators whose kernels are generated with the graph's own.
GENERATED = {
    op: KernelChoice(op, "", KernelKind.GENERATED, "its functions of scores inside", symbolic=True)
    for op in (FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD)
}

#: Batches of matmuls, which may have symbolic sizes as other matmuls may.
BATCHES = frozenset({aten.bmm.default})

ChoiceRule = Callable[[LoopProgram, ExternNode, SizeVars], KernelChoice]


def _operand(program: LoopProgram, value: Any) -> Any:
    if isinstance(value, Strided):
        return Operand(
            value.layout.sizes, value.layout.strides, program.buffers[value.buffer].dtype
        )
    if isinstance(value, (list, tuple)):
        return [_operand(program, element) for element in value]
    return value


def is_static(node: ExternNode) -> bool:
    """Returns whether all sizes, strides and offsets of the node's tensors are ints."""
    return all(
        isinstance(number, int)
        for t in node.tensors()
        for number in (*t.layout.sizes, *t.layout.strides, t.layout.offset)
    )


def _generated(*args: Any) -> Any:
    raise NotImplementedError("this call exists as a kernel of its generated module alone")


def choice_of(program: LoopProgram, node: ExternNode, sizes: SizeVars) -> KernelChoice:
    """Returns the kernel for one operator call on a CPU."""
    if node.target in GENERATED:
        return GENERATED[node.target]
    if isinstance(node.target, CompiledSteps):
        return KernelChoice(_generated, "", KernelKind.STEPS, node.target.why, symbolic=True)
    if isinstance(node.target, NativeLoop):
        return KernelChoice(_generated, "", KernelKind.LOOP, "a loop without Python", symbolic=True)
    if node.fallback or (node.unpack and node.target not in ONE_OF_SEVERAL) or node.kwargs:
        return _as_aten(node)
    choice = selection.best(
        node.target, [_operand(program, value) for value in node.args], sizes.hint
    )
    if (
        choice.kind is KernelKind.NATIVE
        and not (choice.symbolic or node.target in SYMBOLIC)
        and not is_static(node)
    ):
        return aten_choice(node.target, "a convolution of symbolic sizes")
    if choice.kind is KernelKind.ATEN and _may_write_out(program, node):
        return replace(choice, kind=KernelKind.OUT)
    return choice


def step_choice_of(program: LoopProgram, node: ExternNode, sizes: SizeVars) -> KernelChoice:
    """Returns the kernel for one operator call in a step of a loop, which runs without Python if no
    operator is ATen's."""
    choice = choice_of(program, node, sizes)
    if choice.kind is KernelKind.NATIVE or node.target not in selection.MATMULS or node.kwargs:
        return choice
    arguments = [_operand(program, value) for value in node.args]
    return selection.native_matmul(node.target, arguments, sizes.hint) or choice


def native_choice_of(program: LoopProgram, node: ExternNode, sizes: SizeVars) -> KernelChoice:
    """Returns the kernel for one operator call of a graph that runs without Python and ATen, if a
    hand-written one takes it, whether or not it is the fastest."""
    choice = step_choice_of(program, node, sizes)
    if choice.kind.is_native or node.kwargs or not (node.target in BATCHES or is_static(node)):
        return choice
    arguments = [_operand(program, value) for value in node.args]
    return selection.native_kernel(node.target, arguments, sizes.hint) or choice


def cuda_choice_of(program: LoopProgram, node: ExternNode, sizes: SizeVars) -> KernelChoice:
    """Returns the kernel for one operator call on a GPU."""
    if node.target is aten._cudnn_rnn.default and node.outputs[4] is None:
        return RECURRENT  # else it returns the buffer, which would be a view of the weights
    if isinstance(node.target, DecodingAttention):
        reason = "keys are split over programs"
        return KernelChoice(_generated, "", KernelKind.GENERATED, reason, symbolic=True)
    return CUDA_KERNELS.get(node.target) or _as_aten(node)


def _as_aten(node: ExternNode) -> KernelChoice:
    return aten_choice(node.target, "a fallback" if node.fallback else "as ATen has it")


def _may_write_out(program: LoopProgram, node: ExternNode) -> bool:
    """Returns whether the operator's ``out=`` variant gives the same result, which then lives in
    the arena or in a fresh output."""
    if node.target not in OUT_FORMS or not is_static(node):
        return False
    (name,) = node.writes
    layout = program.buffers[name].layout
    return layout.strides == contiguous_strides(layout.sizes)


def choose_externs(
    program: LoopProgram, sizes: SizeVars, rule: ChoiceRule
) -> dict[str, KernelChoice]:
    """Applies `rule` to every extern node; buffers that the backend's native kernels fill become
    ordinary temporaries."""
    chosen: dict[str, KernelChoice] = {}
    for node in program.nodes:
        if isinstance(node, ExternNode):
            chosen[node.name] = choice = rule(program, node, sizes)
            if choice.kind.fills:
                for name in node.writes:
                    program.buffers[name].kind = BufferKind.TEMP
    return chosen
