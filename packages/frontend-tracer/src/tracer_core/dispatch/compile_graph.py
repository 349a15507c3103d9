"""Compiles a captured graph with a backend: lowering, partitioning, the backend, and the runtime
wrappers.

In: a `CapturedGraph` and a validated `CompileConfig` (`compile_graph`), or a torch-level
GraphModule with a backend's name (`compile_torch_graph`). Out: a `CompiledGraph`: flat boxed list
in, flat list out.

What always holds: where a backend cannot take the graph (no functional form, gradients needed, an
operator it does not support) those operators, else the captured graph, run eagerly, which is right, and the first such
call of a kind is logged; the `CompiledGraph` has the `Fallback`. So where a backend fails
(`tracer_core.aot.backend_failure`): its errors are BackendErrors that name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from tracer_core import limits, torch_private
from tracer_core.aot.ambient_modes import (
    INFERENCE,
    inside,
    returns_inference_tensors,
    without_modes,
)
from tracer_core.aot.autograd_node import in_grad_mode, with_used_up
from tracer_core.aot.backend_failure import failed, falls_back
from tracer_core.aot.capability_partition import backend_runner
from tracer_core.aot.compiled_graph import CompiledGraph, RunnerArtifacts, TrainingArtifacts
from tracer_core.aot.first_call import can_be_undone, uses_rng
from tracer_core.aot.grad_mode import begins_off, ending, grad_is_on_in, switch_off_first
from tracer_core.aot.joint_graph import calls_autograd
from tracer_core.aot.lower import lower_for
from tracer_core.aot.output_aliasing import OutputPlan, output_requires_grad
from tracer_core.aot.request import Lowered, Request, default_specs
from tracer_core.aot.result_check import Substitute, as_returned, checked, noted, with_saved_layouts
from tracer_core.aot.size_split import with_sized_apart
from tracer_core.aot.static_shapes import PerSize, has_symbols
from tracer_core.aot.subclasses import desugared, holds_wrappers
from tracer_core.aot.unbacked_split import UnbackedSplit, has_marks
from tracer_core.aot.version_counting import reshapes_counted, versions_counted
from tracer_core.autoselect.candidates import CandidatePlan
from tracer_core.autoselect.first_call_check import FirstCallCheck
from tracer_core.autoselect.selection import Selection
from tracer_core.contract.backend import CAPTURING_MODES, Backend, resolve
from tracer_core.contract.captured_graph import APART, MARK, CapturedGraph
from tracer_core.contract.lowering_errors import LoweringUnsupported, OnlyViews, StillDifferentiable
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import Training
from tracer_core.debug.fallbacks import WHOLE, Fallback, FallbackKind, report
from tracer_core.debug.gc_pause import collector_paused
from tracer_core.debug.graph_script import listing
from tracer_core.debug.stages import OpenStage, continued, debug_folder, stage, wants_text
from tracer_core.dispatch import number_tensors
from tracer_core.dispatch.functional_bridge import as_functional
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import BackendError, CompilerMissingError
from tracer_core.ops.calls import RESHAPE_IN_PLACE, name_of
from tracer_core.ops.higher_order.control_flow import CapturedCond, CapturedWhile
from tracer_core.ops.higher_order.gradients import GRADIENT_CALLS
from tracer_core.ops.higher_order.scan import SCAN_OP_NAME, CapturedScan
from tracer_core.options import CompileConfig, env
from tracer_core.registry.eager import compile_eager, graph_function
from tracer_core.registry.torch_style import TorchStyle
from tracer_core.torch_private.needed import set_grad_mode

#: Nodes that call something.
CALLS = ("call_function", "call_method")


def compile_graph(
    captured: CapturedGraph, config: CompileConfig, *, retries: bool = False
) -> CompiledGraph:
    """Compiles a captured graph; where the backend fails or breaks its contract, the graph runs in
    eager mode. The program's saved-tensor hooks see nothing of it.

    retries: the caller has another way to compile the graph, so a BackendError is raised. It is also
    raised where `backend_failure.falls_back` says so.
    """
    backend = config.backend
    with torch_private.saved_tensors_unseen():
        if retries or not falls_back(backend):
            return _compile(captured, config, retries)
        changes = backend.prepare is not None or isinstance(backend.compile, TorchStyle)
        untouched = captured.copied() if changes else captured
        try:
            return _compile(captured, config, retries)
        except BackendError as error:
            return _failed(untouched, config, error)


def _failed(captured: CapturedGraph, config: CompileConfig, error: BackendError) -> CompiledGraph:
    """The graph in eager mode, because its backend failed."""
    fallback = failed(captured.gm, captured.real_inputs, captured.name, config.backend.name, error)
    return CompiledGraph(graph_function(captured.gm), fallback=fallback)


def _compile(captured: CapturedGraph, config: CompileConfig, retries: bool) -> CompiledGraph:
    """Does `compile_graph`. Raises BackendError."""
    backend = config.backend
    if begins_off(captured):
        switch_off_first(captured)
        with torch.enable_grad():
            compiled = compile_graph(captured, config, retries=retries)
        return compiled.with_run(inside(torch.enable_grad, compiled.run), artifacts=None)
    if config.verify is not None:
        other = _compile(captured.copied(), replace(config, verify=None), retries)
        eager = graph_function(captured.gm)
        check = FirstCallCheck(captured, config.verify, eager, other.run)
        return CompiledGraph(check, fallback=other.fallback)
    if isinstance(config.options, CandidatePlan):
        return CompiledGraph(Selection(captured, config, compile_graph))
    if isinstance(backend.compile, TorchStyle):
        if backend.compile.functional:
            functional = as_functional(config, backend.compile)
            return _compiled(captured, replace(config, backend=functional, options=None))
        return _torch_style(captured, config, backend.compile)
    if (prepare := backend.prepare) is not None:
        _called(backend, captured.name, lambda: resolve(prepare)(captured.gm))
    with collector_paused():
        return _compiled(captured, config)


def _compiled(
    captured: CapturedGraph, config: CompileConfig, max_outlined: int = limits.MAX_CUTS
) -> CompiledGraph:
    """Compiles a captured graph for a `Backend`. max_outlined: how many operators without
    a functional form may be outlined."""
    backend = config.backend
    if backend.ir != "torch" and holds_wrappers(captured.gm):
        return _of_wrappers(captured, config)
    is_step = backend.ir != "torch" and calls_autograd(captured.gm)
    if captured.needs_grad and not is_step and backend.training is Training.INFERENCE_ONLY:
        reason = (
            f"{backend.name} is for inference only: the call runs the captured graph under eager"
            " autograd"
        )
        return _fall_back(captured, config, "training", reason)
    if not (is_step or captured.needs_grad) and _pays_per_size(captured, config):
        split = _sized_apart(captured, config, max_outlined)
        if split is not None:
            return split
    if has_symbols(captured.gm) and backend.shapes == "static":
        return CompiledGraph(PerSize(captured, lambda fixed: compile_graph(fixed, config).run))
    if backend.ir == "torch":
        return _compile_lowered(captured.name, config, _lowered(captured, config))
    build = _stepped_or_trained if is_step else _trained if captured.needs_grad else _inferred
    try:
        if has_marks(captured.gm):
            if is_step:
                raise LoweringUnsupported("a whole training step with sizes that depend on data")
            if any(_may_reshape(node) for node in captured.gm.graph.nodes if node.op in CALLS):
                reason = "a tensor gets other sizes in place beside sizes that depend on data"
                raise LoweringUnsupported(reason)
            return CompiledGraph(
                UnbackedSplit(captured, lambda part: _part(part, config, max_outlined).run).runner()
            )
        with _control_flow(captured, config, differentiate=is_step or captured.needs_grad):
            compiled = build(captured, config)
        run = reshapes_counted(compiled.run, captured.gm.graph)
        return compiled if run is compiled.run else compiled.with_run(run, artifacts=None)
    except LoweringUnsupported as error:
        outlined = _split_around(captured, config, error, max_outlined) if max_outlined else None
        reason = f"the captured graph runs eagerly: {error}"
        return outlined or _fall_back(captured, config, "lowering", reason)
    except torch_private.fake_failures() as error:
        reason = f"the captured graph runs eagerly: {type(error).__name__}: {error}"
        return _fall_back(captured, config, "lowering", reason)


def _pays_per_size(captured: CapturedGraph, config: CompileConfig) -> bool:
    """Returns whether each new size of a graph with symbolic sizes is compiled, or captured as a CUDA
    graph, anew."""
    backend, gm = config.backend, captured.gm
    if not has_symbols(gm) or has_marks(gm):
        return False
    asked = config.mode in CAPTURING_MODES or backend.wrap is not None
    values = (node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder"))
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)
    return backend.shapes == "static" or (asked and on_gpu)


def _sized_apart(
    captured: CapturedGraph, config: CompileConfig, max_outlined: int
) -> CompiledGraph | None:
    """The graph with the few operators of symbolic sizes beside it. None where there are many, or
    where the graph cannot be cut there."""
    sized = with_sized_apart(captured)
    if sized is None:
        return None
    try:
        run = UnbackedSplit(
            sized, lambda part: _part(part, config, max_outlined).run, prepares=True
        ).runner()
    except LoweringUnsupported:
        return None
    return CompiledGraph(run)


def _split_around(
    captured: CapturedGraph, config: CompileConfig, error: LoweringUnsupported, max_outlined: int
) -> CompiledGraph | None:
    """The graph where a few operators have no functional form: they run eagerly, what stands before
    and after them is compiled. None where it cannot be cut, or nothing else would be compiled.
    """
    graph = captured.gm.graph
    apart: list[torch.fx.Node] = []
    parts: list[CompiledGraph] = []

    def build(part: CapturedGraph) -> RunFunction:
        parts.append(_part(part, config, max_outlined - sum(map(_counts, apart))))
        return parts[-1].run

    reason: LoweringUnsupported | None = error
    try:
        while reason is not None:
            # Behind the last of them that may be set apart, the graph runs eagerly.
            more = _to_set_apart(graph, reason.nodes[: max_outlined - sum(map(_counts, apart))])
            apart += more
            if not more:
                return None
            for value in more:
                value.meta[MARK] = APART
            reason = _prevents(captured)
        run = UnbackedSplit(captured, build).runner()
    finally:
        for item in apart:
            item.meta.pop(MARK, None)
    if all(part.fallback is not None and part.fallback.kind in WHOLE for part in parts):
        return None
    names = list(dict.fromkeys(name_of(node.target) for node in error.nodes))
    inside = [row for part in parts if part.fallback for row in part.fallback.refused]
    refused = (*((name, error.reason) for name in names), *inside)
    text = f"{', '.join(names)} runs eagerly, the graph is cut around it: {error}"
    fallback = Fallback("unsupported", captured.name, config.backend.name, text, refused)
    report(fallback)
    return CompiledGraph(run, fallback=fallback)


def _prevents(captured: CapturedGraph) -> LoweringUnsupported | None:
    """Returns why a graph cannot be cut at the marked operators alone."""
    try:
        UnbackedSplit(captured, lambda part: graph_function(part.gm)).runner()
    except LoweringUnsupported as error:
        return error
    return None


def _counts(node: torch.fx.Node) -> bool:
    """Returns whether an operator that is set apart is one of those that `MAX_CUTS` counts."""
    return node.target not in GRADIENT_CALLS


def _to_set_apart(graph: torch.fx.Graph, nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Returns these operators, and the gradients that are computed after the first: they run through
    what is compiled before it. None if the graph has nothing else, or if they are marked already."""
    calls = [node for node in graph.nodes if node.op in CALLS]
    wanted = set(nodes)
    if not wanted or not wanted.issubset(calls) or any(map(_may_reshape, calls)):
        return []
    first = min(map(calls.index, wanted))
    result = [
        call
        for number, call in enumerate(calls)
        if call in wanted or (number > first and call.target in GRADIENT_CALLS)
    ]
    new = [item for item in result if MARK not in item.meta]
    return new if sum(MARK not in call.meta for call in calls) > len(new) else []


