"""The compiler: one list of stages from an ATen graph to a runner, the same for C++ and Triton.

In: a functional ATen `torch.fx.GraphModule` and its `CompileSpec`. Out: a `Runner` with its
`Artifact`. What always holds: every rewrite of the graph is a separate, timed stage that may be
dumped; a stage's verifier runs when TRACER_CHECK is set; an error names the stage and the cause.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from inductor_backend.autotune import matmul
from inductor_backend.codegen.common.op_table import KNOWN_OPS
from inductor_backend.codegen.cpp.module import CppModule
from inductor_backend.codegen.cpp.native_loop import LoopShape, LoopWriter
from inductor_backend.codegen.wrapper import Step
from inductor_backend.compilation import Compilation
from inductor_backend.debug import printer, verify
from inductor_backend.device_codegen import codegen_of
from inductor_backend.ir.native_loop import CompiledSteps, NativeLoop
from inductor_backend.ir.nodes import Buffer, BufferKind, ExternNode, Layout
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import target_of
from inductor_backend.kernels.packed_ops import name_of
from inductor_backend.lowering.graph import GraphLowering
from inductor_backend.lowering.image_layout import CONVOLUTIONS
from inductor_backend.options import InductorOptions, fusion_fuel
from inductor_backend.passes import cpu_scalars, kernel_prebuild
from inductor_backend.passes.attention import with_own_attention
from inductor_backend.passes.causal_mask import with_causal_masks
from inductor_backend.passes.constant_folding import with_folded_constants
from inductor_backend.passes.decompositions import step_products
from inductor_backend.passes.freeze import frozen_editor, frozen_runner, without_constants
from inductor_backend.passes.frozen_rewrites import fold_batch_norm, fuse_epilogues, pack_weights
from inductor_backend.passes.fx_edit import Editor
from inductor_backend.passes.horizontal_matmul import merge_matmuls
from inductor_backend.passes.lstm import pack_layers
from inductor_backend.passes.own_operators import with_own_operators
from inductor_backend.passes.pad_matmul import with_padded_matmuls
from inductor_backend.passes.repeated_subgraphs import find_repeats
from inductor_backend.passes.subgraph_cut import cut_out
from inductor_backend.passes.weight_packing import pays_anywhere, with_own_kernels
from inductor_backend.runtime.cuda.graphs import recorded
from inductor_backend.runtime.generated_module import Artifact, load_module, runner_of
from inductor_backend.runtime.module_runner import ModuleRunner
from inductor_backend.schedule.atomics import scatter_in_any_order
from inductor_backend.schedule.dependencies import live_nodes
from inductor_backend.schedule.epilogue import fuse_extern_epilogues
from inductor_backend.schedule.fused_body import kernel_body
from inductor_backend.schedule.fusion import Fusion
from inductor_backend.schedule.inline import inline
from inductor_backend.schedule.kernel_choice import choose_externs, own_choice_of, step_choice_of
from inductor_backend.schedule.memory_plan import plan_memory
from inductor_backend.schedule.rounding import insert_rounding
from inductor_backend.schedule.split_reductions import split_reductions
from inductor_backend.subgraphs.check import same_plans
from inductor_backend.subgraphs.replication import NotEqual, Scheduled, note_instances, replicate
from tracer_core.plugin_api import (
    COND,
    SCAN,
    WHILE_LOOP,
    BackendError,
    CompilerMissingError,
    CompileSpec,
    Phase,
    RequirementError,
    Runner,
    enabled,
    env,
    note,
    scan_step,
    stage,
    wants_text,
)

Rewrite = Callable[[torch.fx.GraphModule, CompileSpec], torch.fx.GraphModule]


# rewrites of the ATen graph
# ---------------------------------------------------------------------------


def _rewritten(rewrite: Rewrite) -> Callable[[Compilation], None]:
    def run(c: Compilation) -> None:
        c.gm = rewrite(c.gm, c.spec)

    return run


def _split_host_side(c: Compilation) -> None:
    split = cpu_scalars.split(c.gm, c.spec)
    if split is not None:
        c.gm = c.given = split.graph
        c.spec = split.spec
        c.wraps.append(split.whole)


def _cut_repeats(c: Compilation) -> None:
    """Outlines repeated subgraphs. Packed convolutions fuse the nodes around them, so with packing
    this happens later. On GPUs such graphs are lowered whole: all instances determine the
    convolutions' memory format, and equal matmuls are measured once anyway."""
    c.cut_late = not c.target.triton and (bool(c.spec.constants) or pays_anywhere(c.gm, c.spec))
    if not c.cut_late and not (c.target.triton and matmul.tuned(c)):
        _cut(c, go_on_at="constant_folding")


