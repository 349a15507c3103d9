"""Stages from the ATen graph to a runner: loops, fusion, kernels, memory, the module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from inductor_backend import stages
from inductor_backend.autotune.tiles import combine
from inductor_backend.codegen.common.op_table import KNOWN_OPS
from inductor_backend.codegen.triton.block_sizes import MAX_PERSISTENT
from inductor_backend.codegen.triton.horizontal import written_by
from inductor_backend.codegen.triton.module import specification_of
from inductor_backend.codegen.wrapper import WrapperStep
from inductor_backend.compilation import Compilation
from inductor_backend.debug import verify
from inductor_backend.device_codegen import codegen_of
from inductor_backend.environment import FUEL
from inductor_backend.ir.native_loop import NativeLoop
from inductor_backend.ir.nodes import BufferKind, ExternNode
from inductor_backend.kernel_table import kernel_table
from inductor_backend.kernels.packed_ops import name_of
from inductor_backend.lowering.graph import GraphLowering
from inductor_backend.passes.outline import note_all_instances
from inductor_backend.runtime.cuda.build import start_early
from inductor_backend.runtime.generated_module import Artifact, load_module, runner_of
from inductor_backend.schedule.atomics import (
    add_along_rows,
    scatter_in_any_order,
    scatters_atomically,
)
from inductor_backend.schedule.buffer_layouts import choose_layouts
from inductor_backend.schedule.dependencies import live_nodes
from inductor_backend.schedule.divided_loops import split_divided_loops
from inductor_backend.schedule.epilogue import fuse_extern_epilogues
from inductor_backend.schedule.fused_body import kernel_body
from inductor_backend.schedule.fusion import Fusion, Group
from inductor_backend.schedule.horizontal_fusion import Launch, independent_kernels
from inductor_backend.schedule.inline import inline
from inductor_backend.schedule.kernel_choice import choose_externs, native_choice_of, step_choice_of
from inductor_backend.schedule.memory_plan import nbytes, plan_memory
from inductor_backend.schedule.online_softmax import merge_online
from inductor_backend.schedule.rounding import insert_rounding
from inductor_backend.schedule.short_reductions import unroll_short_reductions
from inductor_backend.schedule.split_reductions import split_reductions
from inductor_backend.schedule.zero_pages import leave_zeros
from inductor_backend.subgraphs.check import same_plans
from inductor_backend.subgraphs.replication import NotEqual, Scheduled, note_instances, replicate
from tracer_core.plugin_api import enabled, note, row_label


def lower_graph(c: Compilation) -> None:
    """Lowers the graph to a program of loops and calls."""
    c.lowered = GraphLowering(c.gm, c.spec, c.sizes, KNOWN_OPS, c.channels_last_outputs)
    if c.outline is not None:
        c.lowered.saved = {
            a
            for b, a in enumerate(c.outline.returned)
            if isinstance(a, int) and b in c.lowered.saved
        }
    c.program = c.lowered.run()
    c.program.nodes = live_nodes(c.program)


def round_loads(c: Compilation) -> None:
    """Rounds loads where eager's rounding shows."""
    c.rounded = insert_rounding(c.program, c.options.numerics == "eager", c.target.triton)


def inline_loops(c: Compilation) -> None:
    """Moves loops into those that read them."""
    if c.options.inline:
        c.not_inlined = inline(c.program, c.target.triton)


def fuse_call_epilogues(c: Compilation) -> None:
    """Moves loops into the calls of ATen whose results they read."""
    if c.options.fuse:
        c.fused = fuse_extern_epilogues(c.program, c.sizes)


def scatter_atomically(c: Compilation) -> None:
    """Lets scatters add in any order, along rows in memory."""
    scatter_in_any_order(c.program)
    c.fused = add_along_rows(c.program, c.sizes)


def choose_buffer_layouts(c: Compilation) -> None:
    """Chooses the layouts of intermediate buffers; the same for all repeated subgraphs."""
    c.fused = choose_layouts(c.program, c.sizes)


def leave_zero_pages(c: Compilation) -> None:
    """Leaves the zeros of results that a few rows are added to, to the system."""
    c.fused = [] if c.aot_standalone or c.in_loop else leave_zeros(c.program, c.sizes)


def split_long_reductions(c: Compilation) -> None:
    """Unrolls very short reductions, merges those of a softmax, and splits long ones of few rows, to
    keep the device busy."""
    count = len(c.program.buffers)
    c.fused = unroll_short_reductions(c.program, c.sizes)
    c.fused += merge_online(c.program, c.sizes, MAX_PERSISTENT)
    c.fused += split_reductions(c.program, c.sizes)
    if c.outline is not None:
        assert c.lowered is not None
        note_instances(c.program, c.lowered.instances, list(c.program.buffers)[count:])


