"""The compiler: one list of stages from an ATen graph to a runner.

In: a functional ATen `torch.fx.GraphModule` and its `CompileSpec`. Out: a `Runner` with its `Artifact`
in the attribute ``artifact``. What always holds: each stage is timed and may be dumped; a stage's
verifier runs when TRACER_CHECK is set; a failure says which stage failed, on what.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch

from inductor_backend import cuda_stages
from inductor_backend.autotune import matmul
from inductor_backend.codegen.common.writer import plain
from inductor_backend.codegen.cpp.kernel import KernelWriter
from inductor_backend.codegen.cpp.loops import is_column, loop_nest
from inductor_backend.codegen.cpp.module import CppModule
from inductor_backend.codegen.triton.expressions import KNOWN_OPS
from inductor_backend.codegen.wrapper import EARLY, EXAMPLE, Step, Wrapper
from inductor_backend.compilation import Compilation
from inductor_backend.debug import printer, verify
from inductor_backend.ir.nodes import BufferKind
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import target_of
from inductor_backend.kernels.packed_ops import name_of
from inductor_backend.lowering.graph import GraphLowering
from inductor_backend.lowering.image_layout import CONVOLUTIONS
from inductor_backend.options import InductorOptions, fusion_fuel
from inductor_backend.passes import cpu_scalars, kernel_prebuild
from inductor_backend.passes.attention import with_own_attention
from inductor_backend.passes.causal_mask import with_known_masks
from inductor_backend.passes.constant_folding import with_known_tensors
from inductor_backend.passes.freeze import FrozenRunner, freeze
from inductor_backend.passes.pad_matmul import with_aligned_products
from inductor_backend.passes.repeated_subgraphs import find_repeats
from inductor_backend.passes.subgraph_cut import Cut, cut_out
from inductor_backend.passes.weight_packing import pays_anywhere, with_own_kernels
from inductor_backend.runtime.cuda.graphs import recorded
from inductor_backend.schedule.dependencies import live_nodes
from inductor_backend.schedule.epilogue import absorb
from inductor_backend.schedule.exception_safety import early_writes
from inductor_backend.schedule.fused_body import kernel_body
from inductor_backend.schedule.fusion import Fusion
from inductor_backend.schedule.inline import inline
from inductor_backend.schedule.kernel_choice import choose_externs
from inductor_backend.schedule.memory_plan import given_up, lives, plan_memory, touched_storages
from inductor_backend.subgraphs.check import same_plans
from inductor_backend.subgraphs.replication import NotEqual, Scheduled, stamp
from tracer_core.plugin_api import BackendError, CompileSpec, Runner, enabled, env, note, stage, wants_text


def _lower(c: Compilation) -> None:
    c.lowered = GraphLowering(c.gm, c.spec, c.sizes, KNOWN_OPS, c.images_last)
    if c.cut is not None:
        c.lowered.saved = {
            a for b, a in enumerate(c.cut.returned) if isinstance(a, int) and b in c.lowered.saved
        }
    c.program = c.lowered.run()
    c.program.nodes = live_nodes(c.program)


def _inline(c: Compilation) -> None:
    if c.options.inline:
        c.not_inlined = inline(c.program, c.target.triton)


def _epilogue(c: Compilation) -> None:
    if c.options.fuse:
        c.absorbed = absorb(c.program, c.sizes)


def _fuse(c: Compilation) -> None:
    c.plan = Fusion(c.program, c.sizes, fusion_fuel() if c.options.fuse else 0).run()


def _externs(c: Compilation) -> None:
    c.choices = choose_externs(c.program, c.sizes)


def _bodies(c: Compilation) -> None:
    """One fused body a group of loops."""
    for group, needed_outside in c.groups_with_readers():
        if group.extern is not None:
            c.bodies.append(None)
            continue
        assert group.domain is not None
        column = is_column(c.program, group.domain, group.loops)
        c.bodies.append(
            kernel_body(c.program, group.domain, group.loops, needed_outside, c.sizes, rows=not column)
        )


def _kernels(c: Compilation) -> None:
    for group, body in zip(c.plan.groups, c.bodies, strict=True):
        if body is None:
            c.kernels.append(None)
            continue
        assert group.domain is not None
        column = is_column(c.program, group.domain, group.loops)
        nest = loop_nest(c.program, body, c.sizes, column)
        c.kernels.append(KernelWriter(c.program, body, nest, c.sizes).write())


def _stamp(c: Compilation) -> None:
    """From four equal regions to all; the whole graph is lowered where they turn out not to be equal."""
    if c.cut is None:
        return
    assert c.lowered is not None
    repeats = c.cut.repeats
    size = f"{repeats.period} nodes {repeats.count} times"
    try:
        c.kernels = stamp(c.cut, Scheduled(c.program, c.plan, c.kernels, c.choices, c.lowered))
        c.stamped = f"{size}: four are lowered"
    except NotEqual as reason:
        whole = run_stages(_whole(c), "kernels")
        for part in fields(Compilation):
            setattr(c, part.name, getattr(whole, part.name))
        c.stamped = f"{size}: all are lowered, because {reason}"


def _whole(c: Compilation) -> Compilation:
    assert c.cut is not None
    return start(c.cut.whole if c.target.triton else _prepared(c.cut.whole, c.spec), c.spec)


def _verify_stamp(c: Compilation) -> None:
    if c.cut is not None:
        whole = run_stages(_whole(c), "kernels")
        same_plans((c.program, c.plan, c.kernels), (whole.program, whole.plan, whole.kernels))


def _memory(c: Compilation) -> None:
    """Steps are groups here: a run's kernels share no lifetimes beyond their own order."""
    life = lives(touched_storages(c.program, c.plan.groups, c.kernels))
    outputs = {c.program.buffers[name].storage for name in c.program.output_names}
    owners = {name: c.program.buffers[name] for name in life}
    arena = {
        name: buffer
        for name, buffer in owners.items()
        if buffer.kind is BufferKind.TEMP and name not in outputs
    }
    tensors = [n for n, b in owners.items() if b.kind is BufferKind.EXTERN and n not in outputs]
    tensors += given_up(c.program, c.spec, outputs, life)
    c.memory = plan_memory(arena, life, tensors)