def _cut_late_repeats(c: Compilation) -> None:
    if c.cut_late:
        _cut(c, go_on_at="prebuild")


def _cut(c: Compilation, go_on_at: str) -> None:
    if any(node.target in _loop_rules() for node in c.gm.graph.nodes):
        return  # a loop is written for one call
    repeats = find_repeats(c.gm.graph) if fusion_fuel() is None else None
    if repeats is None:
        return
    if c.target.triton and any(
        repeats.calls[at].target in CONVOLUTIONS for at in repeats.instance(0)
    ):
        return
    c.cut, c.go_on_at = cut_out(c.gm, repeats), go_on_at
    c.gm = c.cut.small


def _freeze(c: Compilation) -> None:
    if c.target.triton:
        raise RequirementError(
            "inductor", "freeze", "freeze=True is not built for graphs on CUDA devices"
        )
    c.editor = frozen_editor(c.gm, c.spec)
    c.gm = c.editor.gm


def _frozen(rewrite: Callable[[Editor], None]) -> Callable[[Compilation], None]:
    def run(c: Compilation) -> None:
        assert c.editor is not None
        rewrite(c.editor)

    return run


def _constant_subgraph(c: Compilation) -> None:
    assert c.editor is not None
    c.frozen = frozen = without_constants(c.editor, c.spec)
    c.gm, c.spec = frozen.graph, frozen.spec
    c.wraps.append(lambda runner: frozen_runner(runner, frozen))


def _prebuild(c: Compilation) -> None:
    prepared = [] if c.frozen is None else [node for node, _ in c.frozen.folded.steps]
    kernel_prebuild.start_lowered([*c.gm.graph.nodes, *prepared])


# from the graph to a runner
# ---------------------------------------------------------------------------


def _lower(c: Compilation) -> None:
    c.lowered = GraphLowering(c.gm, c.spec, c.sizes, KNOWN_OPS, c.images_last)
    if c.cut is not None:
        c.lowered.saved = {
            a for b, a in enumerate(c.cut.returned) if isinstance(a, int) and b in c.lowered.saved
        }
    c.program = c.lowered.run()
    c.program.nodes = live_nodes(c.program)


def _loops(c: Compilation) -> None:
    """Compiles the steps of loops, and the branches of conds."""
    rules = _loop_rules()
    nodes = {node.name: node for node in c.gm.graph.nodes}
    for at, node in enumerate(c.program.nodes):
        if isinstance(node, ExternNode) and node.target in rules:
            c.program.nodes[at] = rules[node.target](c, node, nodes[node.origin.fx], f"loop_{at}")


@functools.cache
def _loop_rules() -> dict[Any, Callable[..., ExternNode]]:
    return {SCAN: _scan, WHILE_LOOP: _while, COND: _cond}


#: How a step is found: the operator's FX node, the arguments that it takes, its program.
StepOf = tuple[torch.fx.Node, tuple[Any, Any, Any], str]


def _scan(c: Compilation, node: ExternNode, fx: torch.fx.Node, name: str) -> ExternNode:
    """Returns the call of a loop as C++; as a loop in Python over its compiled step, where the step
    does not run without Python."""
    args: Any = fx.args
    outer, carried, rows, numbers, length, reverse, _ = node.args
    of: StepOf = (fx, ((*args[0], *args[1]), args[2], args[3]), args[6])
    shape = LoopShape(len(outer), len(carried), len(rows), length, reverse)
    loop = _native(c, of, shape, name)
    if isinstance(loop, NativeStep):
        return _called(c, node, loop, (*outer, *carried, *rows), name)
    steps = CompiledSteps(name, (_code(c, of, name),), "steps_of", loop)
    return replace(node, target=steps, args=(outer, carried, rows, numbers, length, reverse))