def _may_reshape(node: torch.fx.Node) -> bool:
    """Returns whether a call may give a tensor other sizes in place: its fake has only the last
    ones, and a part would hand it over with sizes that it has later."""
    return node.kwargs.get("out") is not None or name_of(node.target) in RESHAPE_IN_PLACE


def _part(captured: CapturedGraph, config: CompileConfig, max_outlined: int) -> CompiledGraph:
    """One part of a graph that is cut; in eager mode where the backend fails on it."""
    try:
        return _compiled(captured, config, max_outlined)
    except BackendError as error:
        if not falls_back(config.backend):
            raise
        return _failed(captured, config, error)


def _of_wrappers(captured: CapturedGraph, config: CompileConfig) -> CompiledGraph:
    """The graph where its inputs or outputs are tensors of subclasses."""
    try:
        simple, boundary = desugared(captured)
    except LoweringUnsupported as error:
        return _fall_back(captured, config, "lowering", f"the captured graph runs eagerly: {error}")
    compiled = _compiled(simple, config, max_outlined=0)
    if compiled.fallback is not None and compiled.fallback.kind == "lowering":
        return CompiledGraph(graph_function(captured.gm), fallback=compiled.fallback)
    return CompiledGraph(
        boundary.around(compiled.run),
        mutated_on_error=boundary.input_indices(compiled.mutated_on_error),
        fallback=compiled.fallback,
    )


