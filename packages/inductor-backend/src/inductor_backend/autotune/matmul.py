"""Decides which matmuls on CUDA devices become generated kernels, with which blocks.

Runs on an inlined program; turns the chosen matmuls into loops and fills `blocks`. (`tiles` chooses
the tiles of the other kernels.) In max-autotune a matmul becomes a generated kernel only where, on
this device and at the captured sizes, its kernel is faster than the operator followed by a kernel
for the fused epilogue; in the other modes, where it reads a narrow weight
(`schedule/narrow_weights.py`). float32 matmuls qualify only where torch allows TF32; a graph with
such matmuls is recompiled when that setting changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from inductor_backend.autotune.choices import Kernels, TunedChoice, build_all, choose, layout_hint
from inductor_backend.autotune.matmul_configs import Work, candidates, device_of, few_rows
from inductor_backend.codegen.triton.kernel import TritonKernel, TritonKernelWriter
from inductor_backend.codegen.triton.matmul import Blocks, MatmulKernelWriter
from inductor_backend.ir.nodes import ExternNode, LoopNode, LoopProgram, Strided
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.runtime.cuda import tf32
from inductor_backend.runtime.module_runner import ModuleRunner
from inductor_backend.schedule.atomics import scatters_atomically
from inductor_backend.schedule.fused_body import KernelBody, kernel_body
from inductor_backend.schedule.fusion import Fusion, Group, readers_outside
from inductor_backend.schedule.fusion_legality import Domain
from inductor_backend.schedule.inline import inline
from inductor_backend.schedule.matmul_loops import matmuls_as_loops
from inductor_backend.schedule.narrow_weights import narrow_weights
from inductor_backend.torch_private import tf32_allowed
from tracer_core.plugin_api import BackendError, logger

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation

#: Modes in which kernels are chosen by measurement.
TUNED_MODES = frozenset({"max-autotune", "max-autotune-no-cudagraphs"})


def tuned(c: Compilation) -> bool:
    return c.spec.mode in TUNED_MODES


def choose_matmuls(c: Compilation) -> None:
    """Rewrites the matmuls that generated kernels are to compute."""
    if not c.options.fuse:
        return
    c.blocks |= _measured(c) if tuned(c) else _of_narrow_weights(c)
    if c.blocks:
        c.program, _ = matmuls_as_loops(c.program, c.sizes, tuple(c.blocks))
        inline(c.program, gpu=not tuned(c))


def _of_narrow_weights(c: Compilation) -> dict[str, Blocks]:
    """Returns the calls whose weights are converted in their kernels and nowhere else, and their
    blocks."""
    weights = narrow_weights(c.program, c.sizes)
    if not weights:
        return {}
    trial, _ = matmuls_as_loops(c.program, c.sizes, tuple(weights))
    inline(trial, gpu=True)
    stored = {name for node in trial.nodes for name in node.writes}
    result = {}
    for group, needed in _matmul_groups(c, trial):
        rows, name = group.loops[0].sizes[-3], group.loops[0].name
        if weights[name] in stored:
            continue
        blocks = few_rows(c.sizes.hint(rows))
        try:
            matmul_kernel(trial, _body(c, trial, group, needed), c.sizes, blocks)
            result[name] = blocks
        except BackendError as error:
            logger().debug("%s stays an operator: %s", name, error)
    return result


def _matmul_groups(
    c: Compilation, trial: LoopProgram
) -> Iterator[tuple[Group, Callable[[str], bool]]]:
    """Yields the groups of matmuls, and which of their results others read."""
    plan = Fusion(trial, c.sizes).run()
    for group, needed in readers_outside(trial, plan.groups):
        if group.loops and group.loops[0].is_matmul:
            yield group, needed


def _body(
    c: Compilation, trial: LoopProgram, group: Group, needed: Callable[[str], bool]
) -> KernelBody:
    assert group.domain is not None
    return kernel_body(
        trial, group.domain, group.loops, needed, c.sizes, rows=False, in_registers=True
    )


def _measured(c: Compilation) -> dict[str, Blocks]:
    """Returns the calls that a generated kernel computes faster, and its blocks."""
    calls = {node.name: node for node in c.program.nodes if isinstance(node, ExternNode)}
    possible = [name for name, node in calls.items() if _allowed(c, node)]
    trial, names = matmuls_as_loops(c.program, c.sizes, possible)
    if not names:
        return {}
    inline(trial)
    choices = []
    for group, needed in _matmul_groups(c, trial):
        call = calls[group.loops[0].name]
        try:
            choices.append((call, *_possible(c, trial, group, needed, call)))
        # e.g. an operand that is broadcast along the outer dimension
        except BackendError as error:
            logger().debug("%s stays an operator: %s", call.name, error)
    build_all(c, [choice for _, _, choice in choices])
    chosen = {call.name: tried.get(choose(c, choice)) for call, tried, choice in choices}
    return {name: blocks for name, blocks in chosen.items() if blocks is not None}


def _allowed(c: Compilation, node: ExternNode) -> bool:
    """Returns whether a generated kernel may compute the call. A float32 convolution may use TF32
    where cuDNN's kernel for it rounds to TF32 too."""
    dtypes = {c.program.buffers[tensor.buffer].dtype for tensor in node.tensors()}
    if torch.float32 not in dtypes:
        return True
    if node.target is not torch.ops.aten.convolution.default:
        return tf32_allowed(convolution=False)
    return tf32_allowed(convolution=True) and (
        c.target.interpreted or tf32.rounds(_call(c, node), c.target.device)
    )