def _while(c: Compilation, node: ExternNode, fx: torch.fx.Node, name: str) -> ExternNode:
    """Does `_scan` for a while_loop."""
    args: Any = fx.args
    more, outer, carried, numbers, _ = node.args
    of: StepOf = (fx, ((*args[1], *args[2]), (), args[3]), args[4])
    loop = _native(c, of, LoopShape(len(outer), len(carried), 0, None, False), name)
    if isinstance(loop, NativeStep):
        return _called(c, node, loop, (*outer, *carried, more), name)
    steps = CompiledSteps(name, (_code(c, of, name),), "while_of", loop)
    return replace(node, target=steps, args=(more, outer, carried, numbers))


def _cond(c: Compilation, node: ExternNode, fx: torch.fx.Node, name: str) -> ExternNode:
    """Returns the call of a cond whose branches are compiled."""
    args: Any = fx.args
    codes = tuple(
        _code(c, (fx, (args[1], (), args[2]), program), f"{name}_{kind}")
        for kind, program in zip(("true", "false"), args[3:], strict=True)
    )
    steps = CompiledSteps(name, codes, "branches_of", "a cond")
    return replace(node, target=steps, args=node.args[:3])


@dataclass(frozen=True, slots=True)
class NativeStep:
    """loop: what is called. arena: the bytes that a step needs."""

    loop: NativeLoop
    arena: Any


def _step(c: Compilation, of: StepOf, name: str, table: Any, in_loop: bool) -> Compilation:
    """Returns the compilation of a step, before its first stage."""
    gm, sizes = scan_step(*of, table)
    spec = replace(c.spec, name=name, inputs=(), outputs=(), sizes=sizes, mutations=(), constants=(),
                   phase=Phase.INFERENCE)  # fmt: skip
    return Compilation(gm, spec, c.options, SizeVars(sizes), gm, in_loop=in_loop, alone=c.alone)


def _code(c: Compilation, of: StepOf, name: str) -> str:
    """Returns the module of a step that Python calls: ATen's products are faster there."""
    return run_stages(_step(c, of, name, {}, in_loop=False), "module", first="lower").code


def _native(c: Compilation, of: StepOf, shape: LoopShape, name: str) -> NativeStep | str:
    """Returns a loop as C++, or why its step does not run without Python."""
    step = _step(c, of, name, step_products(), in_loop=True)
    run_stages(step, "group_runs", first="lower")
    assert isinstance(step.module, CppModule)
    writer = LoopWriter(
        name, shape, step.program, step.memory, step.choices, step.steps, step.module
    )
    return writer.why_not() or NativeStep(writer.write(), step.memory.size)


def _called(
    c: Compilation, node: ExternNode, step: NativeStep, args: tuple[Any, ...], name: str
) -> ExternNode:
    """Returns the call of a loop as C++, with memory for what it carries and for a step."""
    carried = [c.program.buffers[one] for one in node.outputs[: step.loop.n_carried] if one]
    scratch = [(one.dtype, one.layout) for one in carried]
    scratch.append((torch.uint8, Layout((step.arena,), (1,))))
    names = []
    for number, (dtype, layout) in enumerate(scratch):
        names.append(f"{name}_scratch_{number}")
        c.program.buffers[names[-1]] = Buffer(names[-1], dtype, layout, BufferKind.TEMP)
    return replace(node, target=step.loop, args=args, outputs=(*node.outputs, *names))


def _loop_reasons(c: Compilation) -> str:
    nodes = [one for one in c.program.nodes if isinstance(one, ExternNode)]
    steps = [one.target for one in nodes if isinstance(one.target, CompiledSteps)]
    return "\n".join(f"{one.name} is a loop in Python: {one.why}" for one in steps)


def _rounding(c: Compilation) -> None:
    c.rounded = insert_rounding(c.program, c.options.numerics == "eager", c.target.triton)


def _inline(c: Compilation) -> None:
    if c.options.inline:
        c.not_inlined = inline(c.program, c.target.triton)


def _epilogue(c: Compilation) -> None:
    if c.options.fuse:
        c.absorbed = fuse_extern_epilogues(c.program, c.sizes)


def _scatter(c: Compilation) -> None:
    scatter_in_any_order(c.program)