#: Call targets that are lowered to operators of whole loops and branches.
_CONTROL_FLOW = (CapturedScan, CapturedCond, CapturedWhile)


def _control_flow(
    captured: CapturedGraph, config: CompileConfig, differentiate: bool
) -> AbstractContextManager[None]:
    """Context in which a graph's scans, loops and conds are lowered to operators, if the backend
    keeps these."""
    if SCAN_OP_NAME not in config.backend.preserved_ops or not any(
        isinstance(node.target, _CONTROL_FLOW) for node in captured.gm.graph.nodes
    ):
        return nullcontext()
    from tracer_core.aot.scan_lowering import lowered_control_flow  # heavy: few graphs pay for it

    request = _request(captured, config)
    return lowered_control_flow(captured.gm, captured.real_inputs, request, differentiate)


def _inferred(captured: CapturedGraph, config: CompileConfig) -> CompiledGraph:
    """The graph where its outputs need no gradients."""
    _require_no_new_leaves(captured.gm.graph)
    compiled = _compile_lowered(captured.name, config, _lowered(captured, config))
    modes, artifacts = _ambient_modes(captured), compiled.artifacts
    if returns_inference_tensors(captured):
        modes = (*modes, INFERENCE)
    if artifacts is not None:
        artifacts = replace(artifacts, modes=modes)
    return compiled.with_run(without_modes(modes, compiled.run), artifacts=artifacts)


