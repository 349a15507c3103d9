"""`Backend`: the record that a plug-in registers for each backend it offers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from types import MappingProxyType
from typing import Any

import pluggy

from tracer_core.contract.specs import Training

#: The version of the contract; docs/writing_a_backend.md describes it. `Backend.api` names the
#: version that a plug-in is written for.
API_VERSION = "1"

#: The pluggy project name and the entry-point group.
PROJECT = "tracer_core"

hookimpl = pluggy.HookimplMarker(PROJECT)

Lazy = str | Callable[..., Any]

#: A rule for a field: what it may be, in words and as a check.
_Rule = tuple[str, Callable[[Any], bool]]


def _one_of(*choices: str) -> _Rule:
    return f"one of {', '.join(map(repr, choices))}", lambda value: value in choices


def _is_lazy(value: Any) -> bool:
    return value is None or callable(value) or (isinstance(value, str) and ":" in value)


def _are_options(value: Any) -> bool:
    return is_dataclass(value) if isinstance(value, type) else _is_lazy(value)


#: Fields of `Backend` that hold a function or its ``"module:attribute"`` reference.
_LAZY = (
    "compile decompositions partition supports available check prepare reset wrap report serialize"
    " serialize_for deserialize write_library"
)
_RULES: Mapping[str, _Rule] = {
    "ir": _one_of("torch", "aten", "core_aten"),
    "shapes": _one_of("static", "symbolic"),
    "numbers": _one_of("inputs", "constants"),
    "data_sizes": _one_of("break", "symbols"),
    "params": _one_of("inputs", "constants"),
    "training": ("a member of plugin_api.Training", lambda value: isinstance(value, Training)),
    "devices": ("a set: frozenset({'cpu'})", lambda value: value and not isinstance(value, str)),
    "keep_ops": ("a set: frozenset({'aten.gelu.default'})", lambda value: type(value) is not str),
    "modes": (
        "{'default': 'what it means here', ...}",
        lambda value: isinstance(value, Mapping) and "default" in value,
    ),
    "options": ("a frozen dataclass, or 'module:class'", _are_options),
    **dict.fromkeys(_LAZY.split(), ("a function or 'module:function'", _is_lazy)),
}  # fmt: skip

DEFAULT_MODES: Mapping[str, str] = MappingProxyType({"default": "the backend's only mode"})


@dataclass(frozen=True)
class Backend:
    """A backend, as the hook ``tracer_backends`` returns it.

    name: what users pass as ``backend=``. compile: ``(graph, spec) -> Runner``, or any callable
    that takes one list of inputs, where `graph` is a `torch.fx.GraphModule` with fake tensors in
    ``meta["val"]`` and the user's file and line in ``meta["user_frame"]`` (``"file.py:12 in
    forward"``) of every node. description: one line. ir: ``"torch"`` (as captured), ``"aten"``
    (functional ATen, input mutations as trailing ``copy_`` nodes) or ``"core_aten"`` (decomposed to
    the core ATen set). decompositions: ``() -> {OpOverload: function}``, added to the core's.
    keep_ops: names of operators never decomposed (``"aten.gelu.default"``). training: which graphs
    it takes when gradients are needed. partition: for `Training.JOINT`, ``(joint) -> names``: gets
    the joint graph, a GraphModule that returns (outputs of the forward, gradients) and whose nodes
    have ``meta["phase"]`` ``"forward"`` or ``"backward"``, and names the forward nodes whose values
    are saved for the backward; the rest is computed again. fuses: chains of pointwise operators
    become one kernel, so the outputs of normalisations are computed again by backward graphs rather
    than saved. params: ``"inputs"``, or ``"constants"``: where the user sets its option ``freeze``,
    graphs for inference are compiled with `CompileSpec.constants`. modes: mode name -> what it
    means here. shapes: ``"static"`` or ``"symbolic"``. numbers: ``"inputs"``: numbers of the
    program that change from call to call are inputs (`Role.SIZE`, `Role.NUMBER`; of torch-level
    backends they always are), ``"constants"``: they are guarded by value. data_sizes:
    ``"symbols"``: sizes that depend on data (nonzero, masks, ``.item()``) are symbols, which nodes
    of a torch-level graph read and check (`tracer_core.fx_capture.unbacked`), while ATen graphs are
    cut at such operators and have inputs that show the sizes, which are never 0 or 1; ``"break"``:
    the graph ends there. devices: device types it runs on. supports: ``(node) -> None | reason``;
    nodes with a reason run eagerly and the core says so once. options: a frozen dataclass of
    documented fields. available: ``() -> None | reason``, cheap. check: ``(options, mode) ->
    None``, called by ``compile()``; raises BackendError where a toolchain is missing, so that the
    user learns it before the first call. prepare: ``(captured graph) -> None``, called before a
    graph is lowered: starts in the background what the graph will need and takes long. reset:
    forgets all in-process state. wrap: ``(runner, graph, spec) -> Runner``: runs another backend's
    runner its own way, as CUDA graphs do; graph: or the `Runner.graph_traits` of a stored runner.
    report: ``() -> pairs (name of a graph, text)``: what became of graphs since they were compiled
    (`CompileSpec.name`; recorded or why not), for `explain` and `last_compile`. serialize:
    ``(runner) -> bytes``; deserialize: ``(bytes, spec) -> Runner``. serialize_for: ``(runner,
    architectures) -> bytes``: the same for a package, with machine code for GPUs of these
    architectures (``("sm_80", "sm_90")``; none: the runner's own). write_library: ``(graph, spec, directory: Path) ->
    None``: writes a graph for inference, whose weights are ``get_attr`` tensors, as a shared library
    with a C header that needs no Python. api: the `API_VERSION` that the
    plug-in is written for, as a literal; with another one it is not loaded.
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
    serialize_for: Lazy | None = None
    deserialize: Lazy | None = None
    write_library: Lazy | None = None
    api: str = "1"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.replace("-", "_").isidentifier():
            raise ValueError(f"backend name {self.name!r} is not an identifier")
        if self.api != API_VERSION:
            raise ValueError(f"backend {self.name!r} is written for version {self.api} of the plug-in API, and this tracer-core "
                             f"has version {API_VERSION}: install releases of the two that fit")  # fmt: skip
        for field_name, (expected, holds) in _RULES.items():
            if not holds(value := getattr(self, field_name)):
                shown = value.__name__ if isinstance(value, type) else repr(value)
                raise ValueError(f"backend {self.name!r}: {field_name}={shown}; {expected}")
        if (self.training is Training.JOINT) != (self.partition is not None):
            raise ValueError(f"backend {self.name!r}: Training.JOINT and partition= go together")


def wants_constants(backend: Backend, options: Any) -> bool:
    """Whether the user asked for freezing and the backend supports it."""
    return backend.params == "constants" and bool(getattr(options, "freeze", False))


def resolve(ref: Any) -> Any:
    """Returns the object that a ``"module:attribute"`` string names, and any other object as it is.

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