def _group_steps(c: Compilation) -> None:
    """Runs of kernels between operator calls become one exported function each."""
    cpp = CppModule(c.program, c.memory.offsets.get)
    outputs = {c.program.buffers[name].storage for name in c.program.output_names}
    made: set[str] = set()

    def allocate(step: Step, storages: Iterable[str]) -> None:
        """Outputs that we allocate are made where they are first written to."""
        for storage in storages:
            is_temp = c.program.buffers[storage].kind is BufferKind.TEMP
            if storage in outputs and is_temp and storage not in made:
                made.add(storage)
                step.fresh.append(storage)

    drops: dict[int, list[str]] = {}
    for number, (group, kernel) in enumerate(zip(c.plan.groups, c.kernels, strict=True)):
        if kernel is None:
            assert group.extern is not None
            step = Step(extern=group.extern)
            allocate(step, group.extern.writes)
            c.steps.append(step)
        else:
            if not c.steps or c.steps[-1].run is None:
                c.steps.append(Step(run=cpp.open_run()))
            step = c.steps[-1]
            assert step.run is not None
            allocate(step, kernel.pointers)
            comments = list(
                dict.fromkeys(f"{o.op}: {o.user_frame}" for node in group.loops for o in node.origins)
            )
            cpp.call(step.run, kernel, cpp.kernel(kernel, comments))
        if number in c.memory.drop_after:
            drops.setdefault(len(c.steps) - 1, []).extend(c.memory.drop_after[number])
    c.memory.drop_after = drops
    c.module, c.sources = cpp, cpp.sources()


def _module_text(c: Compilation) -> None:
    kernels = len(c.module.kernels) if c.module is not None else 0
    calls = sum(kernel is not None for kernel in c.kernels)
    externs = sum(step.extern is not None for step in c.steps)
    header = (
        f"{plain(c.spec.name)}: {calls} fused kernels ({kernels} different), {externs} operator calls.\n\n"
        "Made by inductor_backend; runs alone: python output_code.py makes random inputs and prints its time.\n"
    )
    wrapper = Wrapper(c.program, c.memory, c.spec.sizes, c.choices)
    if c.spec.mutations:
        wrapper.early = early_writes(c.gm.graph, c.program, c.plan.groups, c.kernels)
    c.text, c.natives = wrapper.module(c.steps, c.sources, header), tuple(wrapper.natives)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a runner was made from: module text, C++ sources, library (None: no kernels), counts. device: the CUDA device that
    it was made for, None: the CPU. natives: functions of our own kernels that the module calls."""

    text: str
    sources: tuple[str, ...]
    library: Any
    kernels: int
    different_kernels: int
    externs: tuple[str, ...]
    fallbacks: tuple[str, ...]
    seconds: dict[str, float]
    constants: dict[str, torch.Tensor]
    device: str | None = None
    natives: tuple[str, ...] = ()


def _load(c: Compilation) -> None:
    """Builds the library and executes the module."""
    c.runner = load_module(c.text, None, c.program.constants, c.spec.name)
    externs = [step.extern for step in c.steps if step.extern is not None]
    artifact = Artifact(
        c.text,
        tuple(c.sources),
        c.runner.__globals__.get("library"),
        sum(kernel is not None for kernel in c.kernels),
        len(c.module.kernels) if c.module else 0,
        tuple(name_of(node.target) for node in externs),
        tuple(str(n.target) for n in externs if n.fallback),
        c.seconds,
        c.program.constants,
        str(c.target.device) if c.target.device.type == "cuda" else None,
        c.natives,
    )
    c.runner.artifact = artifact  # type: ignore[attr-defined]


def load_module(text: str, library: Any, constants: dict[str, torch.Tensor], name: str) -> Runner:
    """Executes a module's text and returns its `call`."""
    namespace: dict[str, Any] = {"__name__": f"inductor_{name}", "LIBRARY": library, "CONSTANTS": constants}
    exec(compile(text.partition(f"\n{EXAMPLE}")[0], f"<inductor {name}>", "exec"), namespace)
    runner: Runner = namespace["call"]
    if EARLY in namespace:
        runner.written_early = frozenset(namespace[EARLY])  # type: ignore[attr-defined]
    return runner