def _require_no_new_leaves(graph: torch.fx.Graph) -> None:
    """Requires that no output is a new leaf of autograd (``requires_grad_`` under ``no_grad``)."""
    result = {
        node.args[0]
        for node in graph.find_nodes(op="call_method", target="requires_grad_")
        if node.args[0].op != "placeholder"
    }
    (output,) = graph.find_nodes(op="output")
    for node in output.all_input_nodes:
        if (node in result or node.target == "requires_grad_") and node.meta["val"].requires_grad:
            raise LoweringUnsupported("an output is made to require a gradient")


def _stepped_or_trained(captured: CapturedGraph, config: CompileConfig) -> CompiledGraph:
    """The graph where it computes gradients itself, and perhaps returns values that are
    differentiated afterwards (``create_graph=True``)."""
    try:
        return _stepped(captured, config)
    except StillDifferentiable:
        if not captured.needs_grad or config.backend.training is Training.INFERENCE_ONLY:
            raise
        return _trained(captured, config)


def _stepped(captured: CapturedGraph, config: CompileConfig) -> CompiledGraph:
    """The graph where it computes gradients itself: a whole training step."""
    from tracer_core.aot import autograd_runtime  # heavy: only training pays for it

    with stage("lower", graph=captured.name, suffix=".py") as record:
        lowered = autograd_runtime.lower_step(captured, _request(captured, config))
        lowered = lowered.with_gradients(captured.gradients)
        _show(record, lowered)
    compiled = _compile_lowered(captured.name, config, lowered)
    modes, used_up = _ambient_modes(captured), autograd_runtime.used_up(captured)
    grad_mode = autograd_runtime.needs_grad_mode(lowered.graph.graph.nodes)
    run = in_grad_mode(compiled.run) if grad_mode else compiled.run
    artifacts = compiled.artifacts
    if artifacts is not None:
        artifacts = replace(
            artifacts, modes=modes, grad_mode=grad_mode, used_up=used_up, is_step=True
        )
    run = with_used_up(used_up, without_modes(modes, run))
    return compiled.with_run(run, artifacts=artifacts)


