"""Compiles a captured graph with a backend: lowering, partitioning, the backend, and the runtime
wrappers.

In: a `CapturedGraph` and a validated `CompileConfig` (`compile_graph`), or a torch-level
GraphModule with a backend's name (`compile_torch_graph`). Out: a `Runner` for the captured graph,
which takes and returns flat lists.

What always holds: where a backend cannot take the graph (no functional form, gradients needed, an
unsupported operator) the captured operators run eagerly; the first such graph of a kind is logged,
and its runner carries its `Fallback`. Errors of a backend are BackendErrors that name it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.capability_partition import backend_runner
from tracer_core.aot.errors import LoweringUnsupported
from tracer_core.aot.grad_mode import begins_off, ending, grad_is_on_in, switch_off_first
from tracer_core.aot.joint_graph import calls_autograd
from tracer_core.aot.lower import lower
from tracer_core.aot.mutation_tracking import early_writes, versions_counted, writing_like
from tracer_core.aot.output_aliasing import OutputPlan, output_requires_grad
from tracer_core.aot.request import Lowered, Request, role_of
from tracer_core.aot.result_check import as_returned, checked
from tracer_core.aot.static_shapes import PerSize, has_symbols
from tracer_core.aot.unbacked_split import Cut, has_data_sizes
from tracer_core.autoselect.candidates import Plan
from tracer_core.autoselect.selection import Trial
from tracer_core.contract.backend import Backend, Runner, resolve
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.specs import CompileSpec, InputSpec, Phase, Training
from tracer_core.debug.fallbacks import Fallback, fallback_of, marked, report
from tracer_core.debug.gc_pause import collector_paused
from tracer_core.debug.stages import debug_folder, stage, wants_text
from tracer_core.dispatch.functional_bridge import as_functional
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import BackendError
from tracer_core.options import CompileConfig
from tracer_core.registry.eager import compile_eager
from tracer_core.registry.torch_style import TorchStyle


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runner for a captured graph consists of, for storing it: the backend's own runner, the
    plan for outputs, the spec that it was compiled for, and the modes that are off around it
    (`without_modes`)."""

    runner: Runner
    plan: OutputPlan
    spec: CompileSpec
    modes: tuple[str, ...] = ()


def parts_of(runner: Runner) -> Parts | None:
    """The `Parts` of a runner made by `compile_graph`, or None where it runs captured operators
    eagerly.
    """
    found: Parts | None = getattr(runner, "tracer_parts", None)
    return found


def compile_graph(captured: CapturedGraph, config: CompileConfig) -> Runner:
    """The runner of a captured graph. Raises BackendError where the backend fails or breaks its
    contract.
    """
    backend = config.backend
    if begins_off(captured):
        switch_off_first(captured)
        with torch.enable_grad():
            return _inside(torch.enable_grad, compile_graph(captured, config))
    if isinstance(config.options, Plan):
        return Trial(captured, config, compile_graph)
    if isinstance(backend.compile, TorchStyle):
        if backend.compile.functional:
            return _compiled(
                captured,
                replace(config, backend=as_functional(config, backend.compile), options=None),
            )
        return _torch_style(captured, config, backend.compile)
    if backend.prepare is not None:
        _called(backend, captured.name, lambda: resolve(backend.prepare)(captured.gm))
    with collector_paused():
        return _compiled(captured, config)


def _compiled(captured: CapturedGraph, config: CompileConfig) -> Runner:
    backend = config.backend
    is_step = backend.ir != "torch" and calls_autograd(captured.gm)
    if captured.needs_grad and not is_step and backend.training is Training.INFERENCE_ONLY:
        reason = (
            f"{backend.name} is for inference only: the call runs the captured graph under eager"
            " autograd"
        )
        return _fall_back(captured, config, "training", reason)
    if has_symbols(captured.gm) and backend.shapes == "static":
        return PerSize(captured, lambda fixed: compile_graph(fixed, config))
    if backend.ir == "torch":
        return _compile_lowered(captured, config, _lowered(captured, config))
    build = _stepped if is_step else _trained if captured.needs_grad else _inferred
    try:
        if has_data_sizes(captured.gm):
            if is_step:
                raise LoweringUnsupported("a whole training step with sizes that depend on data")
            return Cut(captured, lambda part: _compiled(part, config)).runner()
        return build(captured, config)
    except LoweringUnsupported as error:
        return _fall_back(captured, config, "lowering", f"the captured graph runs eagerly: {error}")
    except torch_private.fake_failures() as error:
        reason = f"the captured graph runs eagerly: {type(error).__name__}: {error}"
        return _fall_back(captured, config, "lowering", reason)


