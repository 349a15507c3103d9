"""`Backend`: the record that a plug-in registers for each backend it offers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
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

#: What `Backend.compile` returns: a callable that takes the graph's inputs as one flat list, which
#: it may clear to free them early, and returns the graph's outputs as a flat list.
Runner = Callable[[list[Any]], Sequence[Any]]

#: Valid values of the fields of `Backend`.
_CHOICES = {
    "ir": ("torch", "aten", "core_aten"),
    "shapes": ("static", "symbolic"),
    "numbers": ("inputs", "constants"),
    "data_sizes": ("break", "symbols"),
    "params": ("inputs", "constants"),
}
#: Fields of `Backend` that hold a function or its ``"module:attribute"`` reference.
_LAZY = ("compile", "decompositions", "partition", "supports", "options", "available", "check",
"prepare", "reset", "wrap",
         "report", "serialize", "deserialize")  # fmt: skip

DEFAULT_MODES: Mapping[str, str] = MappingProxyType({"default": "the backend's only mode"})


@dataclass(frozen=True)
class Backend:
    """A backend, as the hook ``tracer_backends`` returns it.

    name: what users pass as ``backend=``.

    compile: ``(graph, spec) -> Runner``. `graph` is a `torch.fx.GraphModule`; every node has a fake
    tensor in ``meta["val"]`` and the user's file and line in ``meta["user_frame"]`` (``"file.py:12
    in forward"``).

    description: one line.

    ir: ``"torch"`` (as captured), ``"aten"`` (functional ATen, input mutations as trailing
    ``copy_`` nodes) or ``"core_aten"`` (decomposed to the core ATen set).

    decompositions: ``() -> {OpOverload: function}``, added to the core's.

    keep_ops: names of operators that are never decomposed (``"aten.gelu.default"``).

    training: which graphs the backend takes when gradients are needed.

    partition: for `Training.JOINT`, ``(joint) -> names``. Gets the joint graph, a GraphModule that
    returns (outputs of the forward, gradients) and whose nodes have ``meta["phase"]`` ``"forward"``
    or ``"backward"``; names the forward nodes whose values are saved for the backward. The backward
    recomputes the rest.

    fuses: chains of pointwise operators become one kernel, so backward graphs recompute the outputs
    of normalizations instead of saving them.

    params: ``"inputs"``, or ``"constants"``: where the user sets the option ``freeze``, inference
    graphs are compiled with `CompileSpec.constants`.

    modes: mode name -> what the mode means for this backend.

    shapes: ``"static"`` or ``"symbolic"``.

    numbers: ``"inputs"``: Python numbers that change from call to call are graph inputs
    (`Role.SIZE`, `Role.NUMBER`; always so for torch-level backends); ``"constants"``: they are
    guarded by value.

    data_sizes: ``"symbols"``: data-dependent sizes (nonzero, boolean masks, ``.item()``) are
    unbacked symbols, which nodes of a torch-level graph read and check
    (`tracer_core.fx_capture.unbacked`); ATen graphs are cut at such operators and get the sizes
    through inputs, never as 0 or 1. ``"break"``: such an operator ends the graph.

    devices: device types that the backend runs on.

    supports: ``(node) -> None | reason``. Nodes with a reason run eagerly, which the core logs
    once.

    options: a frozen dataclass of documented fields.

    available: ``() -> None | reason``; must be cheap.

    check: ``(options, mode) -> None``, called by ``compile()``. Raises BackendError where a
    toolchain is missing, so that the user learns it before the first call.

    prepare: ``(captured graph) -> None``, called before a graph is lowered; starts slow
    preparations in the background.

    reset: drops all in-process state.

    wrap: ``(runner, graph, spec) -> Runner``; wraps another backend's runner, as CUDA graphs do.

    report: ``() -> pairs (graph name, text)``: what happened to graphs after they were compiled
    (captured by a CUDA graph, or why not), for `explain` and `last_compile`. The names are those of
    `CompileSpec.name`.

    serialize, deserialize: ``(runner) -> bytes`` and ``(bytes, spec) -> Runner``.

    api: the `API_VERSION` that the plug-in is written for, as a literal. A plug-in of another
    version is not loaded.
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
            raise ValueError(
                f"backend {self.name!r}: training={self.training!r}; a member of"
                " plugin_api.Training"
            )
        if isinstance(self.devices, str) or not self.devices:
            raise ValueError(
                f"backend {self.name!r}: devices={self.devices!r}; a set: frozenset({{'cpu'}})"
            )
        if isinstance(self.keep_ops, str):
            raise ValueError(
                f"backend {self.name!r}: keep_ops={self.keep_ops!r}; a set:"
                " frozenset({'aten.gelu.default'})"
            )
        if not isinstance(self.modes, Mapping) or "default" not in self.modes:
            raise ValueError(
                f"backend {self.name!r}: modes={self.modes!r}; {{'default': 'what it means here',"
                " ...}"
            )
        if isinstance(self.options, type) and not is_dataclass(self.options):
            raise ValueError(
                f"backend {self.name!r}: options={self.options.__name__}; a frozen dataclass"
            )
        for field_name in _LAZY:
            value = getattr(self, field_name)
            if (
                value is not None
                and not callable(value)
                and not (isinstance(value, str) and ":" in value)
            ):
                raise ValueError(
                    f"backend {self.name!r}: {field_name}={value!r}; a function or"
                    " 'module:function'"
                )
        if (self.training is Training.JOINT) != (self.partition is not None):
            raise ValueError(f"backend {self.name!r}: Training.JOINT and partition= go together")


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