def _trained(captured: CapturedGraph, config: CompileConfig) -> CompiledGraph:
    """The graph with a backward that is the backend's too; the backward is compiled when it first
    runs.
    """
    from tracer_core.aot import autograd_runtime  # heavy: only training pays for it

    try:
        with stage("lower", graph=captured.name, suffix=".py") as record:
            graphs = autograd_runtime.lower_training(captured, _request(captured, config))
            _show(record, graphs.forward, graphs.backward)
    except OnlyViews:
        return _with_views(captured, config)
    compiled = _compile_lowered(captured.name, config, graphs.forward)
    modes = _ambient_modes(captured, inside_autograd=True)
    grad_mode = autograd_runtime.needs_grad_mode(graphs.joint.forward)
    run_forward = without_modes(modes, compiled.run)
    if grad_mode:
        run_forward = in_grad_mode(run_forward)
    result: dict[str, RunnerArtifacts | None] = {}
    listeners: list[Callable[[], None]] = []

    may_fail = falls_back(config.backend)

    def compile_backward(lowered: Lowered) -> RunFunction:
        name = lowered.spec.name
        results = _compile_lowered(name, config, lowered, may_fail=may_fail)
        result[name] = results.artifacts
        for listener in listeners:
            listener()
        return results.run

    node = autograd_runtime.training_node(
        captured,
        graphs,
        run_forward,
        compiled.channels_last,
        compile_backward,
        at_once=config.when == "background",
    )
    artifacts = compiled.artifacts
    if artifacts is not None:
        names = node.backwards.names
        training = TrainingArtifacts(
            node.plan,
            node.again,
            lambda: [(*names[name], result[name]) for name in list(names) if name in result],
            listeners,
        )
        artifacts = replace(
            artifacts,
            plan=graphs.joint.plan,
            modes=modes,
            grad_mode=grad_mode,
            training=training,
        )
    return compiled.with_run(node.run, channels_last=frozenset(), artifacts=artifacts)


def _with_views(captured: CapturedGraph, config: CompileConfig) -> CompiledGraph:
    """The graph where what requires gradients are views of its inputs, which are made in the grad
    mode of the call, with their history; all else needs none."""
    from tracer_core.aot import autograd_runtime  # heavy: only training pays for it

    with stage("lower", graph=captured.name, suffix=".py") as record:
        lowered = autograd_runtime.lower_step(captured, _request(captured, config))
        _show(record, lowered)
    results = OutputPlan.of_graph(len(lowered.spec.outputs))
    compiled = _compile_lowered(captured.name, config, replace(lowered, plan=results))
    run = without_modes(_ambient_modes(captured), compiled.run)
    return compiled.with_run(lowered.plan.bind(run), artifacts=None)


def compile_torch_graph(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    backend: Backend | str,
    *,
    options: Any = None,
    mode: str | None = None,
    name: str = "graph_0",
) -> CompiledGraph:
    """Compiles a torch-level graph with a backend, without the tracer.

    Lowers the graph, partitions it by `Backend.supports`, and checks the first result of the
    backend's runner.

    Args:
        gm: The torch-level graph.
        inputs: One real or fake tensor (or int) per placeholder.
        backend: A `Backend`, or the name of an installed one.
        options: As for `tracer_core.compile`.
        mode: As for `tracer_core.compile`.
        name: The name of the graph.

    Returns:
        A runner that takes and returns what the graph does.

    Raises:
        BackendError: The backend failed, under TRACER_STRICT=1; else the graph runs eagerly.
        BackendNotFoundError: No installed backend has that name.
        OptionError: A setting is wrong.
    """
    config = build_config(backend=backend, mode=mode, options=options)
    _take_symbols(gm, inputs, config.backend.name)
    needs_grad = grad_is_on_in(gm.graph) and output_requires_grad(gm, inputs)
    specs = default_specs(gm, inputs)
    begin, end = torch.is_grad_enabled(), ending(gm.graph)
    compiled = compile_graph(CapturedGraph(gm, specs, tuple(inputs), needs_grad, name), config)
    if begin == end:
        return compiled
    return compiled.with_run(_leaving(end, compiled.run), artifacts=None)