def _split(c: Compilation) -> None:
    """Splits long reductions of few rows in two, to keep the device busy."""
    made = len(c.program.buffers)
    c.absorbed = split_reductions(c.program, c.sizes)
    if c.cut is not None:
        assert c.lowered is not None
        note_instances(c.program, c.lowered.instances, list(c.program.buffers)[made:])


def _fuse(c: Compilation) -> None:
    fuel = fusion_fuel() if c.options.fuse else 0
    c.plan = Fusion(c.program, c.sizes, fuel, codegen_of(c.target).limits).run()


def _externs(c: Compilation) -> None:
    rule = codegen_of(c.target).choice
    rule = own_choice_of if c.alone else step_choice_of if c.in_loop else rule
    c.choices = choose_externs(c.program, c.sizes, rule)


def _bodies(c: Compilation) -> None:
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


def _kernels(c: Compilation) -> None:
    c.kernels = codegen_of(c.target).kernels(c)


def _replicate(c: Compilation) -> None:
    """Lowers four repeated subgraphs and replicates them; lowers the whole graph if they differ."""
    if c.cut is None:
        return
    assert c.lowered is not None
    repeats = c.cut.repeats
    size = f"{repeats.period} nodes {repeats.count} times"
    try:
        c.kernels = replicate(c.cut, Scheduled(c.program, c.plan, c.kernels, c.choices, c.lowered))
        c.replication = f"{size}: four are lowered"
    except NotEqual as reason:
        whole = _whole(c)
        for part in fields(Compilation):
            setattr(c, part.name, getattr(whole, part.name))
        c.replication = f"{size}: all are lowered, because {reason}"


def _whole(c: Compilation) -> Compilation:
    assert c.cut is not None
    whole = start(c.cut.whole, c.spec)
    whole = replace(whole, given=c.given, wraps=c.wraps, frozen=c.frozen, alone=c.alone)
    return run_stages(whole, "kernels", first=c.go_on_at)


def _verify_replication(c: Compilation) -> None:
    if c.cut is not None:
        whole = _whole(c)
        same_plans((c.program, c.plan, c.kernels), (whole.program, whole.plan, whole.kernels))


def _memory(c: Compilation) -> None:
    c.memory = plan_memory(
        c.program, c.spec, c.plan.groups, c.kernels, codegen_of(c.target).arena(c)
    )


def _verify_memory(c: Compilation) -> None:
    verify.memory(c.program, c.plan, c.kernels, c.memory)
    verify.written_over(c.program, c.plan, c.kernels, c.memory.over)


def _group_runs(c: Compilation) -> None:
    """Combines runs of kernels between operator calls into one call each."""
    module = codegen_of(c.target).module(c)
    made: set[str] = set()

    def allocate(step: Step, storages: tuple[str, ...]) -> None:
        """Allocates tensors where they are first written to."""
        for name in storages:
            is_temp = c.program.buffers[name].kind is BufferKind.TEMP
            if is_temp and name not in made and name not in c.memory.offsets:
                made.add(name)
                step.fresh.append(name)

    drops: dict[int, list[str]] = {}
    for number, (group, kernel) in enumerate(zip(c.plan.groups, c.kernels, strict=True)):
        if kernel is None:
            assert group.extern is not None
            step = Step(extern=group.extern)
            allocate(step, group.extern.writes)
            c.steps.append(step)
        else:
            if not c.steps or c.steps[-1].run is None:
                c.steps.append(Step(run=module.open_run()))
            step = c.steps[-1]
            assert step.run is not None
            allocate(step, kernel.pointers)
            comments = list(
                dict.fromkeys(
                    f"{o.op}: {o.user_frame}" for node in group.loops for o in node.origins
                )
            )
            module.call(step.run, kernel, comments)
        if number in c.memory.drop_after:
            drops.setdefault(len(c.steps) - 1, []).extend(c.memory.drop_after[number])
    c.memory.drop_after = drops
    targets = [one.target for one in c.program.nodes if isinstance(one, ExternNode)]
    loops = [one for one in targets if isinstance(one, NativeLoop)]
    c.module, c.sources = module, module.sources()
    c.sources += [text for one in loops for text in one.sources]


