"""`Backend`: the record that a plug-in registers for each backend it offers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, overload

import pluggy

from tracer_core.contract.specs import Training

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tracer_core.contract.runner import RunFunction, Runner
    from tracer_core.contract.specs import CompileSpec

#: The version of the contract; docs/writing_a_backend.md describes it. `Backend.api` names the
#: version that a plug-in is written for.
API_VERSION = "1"

#: The pluggy project name and the entry-point group.
PROJECT = "tracer_core"

hookimpl = pluggy.HookimplMarker(PROJECT)

F = TypeVar("F")

#: A function, or its ``"module:attribute"`` reference.
Lazy = Union[str, F]

#: The operators in the graphs that a backend takes. ``"torch"``: the captured graph. ``"aten"``:
#: functional ATen operators, with writes to inputs as trailing ``copy_`` nodes. ``"core_aten"``: the
#: same, decomposed to the core ATen set.
IRLevel = Literal["torch", "aten", "core_aten"]

#: What the sizes in ``meta["val"]`` are. ``"static"``: ints, one compile per set of sizes.
#: ``"symbolic"``: ints or SymInts.
ShapeSupport = Literal["static", "symbolic"]

#: What a number of the program becomes that changes from call to call. ``"inputs"``: an input of the
#: graph (`Role.SIZE`, `Role.NUMBER`), as always in torch-level graphs. ``"constants"``: a constant,
#: guarded by its value.
NumberSupport = Literal["inputs", "constants"]

#: What happens at an operator whose result size depends on data (nonzero, masks, ``.item()``).
#: ``"break"``: the graph ends there. ``"symbols"``: the size becomes a symbol. Nodes of a torch-level
#: graph read and check it (`tracer_core.fx_capture.unbacked`); ATen graphs are split at such
#: operators, and inputs of the next graph have the size, which is never 0 or 1.
DataSizeSupport = Literal["break", "symbols"]

#: What parameters and buffers are. ``"inputs"``: inputs of the graph. ``"constants"``: the same, but
#: where the user sets the backend's option ``freeze``, graphs for inference are compiled with
#: `CompileSpec.constants`.
ParameterSupport = Literal["inputs", "constants"]

#: A rule for a field: what it may be, in words and as a check.
_Rule = tuple[str, Callable[[Any], bool]]


def _one_of(literal: Any) -> _Rule:
    choices = get_args(literal)
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
    "ir": _one_of(IRLevel),
    "shapes": _one_of(ShapeSupport),
    "numbers": _one_of(NumberSupport),
    "data_sizes": _one_of(DataSizeSupport),
    "params": _one_of(ParameterSupport),
    "training": ("a member of plugin_api.Training", lambda value: isinstance(value, Training)),
    "devices": ("a set: frozenset({'cpu'})", lambda value: value and not isinstance(value, str)),
    "preserved_ops": ("a set: frozenset({'aten.gelu.default'})", lambda value: type(value) is not str),
    "modes": (
        "{'default': 'what it means here', ...}",
        lambda value: isinstance(value, Mapping) and "default" in value,
    ),
    "options": ("a frozen dataclass, or 'module:class'", _are_options),
    **dict.fromkeys(_LAZY.split(), ("a function or 'module:function'", _is_lazy)),
}  # fmt: skip

DEFAULT_MODES: Mapping[str, str] = MappingProxyType({"default": "the backend's only mode"})

#: Modes of torch.compile that capture every graph on a CUDA device as a CUDA graph, whether or not
#: capturing pays.
CAPTURING_MODES = frozenset({"reduce-overhead", "max-autotune"})


@dataclass(frozen=True)
class Backend:
    """A backend, as the hook ``tracer_backends`` returns it.

    A field that takes a function also takes its ``"module:function"`` reference, which is imported
    at its first use.

    Raises:
        ValueError: A field has a value that it cannot have; the text names the field and its choices.
    """

    #: What users pass as ``backend=``.
    name: str
    #: Compiles one graph, a `torch.fx.GraphModule` whose nodes have fake tensors in ``meta["val"]``
    #: and the user's file and line in ``meta["user_frame"]`` (``"file.py:12 in forward"``). Returns
    #: a `Runner`, or any callable that takes one list of inputs.
    compile: Lazy[Callable[[torch.fx.GraphModule, CompileSpec], RunFunction]]
    #: What it is, in one line.
    description: str = ""
    #: The operators in the graphs that `compile` takes.
    ir: IRLevel = "aten"
    #: Returns ``{OpOverload: function}``: decompositions besides the core's.
    decompositions: Lazy[Callable[[], Mapping[Any, Callable[..., Any]]]] | None = None
    #: Names of operators that are never decomposed (``"aten.gelu.default"``).
    preserved_ops: frozenset[str] = frozenset()
    #: Which graphs it takes when gradients are needed.
    training: Training = Training.INFERENCE_ONLY
    #: Required for `Training.JOINT`. Takes the joint graph, which returns (outputs of the forward,
    #: gradients) and whose nodes have ``meta["phase"]`` ``"forward"`` or ``"backward"``. Returns the
    #: names of the forward nodes whose values are saved for the backward; it recomputes the others.
    partition: Lazy[Callable[[torch.fx.GraphModule], Collection[str]]] | None = None
    #: Whether chains of pointwise operators become one kernel. Backward graphs then recompute the
    #: outputs of normalizations in place of saving them.
    fuses: bool = False
    #: What parameters and buffers of the program are.
    params: ParameterSupport = "inputs"
    #: What each mode means here, by the name that users pass as ``mode=``.
    modes: Mapping[str, str] = field(default_factory=lambda: DEFAULT_MODES)
    #: Whether the graphs may have symbolic sizes.
    shapes: ShapeSupport = "static"
    #: What a number of the program becomes that changes from call to call.
    numbers: NumberSupport = "constants"
    #: What happens at an operator whose result size depends on data.
    data_sizes: DataSizeSupport = "break"
    #: Device types that it runs on; nodes on others run eagerly.
    devices: frozenset[str] = frozenset({"cpu"})
    #: Returns None for a node that it compiles, else the reason why not. Nodes with a reason run
    #: eagerly, and the core logs that once.
    supports: Lazy[Callable[[torch.fx.Node], str | None]] | None = None
    #: A frozen dataclass of documented fields: what users pass as ``options=``.
    options: str | type | None = None
    #: Returns None if the backend can run here, else the reason why not. Cheap.
    available: Lazy[Callable[[], str | None]] | None = None
    #: Takes the options and the mode of a ``compile()``, which calls it, and raises BackendError
    #: where a toolchain is missing, before the first call.
    check: Lazy[Callable[[Any, str], None]] | None = None
    #: Takes the captured graph before it is lowered, and starts in the background what the graph
    #: will need and takes long.
    prepare: Lazy[Callable[[torch.fx.GraphModule], None]] | None = None
    #: Drops all in-process state.
    reset: Lazy[Callable[[], None]] | None = None
    #: Wraps another backend's runner, as CUDA graphs do. Takes the runner, its graph (or the
    #: `Runner.graph_traits` of a stored runner) and its spec; returns a `Runner`.
    wrap: Lazy[Callable[[Runner, Any, CompileSpec], Runner]] | None = None
    #: Returns pairs (`CompileSpec.name`, text): what became of graphs since they were compiled
    #: (captured as a CUDA graph, or why not), for `explain` and `last_compile`.
    report: Lazy[Callable[[], Iterable[tuple[str, str]]]] | None = None
    #: Returns a runner as bytes, for the persistent cache.
    serialize: Lazy[Callable[[Any], bytes]] | None = None
    #: Returns a runner as bytes for a package, with machine code for GPUs of these architectures
    #: (``("sm_80", "sm_90")``; none: the runner's own).
    serialize_for: Lazy[Callable[[Any, Sequence[str]], bytes]] | None = None
    #: Returns the runner that `serialize` or `serialize_for` stored.
    deserialize: Lazy[Callable[[bytes, CompileSpec], RunFunction]] | None = None
    #: Writes a graph for inference, whose weights are ``get_attr`` tensors, into a directory: a
    #: shared library with a C header that needs no Python.
    write_library: Lazy[Callable[[torch.fx.GraphModule, CompileSpec, Path], None]] | None = None
    #: The `API_VERSION` that the plug-in is written for, as a literal; with another one it is not
    #: loaded.
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
    """Returns whether the user set the option ``freeze`` of a backend that supports it."""
    return backend.params == "constants" and bool(getattr(options, "freeze", False))


@overload
def resolve(ref: str) -> Any: ...
@overload
def resolve(ref: str | F) -> F: ...
def resolve(ref: Any) -> Any:
    """Returns the object that a ``"module:attribute"`` string names.

    Args:
        ref: A reference. Any other object is returned as it is.

    Returns:
        The object.

    Raises:
        ImportError: The module cannot be imported; the text has the reference.
        AttributeError: The module has no such attribute; the text has the reference.
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