def _leaving(grad: bool, run: RunFunction) -> RunFunction:
    """`run`, which leaves grad mode like this. (Code that our own tracer writes does so around its
    graphs.)
    """

    def run_leaving(inputs: list[Any]) -> Sequence[Any]:
        outputs = run(inputs)
        set_grad_mode(grad)
        return outputs

    return run_leaving


def _take_symbols(gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: str) -> None:
    """torch.compile hands out real tensors beside symbolic sizes; what is symbolic in a tensor's
    shape is in the fake that it leaves on the placeholder. Raises BackendError where there is none:
    the sizes of one call would be taken for those of all."""
    if not any(isinstance(value, torch.SymInt) for value in inputs):
        return
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if "val" in node.meta or torch_private.is_fake(value):
            continue
        result = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and not torch_private.is_fake(result):
            reason = "sizes are symbolic, but nothing says which are in the shape of the input"
            raise BackendError(backend, "lower", f"{reason} {node.name}")
        node.meta["val"] = value if result is None else result


def _request(captured: CapturedGraph, config: CompileConfig) -> Request:
    return Request(config.backend, config.options, config.mode, captured.name, captured.phase)


def _show(record: OpenStage, *lowered: Lowered) -> None:
    """Makes the lowered graphs the text of a stage, if anybody reads it."""
    if wants_text():
        record.text = listing((item.spec.name, item.graph) for item in lowered)


def _lowered(captured: CapturedGraph, config: CompileConfig) -> Lowered:
    with stage("lower", graph=captured.name, suffix=".py") as record:
        lowered = lower_for(
            captured.gm, captured.real_inputs, _request(captured, config), captured.inputs
        )
        _show(record, lowered)
    return lowered


def _compile_lowered(
    name: str, config: CompileConfig, lowered: Lowered, *, may_fail: bool = False
) -> CompiledGraph:
    """Partitions, compiles, and puts the check of the first result and the output plan around
    it. name: of the captured graph. may_fail: where the backend fails, the lowered graph runs in
    eager mode.
    """
    backend = config.backend
    missing = result = None
    with stage("compile", graph=name):
        try:
            runner, refused = _called(backend, name, lambda: backend_runner(backend, lowered))
        except CompilerMissingError as error:
            if env().strict:
                raise
            runner, refused, missing = compile_eager(lowered.graph, lowered.spec), (), error.detail
        except BackendError as error:
            if not may_fail:
                raise
            result = _failed_on(lowered, error)
            runner, refused = compile_eager(lowered.graph, lowered.spec), ()
    # The program's own operators give what eager gives, also where fakes of this torch say
    # something else.
    own = lowered.ir == "torch" and backend.compile is compile_eager
    run, early, functional = runner.run, runner.mutated_on_error, lowered.ir != "torch"
    substitute = None
    if not own:
        spec = as_returned(lowered.spec, runner.channels_last)
        substitute = _substitute(backend, lowered, runner.channels_last)
        run = checked(run, spec, functional=functional, substitute=substitute)
        run = versions_counted(run, spec, early)
    fallback, artifacts = result, None
    if result is not None:
        pass
    elif refused:
        fallback = Fallback("unsupported", name, backend.name, refused.reason, refused.operators)
        report(fallback)
    elif missing is not None:
        fallback = Fallback("toolchain", name, backend.name, f"graphs run in eager mode: {missing}")
        report(fallback)
    elif functional:
        artifacts = RunnerArtifacts(runner, lowered.plan, lowered.spec, substitute=substitute)
    return CompiledGraph(
        lowered.plan.bind(run), mutated_on_error=early, channels_last=runner.channels_last,
        fallback=fallback, artifacts=artifacts,
    )  # fmt: skip