def _module_text(c: Compilation) -> None:
    assert c.module is not None
    wrapper, kernels = codegen_of(c.target).wrapper(c), len(c.module.kernels)
    c.text = wrapper.module(c.steps, c.sources, c.spec.name, kernels)
    c.code, c.summary = wrapper.code, wrapper.summary(c.steps, c.spec.name, kernels)
    c.natives = tuple(wrapper.natives)
    if enabled("output_code"):
        note("output_code", "%s:\n%s", c.spec.name, c.text)


def _load(c: Compilation) -> None:
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
    )
    c.runner = runner_of(namespace, artifact)


#: The devices whose graphs go through a stage.
StageDevice = Literal["any", "cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the pipeline."""

    name: str
    #: Fills fields of the compilation.
    run: Callable[[Compilation], None]
    #: The devices whose graphs go through this stage.
    device: StageDevice = "any"
    #: Raises VerifyError where the result violates a rule.
    verify: Callable[[Compilation], None] | None = None
    #: Returns the result as text.
    dump: Callable[[Compilation], str] | None = None
    #: Returns one line of `dump`, for short dumps.
    brief: Callable[[Compilation], str] | None = None
    #: Suffix of the file in the debug folder; "" for that of the device's kernels.
    suffix: str = "txt"
    #: Whether it is only for graphs whose parameters are constants.
    frozen: bool = False
    #: Whether it is only for graphs that run without Python and ATen.
    alone: bool = False

    def is_for(self, c: Compilation) -> bool:
        """Returns whether the graph goes through this stage."""
        device = "cuda" if c.target.triton else "cpu"
        wanted = (c.alone or not self.alone) and (not self.frozen or bool(c.spec.constants))
        return self.device in ("any", device) and wanted


def _pass(
    name: str,
    run: Callable[[Compilation], None],
    device: StageDevice = "any",
    frozen: bool = False,
    alone: bool = False,
) -> Stage:
    """Returns the stage for a rewrite of the ATen graph."""
    dump = lambda c: c.gm.print_readable(print_output=False)
    return Stage(name, run, device, dump=dump, suffix="py", frozen=frozen, alone=alone)


def _program(c: Compilation) -> None:
    verify.program(c.program)


#: From an ATen graph to a runner. On CUDA "split" follows inlining, so that what a reduction reads
#: is in its body.
PIPELINE = (
    _pass("cpu_scalars", _split_host_side, "cuda"),
    _pass("causal_mask", _rewritten(with_causal_masks), "cuda"),
    _pass("pad_matmul", _rewritten(lambda gm, spec: with_padded_matmuls(gm)), "cuda"),
    _pass("repeated_subgraphs", _cut_repeats),
    _pass("constant_folding", _rewritten(with_folded_constants), "cpu"),
    _pass("attention", _rewritten(with_own_attention), "cpu"),
    _pass("own_operators", _rewritten(with_own_operators), "cpu", alone=True),
    _pass("freeze", _freeze, frozen=True),
    _pass("fold_batch_norm", _frozen(fold_batch_norm), "cpu", frozen=True),
    _pass("lstm", _frozen(pack_layers), "cpu", frozen=True),
    _pass("horizontal_matmul", _frozen(merge_matmuls), "cpu", frozen=True),
    _pass("pack_weights", _frozen(pack_weights), "cpu", frozen=True),
    _pass("fuse_epilogues", _frozen(fuse_epilogues), "cpu", frozen=True),
    _pass("constant_subgraph", _constant_subgraph, "cpu", frozen=True),
    _pass("weight_packing", _rewritten(with_own_kernels), "cpu"),
    _pass("repeated_packed_subgraphs", _cut_late_repeats, "cpu"),
    Stage("prebuild", _prebuild, "cpu"),
    Stage("lower", _lower, "any", _program, lambda c: printer.program(c.program)),
    Stage("loops", _loops, "cpu", _program, _loop_reasons),
    Stage("rounding", _rounding, "any", _program, lambda c: "\n".join(c.rounded)),
    Stage("inline", _inline, "any", _program, lambda c: printer.inlined(c.program, c.not_inlined)),
    Stage("epilogue", _epilogue, "cpu", _program, lambda c: "\n".join(c.absorbed)),
    Stage("scatter", _scatter, "cuda"),
    Stage("split", _split, "cuda", _program, lambda c: "\n".join(c.absorbed)),
    Stage("matmul", matmul.choose_matmuls, "cuda", _program,
          lambda c: "\n".join(f"{name}: {blocks}" for name, blocks in c.blocks.items())),
    Stage("fuse", _fuse, "any", lambda c: verify.plan(c.program, c.plan),
    lambda c: printer.plan(c.plan)),
    Stage("externs", _externs, "any", None, lambda c: printer.externs(c.program, c.choices)),
    Stage("bodies", _bodies, "any", lambda c: verify.bodies(c.program, c.bodies),
    lambda c: printer.bodies(c.bodies)),
    Stage("kernels", _kernels, "any", lambda c: verify.reusable(c.program, c.bodies, c.kernels)),
    Stage("replicate", _replicate, "any", _verify_replication, lambda c: c.replication),
    Stage("memory", _memory, "any", _verify_memory, lambda c: printer.memory(c.memory)),
    Stage("group_runs", _group_runs, "any", None, lambda c: "\n".join(c.sources), suffix=""),
    Stage("module", _module_text, "any", None, lambda c: c.text, lambda c: c.summary, "py"),
    Stage("build", _load),
)  # fmt: skip


def run_stages(c: Compilation, until: str | None = None, first: str | None = None) -> Compilation:
    """Runs the stages in order. first, until: names of the first and last to run (None: the
    pipeline's). Raises BackendError naming stage and cause."""
    check = env().check
    names = [item.name for item in PIPELINE]
    begin, end = names.index(first or names[0]), names.index(until or names[-1])
    steps = [item for item in PIPELINE[begin : end + 1] if item.is_for(c)]
    for number, item in enumerate(steps, 1):
        before = time.perf_counter()
        suffix = item.suffix or codegen_of(c.target).suffix
        with stage(f"inductor_{item.name}", graph=c.spec.name, suffix=f".{suffix}") as record:
            try:
                item.run(c)
                if check and item.verify is not None:
                    item.verify(c)
            except (CompilerMissingError, RequirementError):
                raise
            except Exception as error:
                detail, dump = f"{type(error).__name__}: {error}", None
                if isinstance(error, BackendError):
                    detail, dump = error.detail, error.dump
                where = (
                    f"inductor stage {number}/{len(steps)} {item.name!r} failed on {c.spec.name}"
                )
                raise BackendError("inductor", item.name, f"{where}: {detail}", dump) from error
            if item.dump is not None and wants_text():
                record.text = item.dump(c)
            elif item.brief is not None:
                record.text = item.brief(c)
        c.seconds[item.name] = time.perf_counter() - before
    return c


def start(gm: torch.fx.GraphModule, spec: CompileSpec) -> Compilation:
    """Returns the compilation of a graph, before its first stage."""
    options = spec.options if isinstance(spec.options, InductorOptions) else InductorOptions()
    return Compilation(gm, spec, options, SizeVars(spec.sizes), gm, target=target_of(gm.graph))


def compile_graph(gm: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Compiles one functional ATen graph. Raises BackendError, and VerifyError where a stage broke
    its invariants."""
    c = run_stages(start(gm, spec))
    runner = c.runner
    assert runner is not None
    if matmul.depends_on_settings(c):
        runner = matmul.by_settings(runner, lambda: _in_the_same_layout(c))
    if c.target.device.type == "cuda":
        runner = recorded(runner, c.given, c.spec)
    wrapped: Runner = replace(runner, channels_last=frozenset(c.program.channels_last))
    for wrap in reversed(c.wraps):
        wrapped = wrap(wrapped)
    return wrapped


def _in_the_same_layout(first: Compilation) -> ModuleRunner:
    """Recompiles the graph for other settings. The backward relies on the layout of the first
    runner's results."""
    c = start(first.given, first.spec)
    c.images_last = first.program.images_last
    runner = run_stages(c, first="lower").runner
    assert runner is not None
    if c.program.channels_last != first.program.channels_last:
        name = first.spec.name
        raise BackendError(
            "inductor",
            "lower",
            f"{name}: with other settings, other saved values would be channels-last",
        )
    return runner