def _inferred(captured: CapturedGraph, config: CompileConfig) -> Runner:
    """A runner whose outputs need no gradients."""
    lowered = _lowered(captured, config)
    return _without_ambient_modes(captured, _compile_lowered(captured, config, lowered))


def _stepped(captured: CapturedGraph, config: CompileConfig) -> Runner:
    """A runner for a graph that computes gradients itself: a whole training step."""
    from tracer_core.aot import autograd_runtime  # heavy: only training pays for it

    with stage("lower", graph=captured.name, suffix=".py") as record:
        request = Request(
            config.backend, config.options, config.mode, captured.name, captured.phase
        )
        lowered = autograd_runtime.lower_step(captured, request)
        if wants_text():
            record.text = lowered.graph.print_readable(print_output=False)
    compiled = _compile_lowered(captured, config, lowered)
    inner = autograd_runtime.in_its_grad_mode(lowered.graph.graph.nodes, compiled)
    run = _without_ambient_modes(captured, inner)
    run.tracer_parts = None  # type: ignore[attr-defined]  # steps are not stored
    return writing_like(
        marked(autograd_runtime.with_used_up(captured, run), fallback_of(compiled)), compiled
    )


def _trained(captured: CapturedGraph, config: CompileConfig) -> Runner:
    """A runner whose backward is the backend's too; the backward is compiled when it first runs."""
    from tracer_core.aot import autograd_runtime  # heavy: only training pays for it

    with stage("lower", graph=captured.name, suffix=".py") as record:
        request = Request(config.backend, config.options, config.mode, captured.name, Phase.FORWARD)
        graphs = autograd_runtime.lower_training(captured, request)
        if wants_text():
            record.text = "\n".join(
                one.graph.print_readable(print_output=False)
                for one in (graphs.forward, graphs.backward)
            )
    compiled = _compile_lowered(captured, config, graphs.forward)
    autograd_runtime.take_channels_last(graphs, getattr(compiled, "channels_last", frozenset()))
    run_forward = _without_ambient_modes(captured, compiled, inside_autograd=True)

    def compile_backward(lowered: Lowered) -> Runner:
        backward = replace(captured, name=lowered.spec.name, phase=Phase.BACKWARD)
        return autograd_runtime.LazyRunner(lambda: _compile_lowered(backward, config, lowered))

    runner = autograd_runtime.training_runner(captured, graphs, run_forward, compile_backward)
    return writing_like(marked(runner, fallback_of(run_forward)), compiled)


def compile_torch_graph(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    backend: Backend | str,
    *,
    options: Any = None,
    mode: str | None = None,
    name: str = "graph_0",
) -> Runner:
    """The runner of a torch-level graph that somebody else captured.

    inputs: one real or fake tensor (or int) a placeholder. options: None, a dict or the backend's
    dataclass. Raises BackendError, BackendNotFoundError, OptionError.
    """
    config = build_config(backend=backend, mode=mode, options=options)
    _take_symbols(gm, inputs, config.backend.name)
    needs_grad = grad_is_on_in(gm.graph) and output_requires_grad(gm, inputs)
    specs = tuple(
        InputSpec(node.name, role_of(value), node.name)
        for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)
    )
    begin, end = torch.is_grad_enabled(), ending(gm.graph)
    runner = compile_graph(CapturedGraph(gm, specs, tuple(inputs), needs_grad, name), config)
    return runner if begin == end else _leaving(end, runner)


def _leaving(grad: bool, runner: Runner) -> Runner:
    """`runner`, which leaves grad mode like this. (Code that our own tracer writes does so around
    its graphs.)
    """

    def run(inputs: list[Any]) -> Sequence[Any]:
        outputs = runner(inputs)
        torch._C._set_grad_enabled(grad)
        return outputs

    return writing_like(marked(run, fallback_of(runner)), runner)


def _take_symbols(gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: str) -> None:
    """torch.compile hands out real tensors beside symbolic sizes; what is symbolic in a tensor's
    shape is in the fake that it leaves on the placeholder. Raises BackendError where there is none:
    the sizes of one call would be taken for those of all."""
    if not any(isinstance(value, torch.SymInt) for value in inputs):
        return
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if "val" in node.meta or torch_private.is_fake(value):
            continue
        found = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and not torch_private.is_fake(found):
            reason = (
                "sizes are symbolic, but nothing says which are in the shape of the input"
                f" {node.name}"
            )
            raise BackendError(backend, "lower", reason)
        node.meta["val"] = value if found is None else found