def _failed_on(lowered: Lowered, error: BackendError) -> Fallback:
    inputs = [node.meta["val"] for node in lowered.graph.graph.find_nodes(op="placeholder")]
    spec = lowered.spec
    return failed(lowered.graph, inputs, spec.name, spec.backend, error)


def _substitute(
    backend: Backend, lowered: Lowered, channels_last: Collection[int]
) -> Substitute | None:
    """Returns what runs if the first result of a functional graph is not what it promises: the
    lowered graph in eager mode. None where the error is raised."""
    graph = lowered.graph.graph
    if lowered.ir == "torch" or not falls_back(backend) or not can_be_undone(graph):
        return None
    in_record = continued()

    def make(error: BackendError) -> RunFunction:
        with in_record():
            _failed_on(lowered, error)
        run = compile_eager(lowered.graph, lowered.spec).run
        return noted(with_saved_layouts(run, as_returned(lowered.spec, channels_last)))

    return Substitute(make, uses_rng(graph))


def _called(backend: Backend, graph: str, function: Callable[[], Any]) -> Any:
    """What a backend's function returns; what it raises becomes a BackendError."""
    try:
        return function()
    except (BackendError, LoweringUnsupported):
        raise
    except Exception as error:
        folder = debug_folder(graph)
        dump = None if folder is None else str(folder)
        detail = f"{graph}: {type(error).__name__}: {error}"
        raise BackendError(backend.name, "compile", detail, dump) from error


def _torch_style(
    captured: CapturedGraph, config: CompileConfig, style: TorchStyle
) -> CompiledGraph:
    """A backend of torch.compile's convention: it gets the graph and the real tensors of the call,
    and does its own autograd, if any."""
    untouched, nodes = captured.copied(), list(captured.gm.graph.nodes)
    dtypes = number_tensors.take_tensors(captured.gm)
    examples = number_tensors.as_tensors(captured.real_inputs, dtypes)
    with stage("compile", graph=captured.name):
        function = style.build(captured.gm, examples, config)
    run = number_tensors.given_tensors(function, dtypes)
    request = _request(captured, config)
    spec = lower_for(captured.gm, examples, request, captured.inputs).spec
    substitute = None
    if falls_back(config.backend) and not any("writes" in node.meta for node in nodes):
        substitute = _eagerly(untouched.described(), config)
    return CompiledGraph(checked(run, spec, grad=captured.needs_grad, substitute=substitute))


def _eagerly(captured: CapturedGraph, config: CompileConfig) -> Substitute:
    """Returns what runs if the first result of a torch-level graph is not what it promises."""
    in_record = continued()

    def make(error: BackendError) -> RunFunction:
        with in_record():
            return _failed(captured, config, error).run

    return Substitute(make, uses_rng=True)


def _fall_back(
    captured: CapturedGraph, config: CompileConfig, kind: FallbackKind, reason: str
) -> CompiledGraph:
    fallback = Fallback(kind, captured.name, config.backend.name, reason)
    report(fallback)
    return CompiledGraph(graph_function(captured.gm), fallback=fallback)


def _ambient_modes(captured: CapturedGraph, *, inside_autograd: bool = False) -> tuple[str, ...]:
    """An ATen graph has its casts in it and needs no gradients: where the captured call ran inside
    autocast, or with grad mode on for inputs that require grad (but outputs that do not), those
    modes are switched off around it. Both are guarded by the tracer, so they are known here."""
    tensors = [value for value in captured.real_inputs if isinstance(value, torch.Tensor)]
    on = torch.is_grad_enabled() and not inside_autograd  # autograd's own forward has it off
    grad = ("grad",) if on and any(tensor.requires_grad for tensor in tensors) else ()
    autocast = {
        device
        for device in {tensor.device.type for tensor in tensors}
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    }
    return (*grad, *sorted(autocast))
