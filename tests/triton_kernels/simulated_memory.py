"""How much of a device's memory a compiled graph takes, and how often it launches, where there is
no device.

In: a module on the meta device. Out: its forward and backward as compiled for a GPU (`Training`),
and what the generated module allocates when it is run on fakes (`Memory`): operators run as torch's
fakes do, kernels do nothing. What always holds: memory counts from the line that allocates it until
the last tensor of it is gone; workspaces inside an operator are not seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inductor_backend import stages
from inductor_backend.compilation import Compilation
from inductor_backend.ir.target import Target
from inductor_backend.lowering import graph as lowering
from inductor_backend.options import InductorOptions
from inductor_backend.pipeline import start
from inductor_backend.plugin import BACKEND
from inductor_backend.runtime.cuda import build, launch
from inductor_backend.stages import run_stages
from tracer_core import plugin_api
from tracer_core.aot.autograd_runtime import TrainingGraphs, lower_training, take_channels_last
from tracer_core.aot.lower import Lowered, Request
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.plugin_api import InputSpec, Phase, Role
from tracer_core.testing.torch_graph import _Recorder

MiB = 2**20


def on_cuda(mode: Any, like: torch.Tensor, grad: bool = False) -> torch.Tensor:
    """A fake."""
    with mode:
        result = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
    return result.requires_grad_(grad)


def captured(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[Any, CapturedGraph]:
    """The graph of a module that lies on the meta device, for inputs like these, and the mode of
    its fakes.
    """
    fakes = Fakes(symbolic=False).mode
    recorder = _Recorder(fakes)
    state: dict[str, torch.Tensor] = {}
    for kind, named in (
        (Role.PARAMETER, model.named_parameters()),
        (Role.BUFFER, model.named_buffers()),
    ):
        for name, value in named:
            state[name] = on_cuda(fakes, value, grad=kind is Role.PARAMETER)
            label = name.replace(".", "_")
            recorder.add(
                state[name], state[name], InputSpec(label, kind, label, stable_address=True)
            )
    arguments = [on_cuda(fakes, value) for value in inputs]
    for number, item in enumerate(arguments):
        recorder.add(item, item, InputSpec(f"x_{number}", Role.USER_INPUT, f"x_{number}"))
    with torch.no_grad(), recorder:
        result = torch.func.functional_call(model, state, tuple(arguments))
    results = result if isinstance(result, (tuple, list)) else (result,)
    recorder.graph.output(tuple(recorder.node(result) for result in results))
    gm = torch.fx.GraphModule(torch.nn.Module(), recorder.graph)
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            node.meta.pop("val", None)  # recorded without autograd; lowering runs it again with it
    reals, specs = zip(*recorder.inputs, strict=True)
    return fakes, CapturedGraph(gm, specs, reals, True, "graph_0", Phase.FORWARD)


def of_inference(model: torch.nn.Module, *inputs: torch.Tensor) -> tuple[Memory, Compilation]:
    """What one call without gradients allocates."""
    with mock.patch.object(
        torch.overrides, "has_torch_function", lambda inputs: False
    ):  # not the recorder's own mode
        mode, graph = captured(model, inputs)
    with torch.no_grad():
        low = plugin_api.lower(
            graph.gm,
            graph.real_inputs,
            BACKEND,
            input_specs=graph.inputs,
            options=InductorOptions(),
        )
        c = compiled(low)
        with mode:
            run = function_of(c)
            with Memory(graph.real_inputs) as memory:
                run(list(graph.real_inputs))
    return memory, c


def of_module(
    model: torch.nn.Module, *inputs: torch.Tensor, mode_name: str = "default"
) -> Training:
    """The training graphs of a module that lies on the meta device, for inputs like these."""
    fakes, graph = captured(model, inputs)
    request = Request(BACKEND, InductorOptions(), mode_name, "graph_0", Phase.FORWARD)
    graphs = lower_training(graph, request)
    forward = compiled(graphs.forward)
    take_channels_last(graphs.backward, graphs.split, forward.program.channels_last)
    backward = compiled(graphs.backward)
    return Training(fakes, graphs, forward, backward, graph.real_inputs)


class Pretended(Target):
    """CPU tensors, for which all is planned as on a GPU (the interpreter's kernels have no
    arena).
    """

    @property
    def interpreted(self) -> bool:
        return False


def compiled(low: Lowered) -> Compilation:
    """A graph of CPU tensors as if they were on a GPU, up to its module's text."""
    before = stages.target_of
    stages.target_of = lowering.target_of = lambda graph: Pretended(torch.device("cpu"), True)
    try:
        return run_stages(start(low.graph, low.spec), "module")
    finally:
        stages.target_of = lowering.target_of = before


