"""The contract between tracer_core and a backend: the one module a backend imports.

In: nothing but torch and the standard library, so that importing it costs what importing torch
costs. Out: the types a backend fills in (`Backend`) and is handed (`CompileSpec`), the hook marker
(`hookimpl`), services (`lower`, `compile_graph`, `get_backend`; for backends over an engine `contiguous_graph`,
`promote`, `node_probe` and `add_alarm`; for tables of operators `operators`), and the core's errors, environment,
stages, loggers and cache folders, re-exported so that a backend needs no other import.

A backend's engine (triton, onnxruntime, tvm, ...) is never imported to *list* it: `compile`,
`supports`, `available`, `options` and the other callables may be given as ``"module:attribute"``
strings, which are resolved the first time they are needed.

What always holds: every dataclass here is frozen; `API_VERSION` changes whenever a field changes
its meaning.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pluggy

from tracer_core.cache_location import (
    CacheLocationError,
    cache_folder,
    demand_room,
    leave_folder,
    private_folder,
)
from tracer_core.entries import FORMAT as ENTRY_FORMAT
from tracer_core.entries import Entries, replace_file
from tracer_core.errors import (
    BackendError,
    BackendNotFoundError,
    OptionError,
    TracerError,
    VerifyError,
)
from tracer_core.logs import enabled, logger, note
from tracer_core.options import Environment, env
from tracer_core.stages import StageRecord, debug_folder, stage, wants_text
from tracer_core.torch_private.names import operators

if TYPE_CHECKING:
    import torch

__all__ = [
    "API_VERSION",
    "DEFAULT_MODES",
    "ENTRY_FORMAT",
    "PROJECT",
    "Backend",
    "BackendError",
    "BackendNotFoundError",
    "CacheLocationError",
    "CompileSpec",
    "Entries",
    "Environment",
    "Fault",
    "InputSpec",
    "OptionError",
    "OutputSpec",
    "Phase",
    "Role",
    "Runner",
    "SizeSpec",
    "StageRecord",
    "TracerError",
    "Training",
    "VerifyError",
    "add_alarm",
    "cache_folder",
    "checks_indices",
    "compile_graph",
    "contiguous_graph",
    "debug_folder",
    "demand_room",
    "env",
    "get_backend",
    "hookimpl",
    "enabled",
    "leave_folder",
    "logger",
    "lower",
    "node_probe",
    "note",
    "operators",
    "private_folder",
    "promote",
    "replace_file",
    "resolve",
    "stage",
    "wants_text",
]

#: Every first-party backend and the template are built on it; see docs/writing_a_backend.md. `Backend.api` says which
#: one a plug-in is written for.
API_VERSION = "1"

#: The pluggy project name and the entry-point group.
PROJECT = "tracer_core"

#: In the ``meta`` of a node of a backward graph: its positions of maxima are made, by nodes before it, from int8 places in
#: their windows, row-major (windows of two dimensions, without dilation), which are what was saved.
OFFSETS_IN_WINDOWS = "offsets_in_windows"

hookimpl = pluggy.HookimplMarker(PROJECT)

Lazy = str | Callable[..., Any]


class Role(enum.Enum):
    """What an input of a graph is to the program it was captured from. SIZE: an int, whose symbol a SizeSpec
    names. NUMBER: a float; its placeholder's value is a SymFloat."""

    USER_INPUT = "user_input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    SIZE = "size"
    NUMBER = "number"
    RNG_STATE = "rng_state"
    SAVED_ACTIVATION = "saved_activation"


class Phase(enum.Enum):
    """Which part of the program a graph is."""

    INFERENCE = "inference"
    FORWARD = "forward"
    BACKWARD = "backward"
    JOINT = "joint"