def _lowered(captured: CapturedGraph, config: CompileConfig) -> Lowered:
    with stage("lower", graph=captured.name, suffix=".py") as record:
        lowered = lower(
            captured.gm,
            captured.real_inputs,
            config.backend,
            input_specs=captured.inputs,
            options=config.options,
            mode=config.mode,
            name=captured.name,
            phase=captured.phase,
        )
        if wants_text():
            record.text = lowered.graph.print_readable(print_output=False)
    return lowered


def _compile_lowered(captured: CapturedGraph, config: CompileConfig, lowered: Lowered) -> Runner:
    """Partitions, compiles, and puts the check of the first result and the output plan around
    it.
    """
    with stage("compile", graph=captured.name):
        runner, refused = _called(
            config.backend, captured.name, lambda: backend_runner(config.backend, lowered)
        )
    # The program's own operators give what eager gives, also where fakes of this torch say
    # something else.
    own = lowered.ir == "torch" and config.backend.compile is compile_eager
    spec = as_returned(lowered.spec, runner)
    early = early_writes(runner)
    functional = lowered.ir != "torch"
    result = lowered.finish(
        runner
        if own
        else versions_counted(checked(runner, spec, functional=functional), spec, early)
    )
    if early is not None:
        result.written_early = early  # type: ignore[attr-defined]
    if spec is not lowered.spec:
        result.channels_last = runner.channels_last  # type: ignore[attr-defined]
    if lowered.ir != "torch" and not refused:
        result.tracer_parts = Parts(runner, lowered.plan, lowered.spec)  # type: ignore[attr-defined]
    if refused:
        fallback = Fallback("unsupported", captured.name, config.backend.name, refused)
        report(fallback)
        return marked(result, fallback)
    return result


def _called(backend: Backend, graph: str, function: Callable[[], Any]) -> Any:
    """What a backend's function returns; what it raises becomes a BackendError."""
    try:
        return function()
    except BackendError:
        raise
    except Exception as error:
        folder = debug_folder(graph)
        dump = None if folder is None else str(folder)
        raise BackendError(
            backend.name, "compile", f"{graph}: {type(error).__name__}: {error}", dump
        ) from error


def _torch_style(captured: CapturedGraph, config: CompileConfig, style: TorchStyle) -> Runner:
    """A backend of torch.compile's convention: it gets the graph and the real tensors of the call,
    and does its own autograd, if any."""
    with stage("compile", graph=captured.name):
        function = style.build(captured.gm, captured.real_inputs, config)

    def run(inputs: list[Any]) -> Sequence[Any]:
        return function(*inputs)

    spec = lower(
        captured.gm,
        captured.real_inputs,
        config.backend,
        input_specs=captured.inputs,
        name=captured.name,
    ).spec
    return checked(run, spec, grad=captured.needs_grad)


def _fall_back(captured: CapturedGraph, config: CompileConfig, kind: str, reason: str) -> Runner:
    fallback = Fallback(kind, captured.name, config.backend.name, reason)
    report(fallback)
    forward = captured.gm.forward

    def run_captured(inputs: list[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = forward(*inputs)
        return outputs

    return marked(run_captured, fallback)


def _without_ambient_modes(
    captured: CapturedGraph, runner: Runner, *, inside_autograd: bool = False
) -> Runner:
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
    return without_modes((*grad, *sorted(autocast)), runner)


def without_modes(modes: Sequence[str], runner: Runner) -> Runner:
    """`runner` with these modes off around it: ``"grad"``, or the device type of an autocast."""
    parts = parts_of(runner)
    for mode in modes:
        off = (
            torch.no_grad
            if mode == "grad"
            else functools.partial(torch.autocast, mode, enabled=False)
        )
        runner = _inside(off, runner)
    if modes and parts is not None:
        runner.tracer_parts = replace(parts, modes=tuple(modes))  # type: ignore[attr-defined]
    return runner


def _inside(context: Callable[[], Any], runner: Runner) -> Runner:
    def run(inputs: list[Any]) -> Sequence[Any]:
        with context():
            return runner(inputs)

    return writing_like(marked(run, fallback_of(runner)), runner)