class Memory(TorchDispatchMode):
    """Mutable. live: bytes of the storages that were made inside and are alive. peak: the most so
    far; at_peak: their sizes then; at: the operator that ran."""

    def __init__(self, before: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._known: dict[int, tuple[int, int]] = {}  # storage -> (weak reference, bytes)
        self.peak = 0
        self.at_peak: list[int] = []
        self.at = ""
        for item in before:
            self.add(item)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        live = self.live
        if live > self.peak:
            self.peak, self.at = live, str(func)
            self.at_peak = sorted((size for _, size in self._known.values()), reverse=True)
        return result

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._known.get(key)
        if known is None or torch.UntypedStorage._expired(known[0]):
            self._known[key] = storage._weak_ref(), (storage.nbytes() + 511) // 512 * 512

    @property
    def live(self) -> int:
        self._known = {
            k: v for k, v in self._known.items() if not torch.UntypedStorage._expired(v[0])
        }
        return sum(size for _, size in self._known.values())


@contextlib.contextmanager
def _no_kernels() -> Iterator[None]:
    """Modules that are executed inside load nothing."""
    before = launch.launches, launch.current_stream, build.load_kernels
    launch.launches = lambda slots, described: (lambda *arguments: None, 0)  # type: ignore[assignment]
    launch.current_stream = lambda device: 0  # type: ignore[assignment]
    build.load_kernels = lambda kernels, device: list(kernels)  # type: ignore[assignment]
    try:
        yield
    finally:
        launch.launches, launch.current_stream, build.load_kernels = before


def function_of(c: Compilation) -> Callable[[list[Any]], list[Any]]:
    """The generated module's `call`, whose kernels do nothing."""
    text = c.code.replace("arena.data_ptr()", "0")
    namespace: dict[str, Any] = {"__name__": "simulated", "CONSTANTS": c.program.constants}
    with _no_kernels():
        exec(compile(text, f"<simulated {c.spec.name}>", "exec"), namespace)
    return namespace["call"]  # type: ignore[no-any-return]


@dataclass
class Training:
    """A compiled training graph. inputs: of its forward, fakes."""

    mode: Any
    graphs: TrainingGraphs
    forward: Compilation
    backward: Compilation
    inputs: Sequence[torch.Tensor]
    saved_bytes: int = 0
    memory: dict[str, Memory] = field(default_factory=dict)

    def step(self, held: bool = False) -> None:
        """A forward and a backward, as autograd runs them. held: somebody keeps what is saved (a
        recording).
        """
        split = self.graphs.split
        with torch.no_grad(), self.mode:
            memory = self.memory["forward"] = Memory(self.inputs)
            with memory:
                returned = list(function_of(self.forward)(list(self.inputs)))
            saved = [self.inputs[i] for i in split.saved_inputs] + [
                returned[i] for i in split.saved_outputs
            ]
            self.saved_bytes = memory.live
            tangents = [torch.empty_like(returned[i]) for i in split.tangents]
            visible = returned[: split.outputs]
            del returned
            memory = self.memory["backward"] = Memory([*self.inputs, *saved, *tangents, *visible])
            kept = list(saved) if held else []
            inputs = [*saved, *tangents]
            del saved, tangents
            run = function_of(self.backward)
            with memory:
                gradients = run(inputs)
            self.gradient_bytes = memory.live
            del gradients, kept

    def launches(self) -> dict[str, int]:
        count = lambda c: (
            sum(item is not None for item in c.kernels) + sum(s.extern is not None for s in c.steps)
        )
        return {"forward": count(self.forward), "backward": count(self.backward)}