class Training(enum.Enum):
    """Which graphs a backend wants when gradients are needed.

    INFERENCE_ONLY: none; the captured graph runs under eager autograd. FORWARD_BACKWARD: a forward and a backward
    graph, cut by the core (a minimum cut; the backend's options may have a field ``memory_budget``, 0 to 1). JOINT:
    the same, cut where the backend's own `Backend.partition` says.
    """

    INFERENCE_ONLY = "inference_only"
    FORWARD_BACKWARD = "forward_backward"
    JOINT = "joint"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One placeholder of the graph, in order.

    name: the placeholder's name. role: what it is. source: where it comes from in the user's
    program, printable (``x``, ``self.conv1.weight``). stable_address: its storage stays at the same
    address from call to call while the guards hold (parameters and buffers). donatable: nobody
    reads it after the call, so its memory may be reused. size_range: for `Role.SIZE` only, the
    inclusive range of its values (None: no upper bound).
    """

    name: str
    role: Role
    source: str
    stable_address: bool = False
    donatable: bool = False
    size_range: tuple[int, int | None] | None = None


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A symbolic size that occurs in the shapes of the graph.

    symbol: its name in the sympy expressions of `meta["val"]` (``s0``). input_index and dim: where a
    backend reads its value at run time, ``inputs[input_index].shape[dim]`` (dim None: the input is
    itself an int, of `Role.SIZE`). lower and upper: inclusive range. hint: its value in the call
    that was captured.
    """

    symbol: str
    input_index: int
    dim: int | None
    lower: int
    upper: int | None
    hint: int


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One value of the graph's output tuple, in order.

    alias_of_input / alias_of_output: the index of the input or earlier output whose storage it
    shares (torch-level graphs only: `lower` takes aliasing outputs out of ATen graphs and the core
    makes them again). mutated_input: for trailing ``copy_`` results, see `CompileSpec.mutations`.
    shape, stride: what the result must have, ints or SymInts. dtype and device likewise.
    ``None`` in all four: the value is a Python int. saved: only the backward reads it; a runner may return such
    images (four dimensions, known sizes) channels-last instead, and says so by its attribute `channels_last`, a set of
    output numbers: the backward graph is compiled for them.
    """

    shape: tuple[Any, ...] | None
    stride: tuple[Any, ...] | None
    dtype: torch.dtype | None
    device: torch.device | None
    alias_of_input: int | None = None
    alias_of_output: int | None = None
    saved: bool = False


@dataclass(frozen=True, slots=True)
class CompileSpec:
    """What a backend is told about a graph beside the graph.

    inputs, outputs, sizes: see their types. mutations: indices of the inputs that the graph writes
    to; in ATen graphs each has one trailing ``aten.copy_(placeholder, value)`` node. A runner may say by its attribute
    `written_early`, a set of such indices, which of them it may have written to when it raises: where the program then runs
    in the graph's place, the core need undo these only. phase: what part
    of the program the graph is. options: an instance of the backend's options dataclass. mode: one of
    the backend's modes. device: where most of the graph's inputs live. cache_key: hex digest over
    graph, shapes, dtypes, options, mode and versions: equal keys mean that compiling again would
    give the same result. name: a short name for dumps and messages (``graph_0``). constants: indices of the inputs
    (parameters and buffers) that keep their values from call to call. Where there are any, the runner has a
    method ``prepare(tensors)``: it gets these inputs and returns a runner for them, which is called with all inputs
    as long as the core sees no change in them; and an attribute ``reads``: positions among the constants of those that
    such a runner still reads itself (of the others the user may give the memory back).
    """

    backend: str
    name: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    sizes: tuple[SizeSpec, ...]
    mutations: tuple[int, ...]
    phase: Phase
    options: Any
    mode: str
    device: torch.device
    cache_key: str
    constants: tuple[int, ...] = ()


class Fault(enum.Enum):
    """What may make an engine's results of an operator others than PyTorch's: see `add_alarm`."""

    INDEX = "an index out of range, or a negative one that PyTorch refuses"
    NAN = "NaN in an argument"
    INFINITE = "NaN or an infinity in an argument"


#: What `Backend.compile` returns: called with a flat list of the graph's inputs, which it may clear
#: to free them early, it returns a flat list of the graph's outputs.
Runner = Callable[[list[Any]], Sequence[Any]]

#: What fields of `Backend` may be.
_CHOICES = {
    "ir": ("torch", "aten", "core_aten"),
    "shapes": ("static", "symbolic"),
    "numbers": ("inputs", "constants"),
    "data_sizes": ("break", "symbols"),
    "params": ("inputs", "constants"),
}
#: Fields of `Backend` that are functions, or say where one is.
_LAZY = ("compile", "decompositions", "partition", "supports", "options", "available", "check", "prepare", "reset", "wrap",
         "report", "serialize", "deserialize")  # fmt: skip

DEFAULT_MODES: Mapping[str, str] = MappingProxyType({"default": "the backend's only mode"})


@dataclass(frozen=True)
class Backend:
    """A backend as it registers itself (hook ``tracer_backends``).

    name: what users pass as ``backend=``. compile: ``(graph, spec) -> Runner``, where `graph` is a
    `torch.fx.GraphModule` with fake tensors in ``meta["val"]`` and the user's file and line in
    ``meta["user_frame"]`` (``"file.py:12 in forward"``) of every node.
    description: one line. ir: ``"torch"`` (as captured), ``"aten"`` (functional ATen, input mutations
    as trailing ``copy_`` nodes) or ``"core_aten"`` (decomposed to the core ATen set).
    decompositions: ``() -> {OpOverload: function}``, added to the core's. keep_ops: names of operators
    never decomposed (``"aten.gelu.default"``). training: which graphs it takes when gradients
    are needed. partition: for `Training.JOINT`, ``(joint) -> names``: gets the joint graph, a GraphModule that
    returns (outputs of the forward, gradients) and whose nodes have ``meta["phase"]`` ``"forward"`` or
    ``"backward"``, and names the forward nodes whose values are saved for the backward; the rest is computed
    again. fuses: chains of pointwise operators become one kernel, so the outputs of normalisations are computed again
    by backward graphs rather than saved. params: ``"inputs"``, or ``"constants"``: where the user sets its option
    ``freeze``, graphs for inference are compiled with `CompileSpec.constants`. modes: mode name -> what it means here.
    shapes: ``"static"`` or ``"symbolic"``. numbers: ``"inputs"``: numbers of the program that change from call to
    call are inputs (`Role.SIZE`, `Role.NUMBER`; of torch-level backends they always are), ``"constants"``: they are
    guarded by value. data_sizes: ``"symbols"``: sizes that depend on data (nonzero, masks, ``.item()``) are symbols, which
    nodes of a torch-level graph read and check (`tracer_core.recorder.data_sizes`), while ATen graphs are cut at such
    operators and have inputs that show the sizes, which are never 0 or 1; ``"break"``: the graph ends there.
    devices: device types it runs on.
    supports: ``(node) -> None | reason``; nodes with a reason run eagerly and the core says so once.
    options: a frozen dataclass of documented fields. available: ``() -> None | reason``, cheap.
    check: ``(options, mode) -> None``, called by ``compile()``; raises BackendError where a
    toolchain is missing, so that the user learns it before the first call. prepare: ``(captured graph) -> None``,
    called before a graph is lowered: starts in the background what the graph will need and takes long. reset: forgets all
    in-process state. wrap: ``(runner, graph, spec) -> Runner``: runs another backend's runner its own way, as
    CUDA graphs do. report: ``() -> pairs (name of a graph, text)``: what became of graphs since they were compiled
    (`CompileSpec.name`; recorded or why not), for `explain` and `last_compile`.
    serialize: ``(runner) -> bytes``; deserialize: ``(bytes, spec) -> Runner``. api: the `API_VERSION`
    that the plug-in is written for, as a literal; with another one it is not loaded.
    """

    name: str
    compile: Lazy
    description: str = ""
    ir: str = "aten"
    decompositions: Lazy | None = None
    keep_ops: frozenset[str] = frozenset()
    training: Training = Training.INFERENCE_ONLY
    partition: Lazy | None = None
    fuses: bool = False
    params: str = "inputs"
    modes: Mapping[str, str] = field(default_factory=lambda: DEFAULT_MODES)
    shapes: str = "static"
    numbers: str = "constants"
    data_sizes: str = "break"
    devices: frozenset[str] = frozenset({"cpu"})
    supports: Lazy | None = None
    options: str | type | None = None
    available: Lazy | None = None
    check: Lazy | None = None
    prepare: Lazy | None = None
    reset: Lazy | None = None
    wrap: Lazy | None = None
    report: Lazy | None = None
    serialize: Lazy | None = None
    deserialize: Lazy | None = None
    api: str = "1"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.replace("-", "_").isidentifier():
            raise ValueError(f"backend name {self.name!r} is not an identifier")
        if self.api != API_VERSION:
            raise ValueError(f"backend {self.name!r} is written for version {self.api} of the plug-in API, and this tracer-core "
                             f"has version {API_VERSION}: install releases of the two that fit")  # fmt: skip
        for field_name, allowed in _CHOICES.items():
            if (value := getattr(self, field_name)) not in allowed:
                choices = ", ".join(map(repr, allowed))
                raise ValueError(f"backend {self.name!r}: {field_name}={value!r}; one of {choices}")
        if not isinstance(self.training, Training):
            raise ValueError(f"backend {self.name!r}: training={self.training!r}; a member of plugin_api.Training")
        if isinstance(self.devices, str) or not self.devices:
            raise ValueError(f"backend {self.name!r}: devices={self.devices!r}; a set: frozenset({{'cpu'}})")
        if isinstance(self.keep_ops, str):
            raise ValueError(f"backend {self.name!r}: keep_ops={self.keep_ops!r}; a set: frozenset({{'aten.gelu.default'}})")
        if not isinstance(self.modes, Mapping) or "default" not in self.modes:
            raise ValueError(f"backend {self.name!r}: modes={self.modes!r}; {{'default': 'what it means here', ...}}")
        if isinstance(self.options, type) and not is_dataclass(self.options):
            raise ValueError(f"backend {self.name!r}: options={self.options.__name__}; a frozen dataclass")
        for field_name in _LAZY:
            value = getattr(self, field_name)
            if value is not None and not callable(value) and not (isinstance(value, str) and ":" in value):
                raise ValueError(f"backend {self.name!r}: {field_name}={value!r}; a function or 'module:function'")
        if (self.training is Training.JOINT) != (self.partition is not None):
            raise ValueError(f"backend {self.name!r}: Training.JOINT and partition= go together")


def resolve(ref: Any) -> Any:
    """The object that a ``"module:attribute"`` string names; anything else is returned as it is.

    Raises ImportError or AttributeError with the reference in its text.
    """
    if not isinstance(ref, str):
        return ref
    module, _, attribute = ref.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise type(error)(f"cannot resolve {ref!r}: {error}") from error
    return value


def lower(gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: Backend | str, **kwargs: Any) -> Any:
    """Lowers a torch-level graph to the IR that `backend` asks for, without the tracer.

    See `tracer_core.aten.lower.lower` for arguments, result and errors.
    """
    from tracer_core.aten.lower import lower as implementation  # heavy: FakeTensor, make_fx

    return implementation(gm, inputs, backend, **kwargs)


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], backend: Backend | str, **kwargs: Any
) -> Runner:
    """Compiles a torch-level graph with `backend`, without the tracer: lowering, partitioning by
    `supports`, the backend's compile and the check of its first result.

    inputs: one real or fake tensor (or int) a placeholder. kwargs: ``options``, ``mode``, ``name``.
    See `tracer_core.dispatch.compile_torch_graph`. Raises BackendError, BackendNotFoundError, OptionError.
    """
    from tracer_core.dispatch import compile_torch_graph  # heavy: FakeTensor, make_fx

    runner: Runner = compile_torch_graph(gm, inputs, backend, **kwargs)
    return runner


def get_backend(name: str) -> Backend:
    """The installed backend of that name. Raises BackendNotFoundError with what is installed."""
    from tracer_core.backends import get  # heavy: entry points

    return get(name)


def contiguous_graph(graph: torch.fx.GraphModule) -> Any:
    """For engines whose results are contiguous and that never write to an input: the graph in that form, and how
    its results become what the spec promises. See `tracer_core.contiguous`."""
    from tracer_core.contiguous import contiguous_graph as implementation  # heavy: torch

    return implementation(graph)


def add_alarm(
    graph: torch.fx.Graph,
    faults: Callable[[Any], Fault | None],
    eager: Callable[..., Any],
    total: Callable[[Any], Any] | None = None,
) -> Any:
    """For engines whose results are PyTorch's for all but a few values: adds one result to the graph, the alarm, in place.
    faults: for each node the values for which the engine must not have it, or None. Gives an object with the result's
    `name`, `sounds(value)`, and `eager`, which gives PyTorch's results for a call with such values; None where no node has
    a fault. See `tracer_core.alarms`."""
    from tracer_core.alarms import add_alarm as implementation  # heavy: torch

    return implementation(graph, faults, eager, total)


def checks_indices(node: torch.fx.Node) -> bool:
    """Whether an alarm can check the indices of an operator (`Fault.INDEX`), so that an engine need not."""
    from tracer_core.alarms import checkable  # heavy: torch

    return checkable(node)


def promote(graph: torch.fx.Graph) -> None:
    """For engines whose operators want arguments of one dtype: adds the casts that ATen's type promotion makes, in
    place. See `tracer_core.promotion`."""
    from tracer_core.promotion import promote as implementation  # heavy: torch

    implementation(graph)


def node_probe(build: Callable[[Any], Callable[[list[Any]], Sequence[Any]]], engine: str) -> Any:
    """A ``(node) -> None | reason`` for `Backend.supports` that asks the engine itself, by running the one node on
    seeded data and comparing with PyTorch. See `tracer_core.one_node.NodeProbe`."""
    from tracer_core.one_node import NodeProbe  # heavy: torch

    return NodeProbe(build, engine)