def fuse_loops(c: Compilation) -> None:
    """Groups loops into kernels."""
    fuel = FUEL.read() if c.options.fuse else 0
    assert c.lowered is not None
    limits = codegen_of(c.target).limits
    c.plan = Fusion(c.program, c.sizes, fuel, limits, c.lowered.instances).run()


def split_divisions(c: Compilation) -> None:
    """Splits loops whose variable is divided."""
    c.fused = split_divided_loops(c.program, c.plan)


def choose_kernels(c: Compilation) -> None:
    """Chooses the kernel of each call."""
    rule = codegen_of(c.target).choice
    rule = native_choice_of if c.aot_standalone else step_choice_of if c.in_loop else rule
    c.choices = choose_externs(c.program, c.sizes, rule)


def build_bodies(c: Compilation) -> None:
    """Builds the fused body of each group of loops."""
    codegen = codegen_of(c.target)
    for group, needed in c.groups_with_readers():
        if group.domain is None:
            c.bodies.append(None)
            continue
        rows = codegen.walks_rows(c, group)
        c.bodies.append(
            kernel_body(
                c.program, group.domain, group.loops, needed, c.sizes, rows, codegen.in_registers
            )
        )


def write_kernels(c: Compilation) -> None:
    """Writes the kernels."""
    c.kernels = codegen_of(c.target).kernels(c)


def replicate_repeats(c: Compilation) -> None:
    """Lowers four repeated subgraphs and replicates them; lowers the whole graph if they differ."""
    if c.outline is None:
        return
    assert c.lowered is not None
    repeats = c.outline.repeats
    size = f"{repeats.period} nodes {repeats.count} times"
    try:
        c.kernels = replicate(
            c.outline, Scheduled(c.program, c.plan, c.kernels, c.choices, c.lowered)
        )
        c.replication = f"{size}: four are lowered"
    except NotEqual as reason:
        full = _full_graph(c)
        for part in fields(Compilation):
            setattr(c, part.name, getattr(full, part.name))
        c.replication = f"{size}: all are lowered, because {reason}"


def _full_graph(c: Compilation) -> Compilation:
    assert c.outline is not None
    full = stages.start(c.outline.full, c.spec, c.stages)
    full = replace(
        full, original=c.original, wraps=c.wraps, frozen=c.frozen, aot_standalone=c.aot_standalone
    )
    return stages.run_stages(full, "kernels", first=c.resume_stage)


def verify_replication(c: Compilation) -> None:
    """Compares the replicated program with that of the whole graph."""
    if c.outline is not None:
        note_all_instances(c.outline.repeats)
        full = _full_graph(c)
        same_plans((c.program, c.plan, c.kernels), (full.program, full.plan, full.kernels))


def combine_kernels(c: Compilation) -> None:
    """Fuses small independent kernels horizontally, and starts building all kernels."""
    kernels: list[Any] = list(c.kernels)
    launches = [[number] for number in range(len(kernels))]
    if c.options.fuse and FUEL.read() is None:
        launches = independent_kernels(list(map(partial(_launch, c), c.plan.groups, kernels)))
    parts = [[kernels[number] for number in numbers] for numbers in launches]
    combined = iter(combine(c, [some for some in parts if some[0] is not None]))
    kernels = [None if some[0] is None else next(combined) for some in parts]
    c.kernels, groups = kernels, c.plan.groups
    groups[:] = [_beside([groups[number] for number in numbers]) for numbers in launches]
    c.combined = [" | ".join(node.name for node in group.nodes) for group in groups if group.parts]
    for kernel in kernels:
        if kernel is not None:
            start_early(specification_of(kernel), c.target.device)


def verify_launches(c: Compilation) -> None:
    """Checks the order of launches; of replicated subgraphs, the nodes do not tell it."""
    if c.outline is None:
        verify.launches(c.program, c.plan)


def _launch(c: Compilation, group: Group, kernel: Any) -> Launch | None:
    if kernel is None:
        return None
    names = {name for node in group.nodes for name in (*node.reads(), *node.writes)}
    empty = any(c.program.buffers[name].layout.numel == 0 for name in names)
    temporary = [
        c.program.buffers[name]
        for name in written_by(kernel)
        if c.program.buffers[name].kind is BufferKind.TEMP
    ]
    return Launch(
        frozenset(kernel.pointers),
        written_by(kernel),
        kernel.nbytes,
        sum(c.sizes.hint(nbytes(buffer)) for buffer in temporary),
        len(kernel.pointers) + len(kernel.sizes),
        (kernel.constants, kernel.warps, kernel.looped)
        if "RBLOCK" in dict(kernel.constants)
        else None,
        kernel.part is None or empty,  # a kernel has no pointers to what is empty
    )