@dataclass(frozen=True, slots=True)
class Action:
    """A stage on one kind of device. run: fills fields of the compilation; verify: raises VerifyError; suffix: of the file in
    the debug folder."""

    run: Callable[[Compilation], None]
    verify: Callable[[Compilation], None] | None = None
    suffix: str = "txt"


@dataclass(frozen=True, slots=True)
class Stage:
    """cpu, cuda: what it does for graphs of that device; None: the device has no such stage. dump: its result as text."""

    name: str
    cpu: Action | None
    cuda: Action | None
    dump: Callable[[Compilation], str] | None = None

    def step(self, c: Compilation) -> Action | None:
        """What it does for this graph."""
        return self.cuda if c.target.triton else self.cpu


def _everywhere(run: Callable[[Compilation], None], verify: Callable[[Compilation], None] | None = None) -> tuple[Action, Action]:
    step = Action(run, verify)
    return step, step


def _program(c: Compilation) -> None:
    verify.program(c.program)


def _plan(c: Compilation) -> None:
    verify.plan(c.program, c.plan)


def _kernel_bodies(c: Compilation) -> None:
    verify.bodies(c.program, c.bodies)


#: From an ATen graph to a runner. On CUDA "split" follows inlining, so that what a reduction reads is in its body.
PIPELINE = (
    Stage("lower", *_everywhere(_lower, _program), lambda c: printer.program(c.program)),
    Stage("inline", *_everywhere(_inline, _program), lambda c: printer.inlined(c.program, c.not_inlined)),
    Stage("epilogue", Action(_epilogue, _program), None, lambda c: "\n".join(c.absorbed)),
    Stage("split", None, Action(cuda_stages.split, _program), lambda c: "\n".join(c.absorbed)),
    Stage("matmul", None, Action(matmul.choose_products, _program),
          lambda c: "\n".join(f"{name}: {blocks}" for name, blocks in c.blocks.items())),
    Stage("fuse", Action(_fuse, _plan), Action(cuda_stages.fuse_for_gpu, _plan), lambda c: printer.plan(c.plan)),
    Stage("externs", Action(_externs), Action(cuda_stages.externs), lambda c: printer.externs(c.program, c.choices)),
    Stage("bodies", Action(_bodies, _kernel_bodies), Action(cuda_stages.bodies, _kernel_bodies),
          lambda c: printer.bodies(c.bodies)),
    Stage("kernels", Action(_kernels),
          Action(cuda_stages.kernels, lambda c: verify.reusable(c.program, c.bodies, c.kernels))),
    Stage("replicate", *_everywhere(_stamp, _verify_stamp), lambda c: c.stamped),
    Stage("memory", Action(_memory, lambda c: verify.memory(c.program, c.plan, c.kernels, c.memory)),
          Action(cuda_stages.memory, cuda_stages.verify_memory), lambda c: printer.memory(c.memory)),
    Stage("group_runs", Action(_group_steps, suffix="cpp"), Action(cuda_stages.group_steps, suffix="py"),
          lambda c: "\n".join(c.sources)),
    Stage("module", Action(_module_text, suffix="py"), Action(cuda_stages.module_text, suffix="py"), lambda c: c.text),
    Stage("build", *_everywhere(_load)),
)  # fmt: skip


def run_stages(c: Compilation, until: str | None = None) -> Compilation:
    """Runs the stages in order (until: the last to run). Raises BackendError naming stage and cause."""
    check = env().check
    steps = [(item, step) for item in PIPELINE if (step := item.step(c)) is not None]
    for number, (item, step) in enumerate(steps, 1):
        before = time.perf_counter()
        with stage(f"inductor_{item.name}", graph=c.spec.name, suffix=f".{step.suffix}") as record:
            try:
                step.run(c)
                if check and step.verify is not None:
                    step.verify(c)
            except Exception as error:
                detail, dump = f"{type(error).__name__}: {error}", None
                if isinstance(error, BackendError):
                    detail, dump = error.detail, error.dump
                where = f"inductor stage {number}/{len(steps)} {item.name!r} failed on {c.spec.name}"
                raise BackendError("inductor", item.name, f"{where}: {detail}", dump) from error
            if item.dump is not None and wants_text():
                record.text = item.dump(c)
            elif item.name == "module":
                record.text = c.text.partition("\n")[0].strip('"')  # kernels and operators of a call, counted
            if item.name == "module" and enabled("output_code"):
                note("output_code", "%s:\n%s", c.spec.name, c.text)
        c.seconds[item.name] = time.perf_counter() - before
        if item.name == until:
            break
    return c