def _call(c: Compilation, node: ExternNode) -> tuple[Any, ...]:
    """Returns the operator and its arguments, with meta tensors in place of tensors."""
    return node.target, *(
        torch.empty_strided(*layout_hint(c, arg.layout), device="meta")
        if isinstance(arg, Strided)
        else arg
        for arg in node.args
    )


def matmul_kernel(
    program: LoopProgram, body: KernelBody, sizes: SizeVars, blocks: Blocks
) -> TritonKernel:
    return MatmulKernelWriter(program, body, sizes, blocks, operand_type(program, body)).write()


def operand_type(program: LoopProgram, body: KernelBody) -> torch.dtype:
    """Returns the dtype in which the operator multiplies."""
    (store,) = (store for phase in body.phases for store in phase.reductions)
    return program.operands[store.buffers[0]]


def _possible(
    c: Compilation,
    trial: LoopProgram,
    group: Group,
    needed: Callable[[str], bool],
    call: ExternNode,
) -> tuple[dict[str, Blocks], TunedChoice]:
    """Returns the blocks to try, by name, and the choice between their kernels and the operator.
    Raises BackendError where there is no candidate."""
    body = _body(c, trial, group, needed)
    tried = {str(blocks): blocks for blocks in _candidates(c, trial, body)}
    if not tried:
        raise BackendError("inductor", "matmul", "it is smaller than any block")
    kernels = Kernels(
        {
            name: partial(matmul_kernel, trial, body, c.sizes, blocks)
            for name, blocks in tried.items()
        }
    )
    kernels.first()  # raises where no generated kernel can compute the matmul
    return tried, TunedChoice(trial, kernels, (call, _rest(c, trial, group, needed)))


def _candidates(c: Compilation, trial: LoopProgram, body: KernelBody) -> list[Blocks]:
    operands = operand_type(trial, body)
    writer = MatmulKernelWriter(trial, body, c.sizes, Blocks(64, 64, 64, 4, 3), operands)
    rows, columns = writer.tile.axes
    work = Work(
        c.sizes.hint(rows.numel),
        c.sizes.hint(columns.numel),
        c.sizes.hint(writer.terms.numel),
        math.prod(c.sizes.hint(writer.nest.sizes[loop]) for loop in writer.batch),
        operands.itemsize,
        writer.bulk_operands(),
    )
    return candidates(work, device_of(c.target.device))


def _rest(
    c: Compilation, trial: LoopProgram, group: Group, needed: Callable[[str], bool]
) -> TritonKernel | None:
    """Returns the kernel that the operator would need for the rest of the fused group; a lone bias
    needs none."""
    matmul, *others = group.loops
    if all(node.origin == matmul.origin for node in others) or group.domain is None:
        return None
    outer = group.domain.outer
    nodes = [replace(node, sizes=outer, reduced=(False,) * len(outer)) for node in others]
    (name,) = matmul.stores[0].buffers
    buffers = dict(trial.buffers)
    buffers[name] = replace(buffers[name], dtype=trial.operands[name])
    program = replace(trial, buffers=buffers)
    domain = Domain(outer, (False,) * len(outer))
    body = kernel_body(program, domain, nodes, needed, c.sizes, rows=False, in_registers=True)
    return TritonKernelWriter(program, body, c.sizes).write()


def has_float32_matmuls(c: Compilation) -> bool:
    return any(
        isinstance(node, LoopNode)
        and node.is_matmul
        and c.program.operands[node.writes[0]] == torch.float32
        for node in c.program.nodes
    )


def depends_on_settings(c: Compilation) -> bool:
    """Returns whether the graph was compiled for allowed TF32, or for nondeterministic algorithms."""
    return scatters_atomically(c.program) or has_float32_matmuls(c)


def by_settings(
    first: ModuleRunner, compile_again: Callable[[], ModuleRunner], stored: bool = False
) -> ModuleRunner:
    """Returns a runner that recompiles for each new setting of TF32 and of deterministic
    algorithms. first: compiled for the current settings. stored: the runner may be stored, as
    `first`: it does not depend on TF32."""
    runners = {_settings(): first}

    def current() -> ModuleRunner:
        settings = _settings()
        return runners.get(settings) or runners.setdefault(settings, compile_again())

    def run_with(inputs: list[Any]) -> Sequence[Any]:
        scalars = current().scalars
        assert scalars is not None  # symbolic scalars do not depend on the settings
        return scalars[1](inputs)

    scalars = None if first.scalars is None else (first.scalars[0], run_with)
    return ModuleRunner(
        lambda inputs: current().run(inputs),
        artifact=first.artifact if stored else None,
        launches=first.launches,
        scalars=scalars,
    )


def _settings() -> tuple[bool, bool, bool]:
    return tf32_allowed(False), tf32_allowed(True), torch.are_deterministic_algorithms_enabled()