def _beside(groups: Sequence[Group]) -> Group:
    """Returns the group whose kernel does what those of the groups did."""
    first, *others = groups
    if not others:
        return first
    nodes = [node for group in groups for node in group.nodes]
    return replace(first, nodes=nodes, domain=None, parts=groups)


def place_memory(c: Compilation) -> None:
    """Places temporary buffers in memory."""
    c.memory = plan_memory(
        c.program, c.spec, c.plan.groups, c.kernels, codegen_of(c.target).arena(c)
    )


def verify_memory(c: Compilation) -> None:
    """Checks that no buffer is written over while it is read."""
    verify.memory(c.program, c.plan, c.kernels, c.memory)
    verify.written_over(c.program, c.plan, c.kernels, c.memory.over)


def group_runs(c: Compilation) -> None:
    """Combines runs of kernels between operator calls into one call each."""
    module = codegen_of(c.target).module(c)
    texts: set[str] = set()

    def allocate(step: WrapperStep, storages: tuple[str, ...]) -> None:
        """Allocates tensors where they are first written to."""
        for name in storages:
            is_temp = c.program.buffers[name].kind is BufferKind.TEMP
            if is_temp and name not in texts and name not in c.memory.offsets:
                texts.add(name)
                step.fresh.append(name)

    drops: dict[int, list[str]] = {}
    for number, (group, kernel) in enumerate(zip(c.plan.groups, c.kernels, strict=True)):
        if kernel is None:
            assert group.extern is not None
            step = WrapperStep(extern=group.extern)
            allocate(step, group.extern.writes)
            c.steps.append(step)
        else:
            if not c.steps or c.steps[-1].run is None or number in c.memory.breaks:
                c.steps.append(WrapperStep(run=module.open_run()))
            step = c.steps[-1]
            assert step.run is not None
            allocate(step, kernel.pointers)
            comments = list(
                dict.fromkeys(
                    f"{o.op}: {o.user_frame}" for node in group.loops for o in node.origins
                )
            )
            module.call(step.run, kernel, comments)
            frames = [o.user_frame for node in group.loops for o in node.origins]
            step.run.rows.append(row_label(step.run.called[-1], frames))
        if number in c.memory.drop_after:
            drops.setdefault(len(c.steps) - 1, []).extend(c.memory.drop_after[number])
    c.memory.drop_after = drops
    targets = [node.target for node in c.program.nodes if isinstance(node, ExternNode)]
    loops = [target for target in targets if isinstance(target, NativeLoop)]
    c.module, c.sources = module, module.sources()
    c.sources += [text for loop in loops for text in loop.sources]


def write_module(c: Compilation) -> None:
    """Writes the Python module that calls the kernels."""
    assert c.module is not None
    wrapper, kernels = codegen_of(c.target).wrapper(c), len(c.module.kernels)
    c.text = wrapper.module(c.steps, c.sources, c.spec.name, kernels)
    c.code, c.summary = wrapper.code, wrapper.summary(c.steps, c.spec.name, kernels)
    c.natives = tuple(wrapper.natives)
    if enabled("output_code"):
        note("output_code", "%s:\n%s", c.spec.name, c.text)
    if enabled("kernels"):
        note("kernels", "%s:\n%s", c.spec.name, kernel_table(c))


def load(c: Compilation) -> None:
    """Builds the library and executes the module."""
    namespace = load_module(c.code, None, c.program.constants, c.spec.name)
    externs = [step.extern for step in c.steps if step.extern is not None]
    artifact = Artifact(
        c.text,
        tuple(c.sources),
        namespace.get("library"),
        sum(kernel is not None for kernel in c.kernels),
        len(c.module.kernels) if c.module else 0,
        tuple(name_of(node.target) for node in externs),
        tuple(str(n.target) for n in externs if n.fallback),
        c.seconds,
        c.program.constants,
        str(c.target.device) if c.target.device.type == "cuda" else None,
        c.natives,
        deterministic=not scatters_atomically(c.program),
    )
    c.runner = runner_of(namespace, artifact)


def cache_data(c: Compilation) -> dict[str, list[str]]:
    """Returns what a report shows of the built library: whether the cache had it, and why."""
    library = None if c.runner is None else c.runner.artifact.library
    if library is None:
        return {}
    return {"cache": [f"kernels: {'hit' if library.hit else 'miss'}: {library.reason}"]}


def verify_program(c: Compilation) -> None:
    """Checks the invariants of the program."""
    verify.program(c.program)