def start(gm: torch.fx.GraphModule, spec: CompileSpec) -> Compilation:
    options = spec.options if isinstance(spec.options, InductorOptions) else InductorOptions()
    return Compilation(gm, spec, options, SizeVars(spec.sizes), target=target_of(gm.graph))


def compile_graph(gm: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Compiles one functional ATen graph. Raises BackendError; VerifyError where a stage broke its rules."""
    cut = cpu_scalars.split(gm, spec)
    if cut is not None:
        return cut.whole(compile_graph(cut.graph, cut.spec))
    triton = target_of(gm.graph).triton
    if spec.constants:
        if triton:
            raise BackendError("inductor", "freeze", "freeze=True is not built for graphs on CUDA devices")
        return _compile_frozen(with_own_attention(with_known_tensors(gm, spec), spec), spec)
    c = started_for_gpu(gm, spec) if triton else started(gm, spec)
    if not triton:
        kernel_prebuild.start_lowered(c.gm.graph.nodes)
    runner = run_stages(c).runner
    assert runner is not None
    if matmul.depends_on_settings(c):
        runner = matmul.BySettings(runner, lambda: _in_the_same_layout(c, gm, spec))
    if c.target.device.type == "cuda":
        runner = recorded(runner, gm, spec)
    if c.program.channels_last:
        runner.channels_last = frozenset(c.program.channels_last)  # type: ignore[union-attr]
    return runner


def started(gm: torch.fx.GraphModule, spec: CompileSpec) -> Compilation:
    """The compilation for CPUs of a graph, or of what stands for it where regions of it are equal."""
    if not pays_anywhere(gm, spec):
        repeats = find_repeats(gm.graph) if fusion_fuel() is None else None
        if repeats is None:
            return start(_prepared(gm, spec), spec)
    else:  # convolutions take in the nodes around them, so regions are looked for afterwards
        gm = _prepared(gm, spec)
        repeats = find_repeats(gm.graph) if fusion_fuel() is None else None
        if repeats is None:
            return start(gm, spec)
    cut = cut_out(gm, repeats)
    return _standing_for(cut, _prepared(cut.small, spec), spec)


def started_for_gpu(gm: torch.fx.GraphModule, spec: CompileSpec) -> Compilation:
    """The same for a GPU. Convolutions of all instances say how images lie, and products that are measured are measured
    once anyway: such graphs are lowered whole."""
    gm = with_aligned_products(with_known_masks(gm, spec))
    whole = fusion_fuel() is not None or spec.mode in matmul.TUNED_MODES
    repeats = None if whole else find_repeats(gm.graph)
    if repeats is None or any(repeats.calls[at].target in CONVOLUTIONS for at in repeats.instance(0)):
        return start(gm, spec)
    cut = cut_out(gm, repeats)
    return _standing_for(cut, cut.small, spec)


def _standing_for(cut: Cut, small: torch.fx.GraphModule, spec: CompileSpec) -> Compilation:
    c = start(small, spec)
    c.cut = cut
    return c


def _prepared(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """The graph to lower for a CPU; the graph itself where nothing is to be done."""
    return with_own_kernels(with_own_attention(with_known_tensors(gm, spec), spec), spec)


def _in_the_same_layout(first: Compilation, gm: torch.fx.GraphModule, spec: CompileSpec) -> Runner | None:
    """The graph again, for other settings. The backward counts on the layout of what the first returned."""
    c = start(gm, spec)
    c.images_last = first.program.images_last
    runner = run_stages(c).runner
    if c.program.channels_last != first.program.channels_last:
        raise BackendError("inductor", "lower", f"{spec.name}: with other settings, other saved values would be channels-last")
    return runner


def _compile_frozen(gm: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """The same for a graph whose parameters are constants: a runner with `prepare`."""
    with stage("inductor_freeze", graph=spec.name, suffix=".py") as record:
        frozen = freeze(gm, spec)
        if wants_text():
            record.text = frozen.graph.print_readable(print_output=False)
    kernel_prebuild.start_lowered([*frozen.graph.graph.nodes, *(node for node, _ in frozen.folded.steps)])
    runner = run_stages(started(frozen.graph, frozen.spec)).runner
    assert runner is not None
    return FrozenRunner(runner, frozen)
