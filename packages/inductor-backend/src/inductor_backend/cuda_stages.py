"""The stages that differ for graphs on CUDA devices.

In: a `Compilation` whose program is lowered and inlined. Out: its fields, as the stages of the CPU
fill them. What always holds: lowering, inlining and fusion are the same code as for the CPU, with
other limits; products and convolutions are ATen's (cuBLAS, cuDNN, with torch's settings for TF32).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inductor_backend.autotune.matmul import product_kernel, tiles_of
from inductor_backend.codegen.common.writer import plain
from inductor_backend.codegen.triton.kernel import TritonKernel, TritonKernelWriter
from inductor_backend.codegen.triton.module import TritonModule, specification_of
from inductor_backend.codegen.triton.wrapper import TritonWrapper
from inductor_backend.codegen.wrapper import Step
from inductor_backend.debug import verify
from inductor_backend.ir.nodes import Buffer, BufferKind, ExternNode, LoopNode, Node
from inductor_backend.kernels import unaligned_gemm
from inductor_backend.kernels.selection import Choice, aten_choice
from inductor_backend.options import fusion_fuel
from inductor_backend.runtime.cuda.build import start_early
from inductor_backend.schedule.fused_body import KernelBody, kernel_body
from inductor_backend.schedule.fusion import Fusion
from inductor_backend.schedule.inplace_reuse import owned_results, places_to_reuse
from inductor_backend.schedule.memory_plan import (
    Life,
    MemoryPlan,
    given_up,
    lives,
    nbytes,
    plan_memory,
    touched_storages,
)
from inductor_backend.schedule.split_reductions import split_reductions

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation

#: Rows from which a reduction's kernel may hold other work too: fewer do not keep the device busy.
ROWS_OF_A_FUSED_REDUCTION = 64

#: Parameters of equal sizes that one kernel of an optimizer takes: more would want more registers
#: than a thread has.
UPDATES_OF_A_KERNEL = 8

#: Bytes from which a tensor of its own, which the allocator has to find, may be better than a part
#: of a call's arena.
LARGE_TENSOR = 1 << 20

#: Operators that only our rewrites make.
OWN = {
    unaligned_gemm.mm: Choice(
        unaligned_gemm.mm,
        f"{unaligned_gemm.__name__}:mm",
        "python",
        "a product a class of rows, each aligned",
        symbolic=True,
    )
}


def split(c: Compilation) -> None:
    """Long reductions of few rows become two, so that the device is busy; scatters may come in any
    order.
    """
    c.program.nodes = [_in_any_order(node) for node in c.program.nodes]
    made = len(c.program.buffers)
    c.absorbed = split_reductions(c.program, c.sizes)
    _note_instances(c, list(c.program.buffers)[made:])


def _note_instances(c: Compilation, new: list[str]) -> None:
    """What a node of an equal instance of the graph was split into is that instance's, too
    (`regions`).
    """
    if c.cut is None:
        return
    assert c.lowered is not None
    instances = c.lowered.instances
    readers: dict[str, list[Node]] = {}
    for node in c.program.nodes:
        for name in node.reads():
            readers.setdefault(name, []).append(node)
    for name in reversed(
        new
    ):  # parts are read by what was made after them, or by the node that was split
        found = {instances.get(other) for node in readers[name] for other in node.writes}
        (number,) = found if len(found) == 1 else (None,)
        if number is not None:
            instances[name] = number


def _in_any_order(node: Node) -> Node:
    if not isinstance(node, LoopNode) or all(store.combine is None for store in node.stores):
        return node
    stores = tuple(replace(store, atomic=store.combine is not None) for store in node.stores)
    return replace(node, stores=stores, reduced=(False,) * len(node.reduced))


def fuse_for_gpu(c: Compilation) -> None:
    fuel = fusion_fuel() if c.options.fuse else 0
    rows, together = ROWS_OF_A_FUSED_REDUCTION, UPDATES_OF_A_KERNEL
    c.plan = Fusion(c.program, c.sizes, fuel, rows, reads_scans=False, together=together).run()


def externs(c: Compilation) -> None:
    for node in c.program.nodes:
        if isinstance(node, ExternNode):
            c.choices[node.name] = OWN.get(node.target) or aten_choice(
                node.target, "a fallback" if node.fallback else "as ATen has it"
            )


def bodies(c: Compilation) -> None:
    for group, needed_outside in c.groups_with_readers():
        if group.extern is not None:
            c.bodies.append(None)
            continue
        assert group.domain is not None
        c.bodies.append(
            kernel_body(
                c.program,
                group.domain,
                group.loops,
                needed_outside,
                c.sizes,
                rows=False,
                in_registers=True,
            )
        )


def kernels(c: Compilation) -> None:
    products = [
        body is not None and group.loops[0].product
        for group, body in zip(c.plan.groups, c.bodies, strict=True)
    ]
    tiles = tiles_of(
        c, [None if own else body for own, body in zip(products, c.bodies, strict=True)]
    )
    for group, body, own, tile in zip(c.plan.groups, c.bodies, products, tiles, strict=True):
        kernel: Any = None
        if body is not None and own:
            kernel = product_kernel(c.program, body, c.sizes, c.blocks[group.loops[0].name])
        elif body is not None:
            kernel = TritonKernelWriter(c.program, body, c.sizes, tile).write()
            if not kernel.looped:
                kernel = replace(kernel, reusable=_reusable(c, body, kernel))
        c.kernels.append(kernel)
        if kernel is not None:
            start_early(specification_of(kernel), c.target.device)


def _reusable(
    c: Compilation, body: KernelBody, kernel: TritonKernel
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    number = {name: at for at, name in enumerate(kernel.pointers)}
    places = places_to_reuse(c.program, body)
    return tuple(  # of empty operands the kernel knows nothing
        (number[name], tuple(number[other] for other in others if other in number))
        for name, others in places.items()
    )


def memory(c: Compilation) -> None:
    """What only kernels touch shares one allocation a call; what an operator touches is a tensor of
    its own, made in the memory of another one where a kernel reads that last. Then the other one is
    a tensor, too, if that makes the most that a call holds less."""
    touched = touched_storages(c.program, c.plan.groups, c.kernels)
    pairs = zip(touched, c.kernels, strict=True)
    by_operators = {name for names, kernel in pairs if kernel is None for name in names}
    life = lives(touched)
    outputs = {c.program.buffers[name].storage for name in c.program.output_names}
    owners = {name: c.program.buffers[name] for name in life}
    ours = {n: b for n, b in owners.items() if b.kind is not BufferKind.INPUT and n not in outputs}
    arena = {
        name: buffer
        for name, buffer in ours.items()
        if buffer.kind is BufferKind.TEMP and name not in by_operators and not c.target.interpreted
    }
    inputs = given_up(c.program, c.spec, outputs, life)

    def planned(arena: dict[str, Buffer]) -> tuple[MemoryPlan, dict[str, str]]:
        tensors = [name for name in ours if name not in arena]
        return plan_memory(arena, life, tensors + inputs), _written_over(c, life, outputs, arena)

    c.memory, c.over = planned(arena)
    anywhere = _written_over(c, life, outputs, {})
    large = {
        other
        for name, other in anywhere.items()
        if name not in arena and _is_large(arena.get(other))
    }
    if large:
        second = planned({name: buffer for name, buffer in arena.items() if name not in large})
        if _most(owners, life, outputs, *second) < _most(owners, life, outputs, c.memory, c.over):
            c.memory, c.over = second


def _is_large(buffer: Buffer | None) -> bool:
    size = 0 if buffer is None else nbytes(buffer)
    return isinstance(size, int) and size >= LARGE_TENSOR


def _most(
    owners: dict[str, Buffer],
    life: dict[str, Life],
    outputs: set[str],
    plan: MemoryPlan,
    over: dict[str, str],
) -> int:
    """The most bytes of its own that a call holds at once, apart from tensors of symbolic sizes."""
    change: Counter[int] = Counter()
    for name, buffer in owners.items():
        size = nbytes(buffer)
        if (
            buffer.kind is not BufferKind.INPUT
            and name not in plan.offsets
            and isinstance(size, int)
        ):
            change[life[name].first + (name in over)] += size
            if name not in outputs:
                change[life[name].last + 1] -= size
    held = itertools.accumulate((change[step] for step in sorted(change)), initial=0)
    return max(held) + (plan.size if isinstance(plan.size, int) else 0)


def verify_memory(c: Compilation) -> None:
    verify.memory(c.program, c.plan, c.kernels, c.memory)
    verify.written_over(c.program, c.plan, c.kernels, c.over)


def _written_over(
    c: Compilation, life: dict[str, Life], outputs: set[str], arena: Container[str]
) -> dict[str, str]:
    """Tensor -> the tensor in whose memory it is made: one that its kernel reads last, point by
    point. arena: what is no tensor."""
    found: dict[str, str] = {}
    owned = owned_results(c.program, [g.extern for g in c.plan.groups if g.extern is not None])
    for number, kernel in enumerate(c.kernels):
        if kernel is None:
            continue
        taken: set[str] = set()
        for place, places in kernel.reusable:  # type: ignore[attr-defined]
            name = kernel.pointers[place]
            if life[name].first != number or name in arena:
                continue
            for other in map(kernel.pointers.__getitem__, places):
                free = other in owned and other not in outputs and other not in arena
                if free and other not in taken and life[other].last == number:
                    found[name] = other
                    taken.add(other)
                    break
    return found


def group_steps(c: Compilation) -> None:
    """Runs of kernels between operator calls become one call each."""
    module = TritonModule(c.program, c.memory.offsets.get)
    made: set[str] = set()

    def allocate(step: Step, storages: list[str]) -> None:
        for name in storages:
            is_temp = c.program.buffers[name].kind is BufferKind.TEMP
            if is_temp and name not in made and name not in c.memory.offsets:
                made.add(name)
                step.fresh.append(name)

    drops: dict[int, list[str]] = {}
    for number, (group, kernel) in enumerate(zip(c.plan.groups, c.kernels, strict=True)):
        if kernel is None:
            c.steps.append(Step(extern=group.extern))
        else:
            if not c.steps or c.steps[-1].run is None:
                c.steps.append(Step(run=module.open_run()))  # type: ignore[arg-type]
            step = c.steps[-1]
            allocate(step, list(kernel.pointers))
            comments = list(
                dict.fromkeys(
                    f"{o.op}: {o.user_frame}" for node in group.loops for o in node.origins
                )
            )
            module.call(step.run, kernel, module.kernel(kernel, comments))  # type: ignore[arg-type]
        if number in c.memory.drop_after:
            drops.setdefault(len(c.steps) - 1, []).extend(c.memory.drop_after[number])
    c.memory.drop_after = drops
    c.module, c.sources = module, module.sources()


def module_text(c: Compilation) -> None:
    module = c.module
    assert isinstance(module, TritonModule)
    launched = sum(kernel is not None for kernel in c.kernels)
    operators = sum(step.extern is not None for step in c.steps)
    header = (
        f"{plain(c.spec.name)}: {launched} fused kernels ({len(module.kernels)} different),"
        f" {operators} operator calls.\n\nMade by inductor_backend; runs alone: python"
        " output_code.py makes random inputs and prints its time.\n"
    )
    wrapper = TritonWrapper(
        c.program, c.memory, c.spec.sizes, c.choices, module, c.target.device, c.over
    )
    c.text = wrapper.module(c.steps, c.sources, header)
