"""What handlers of calls and values may ask of the tracer: one protocol a role, and `Tracing`,
which is all of them.

The tracer is built above this folder (trace/tracer.py). The tables of natives/, and the
modules of interpreter/ that its classes call, are written against these protocols.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch

from tracer_core.bytecode import semantics
from tracer_core.bytecode.frame import Frame, LazyValue
from tracer_core.fx_capture.fx_recorder import Recorder
from tracer_core.fx_capture.provenance import Provenance
from tracer_core.fx_capture.side_effects import Change, Effects
from tracer_core.guards.source import Source
from tracer_core.natives.effects import Effect


class FrameRunner(Protocol):
    """The chain of frames. outer_step: number of the instruction of the outermost frame being run.
    steps: how many instructions have run. nesting: how many calls below native code are being run.
    """

    frames: list[Frame]
    outer_step: int
    steps: int
    nesting: int

    def break_graph(self, kind: str, reason: str) -> NoReturn: ...

    def open(self, unread: LazyValue) -> Any:
        """The value of a part of the initial state, guarded."""

    def load(self, frame: Frame, index: int) -> Any:
        """A local variable."""

    def where(self) -> str:
        """``file:line in function`` of the innermost frame of the user's code."""
        ...

    def is_compiling(self) -> bool:
        """What the program is told that asks whether it is being compiled."""
        ...

    def run(self, base: int) -> Any:
        """Runs until the frame at position `base` of the chain returns; gives its value."""

    def unwind(self, error: BaseException, base: int) -> None:
        """Finds the handler of an exception in the chain; re-raises it when there is none."""

    def start_function(self, function: types.FunctionType, source: Source) -> None:
        """Notes a function of a frame that existed before the trace."""

    def handled(self) -> BaseException | None:
        """The exception being handled by the innermost frame that handles one."""


class TracedExceptions(semantics.ExceptionSemantics, Protocol):
    """Exceptions in a trace."""

    def was_raised(self, error: BaseException) -> bool:
        """Whether an exception came through a frame of the program."""
        ...

    def traceback_of(self, error: BaseException) -> Any:
        """``error.__traceback__``, which can be carried out of the trace only with the
        exception.
        """


class TracedScalars(Protocol):
    """Numbers of the program, some of which are symbols. symbolic: whether sizes may be symbols in
    this trace. numbers: id of a symbol -> (symbol, its value now, its source)."""

    symbolic: bool
    numbers: dict[int, tuple[Any, Any, Source]]

    def concrete(self, value: Any) -> Any:
        """The number behind a symbol, guarded by its value; anything else as it is."""

    def settled(self, value: Any, depth: int = 6) -> Any:
        """A value without symbols of the program's numbers in it, for code that is not
        interpreted.
        """

    def operates(self, left: Any, right: Any) -> bool:
        """Whether an operator has a symbol and otherwise numbers for operands."""
        ...

    def among_numbers(self, values: Sequence[Any]) -> bool:
        """Whether all are numbers, and one of them is a number of the program that varies."""
        ...

    def operate(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Applies an operator to numbers of which at least one is a symbol."""

    def beside(self, value: Any, other: Any) -> Any:
        """One operand of two: a symbol only if the other is a number or a tensor."""

    def payload(self, value: Any) -> Any:
        """What C code sees of an object of a subclass of a number or text: its value, guarded.
        Others as they are.
        """


class TracedSideEffects(Protocol):
    """What existed before the trace is saved before it is changed. mutations: how often the program
    changed anything, fresh objects included."""

    mutations: int

    def activity(self) -> tuple[int, int]:
        """Grows when the program changes something or runs an operator."""
        ...

    def before_change(self, target: Any) -> None:
        """Saves a container before native code changes it in any way; guards all that it holds."""

    def before_store(self, target: dict[Any, Any], key: Any, owner: Any = None) -> None:
        """Saves a dictionary before one entry is set. owner: the object whose `__dict__` it is."""

    def before_remove(self, target: dict[Any, Any], key: Any, owner: Any = None) -> None:
        """Saves a dictionary before one entry, which is there, is deleted."""

    def before_append(self, target: Any, values: Sequence[Any]) -> None:
        """Saves a list, deque or set before values are added to it."""

    def before_attribute(self, obj: Any, where: Any) -> Change | None:
        """Saves one slot (where: its descriptor) or class attribute (where: its name) before it is
        set.
        """


class TracedReads(Protocol):
    """Containers, read without code of the program."""

    def expand(self, obj: Any, depth: int = 8) -> None:
        """Guards everything that native code may read in a container that existed before the
        trace.
        """

    def guard_order(self, obj: Any) -> None:
        """Guards the order in which a loop meets the members of a set."""

    def guard_keys(self, source: Any, found: list[Any]) -> None:
        """Guards the keys of a dictionary, in their order."""

    def guard_members(self, source: Any, members: Any) -> None:
        """Guards the members of a set."""

    def length(self, obj: Any) -> int: ...

    def list_item(self, obj: Any, index: int, varies: bool = False) -> Any:
        """obj[index] of a list or tuple, without user code. varies: a number may become a
        symbol.
        """

    def keys(self, obj: dict[Any, Any]) -> list[Any]:
        """The keys of a dict, guarded."""
        ...

    def dict_get(self, obj: dict[Any, Any], key: Any, default: Any, varies: bool = False) -> Any:
        """dict.get without user code; an entry or its absence is guarded."""

    def has_key(self, obj: dict[Any, Any], key: Any) -> bool:
        """``key in obj`` without user code; guarded, but not the entry."""
        ...

    def check_key(self, key: Any, container: Any) -> None:
        """Makes sure that looking up a key runs no user code that was not interpreted."""


class TracedContainers(semantics.ContainerSemantics, Protocol):
    """Containers and iterators in a trace."""

    def native_iterator(self, iterator: Any) -> Any:
        """An iterator that native code may advance: user code in it comes back to the
        interpreter.
        """


class TracedEntries(Protocol):
    """The dictionary entries that decide what an attribute is. classes: id -> classes that the
    trace made. methods_of: class -> its special methods in Python."""

    classes: dict[int, Any]
    methods_of: dict[type, frozenset[str]]

    def made_class(self, cls: Any) -> bool:
        """Whether the trace itself made a class: nothing in it is guarded."""
        ...

    def class_entry(self, cls: type, name: str) -> tuple[type | None, Any]:
        """(class that defines it, raw value) along the MRO, guarded for classes that can change."""
        ...

    def forget_entries(self) -> None:
        """A class changed: what was read of classes is looked up again."""

    def special(self, cls: type, name: str) -> Any:
        """What a class says about a special method, guarded; ABSENT if no class of the MRO has
        it.
        """

    def instance_entry(self, obj: Any, name: str) -> Any:
        """The value in the object's own dictionary, or ABSENT; guarded either way."""

    def static(self, cls: type, name: str) -> Any:
        """The same without guards."""

    def guard_lineage(self, cls: type) -> None:
        """Guards which classes a class inherits from."""

    def guard_operator(self, name: str) -> None:
        """Guards what torch.Tensor does for an operator: its methods can be replaced."""

    def python_method(self, obj: Any, name: str) -> Any:
        """A special method of the object's class if it is user code, else None."""

    def lacks(self, value: Any, *names: str) -> bool:
        """Whether no class of a value has these special methods."""
        ...


class TracedAttributes(semantics.AttributeSemantics, Protocol):
    """Reading attributes in a trace: CPython's descriptor protocol, with guards. tensor_attributes:
    id of an intermediate tensor -> what the program set on it."""

    tensor_attributes: dict[int, dict[str, Any]]

    def has_attribute(self, obj: Any, name: str) -> bool: ...

    def generic_getattr(self, obj: Any, name: str) -> Any:
        """object.__getattribute__"""

    def get_descriptor(self, raw: Any, obj: Any, cls: type, name: str) -> Any:
        """What a descriptor found on a class gives for an object."""

    def plain_class_attribute(self, cls: type, name: str) -> Any:
        """type.__getattribute__"""

    def unproxied(self, container: Any) -> Any:
        """The dictionary behind a read-only view that the trace made; anything else as it is."""

    def attributes_of(self, tensor: torch.Tensor) -> dict[str, Any]:
        """What the program set on an intermediate tensor."""
        ...


class TracedAttributeWrites(semantics.AttributeWriteSemantics, Protocol):
    """Setting and deleting attributes in a trace."""

    def generic_setattr(self, obj: Any, name: str, value: Any) -> None:
        """object.__setattr__"""

    def generic_delattr(self, obj: Any, name: str) -> None:
        """object.__delattr__"""

    def delete_descriptor(self, raw: Any, obj: Any, name: str) -> None:
        """Deletes an object's value of a data descriptor."""

    def set_class_attribute(self, cls: type, name: str, value: Any) -> None:
        """type.__setattr__; value: ABSENT deletes."""

    def may_require_grad(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is an intermediate that becomes a leaf of autograd's graph, which is
        being recorded.
        """
        ...


class TracedOperators(semantics.OperatorSemantics, Protocol):
    """Operators in a trace."""

    def apply(self, function: Any, *operands: Any) -> Any:
        """Applies an operator of the `operator` module; on tensors it is recorded as the user wrote
        it.
        """

    def native_operands(self, *values: Any) -> None:
        """Guards what a native operator reads in its operands; breaks for unknown types."""

    def inplace(self, symbol: str, left: Any, right: Any) -> Any:
        """``left += right`` for tensors and containers written in C."""

    def index(self, value: Any) -> Any:
        """operator.index(value) where a method written in Python says it."""

    def is_identity_comparable(self, value: Any) -> bool:
        """Whether the operators of an instance are those of object, or of a known safe base."""
        ...


class TracedCalls(semantics.CallSemantics, Protocol):
    """Calls in a trace: inline, record, run natively, or break. interpreted: every code object that
    was run, with a function that has it."""

    interpreted: dict[types.CodeType, types.FunctionType]

    def prepare(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The result of a call, or the frame that computes it."""

    def frame_of(
        self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """A frame ready to run `function`; a TracedGenerator for a generator function."""

    def run_nested(self, frame: Frame, error: BaseException | None = None) -> Any:
        """Runs a frame to its end below native code."""


class TracedNativeCalls(Protocol):
    """Calls of C functions and of torch's. questions: calls of caches that were asked, by what they
    are called with.
    """

    questions: dict[Any, Any]

    def call_native(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls a C function."""

    def apply_effect(
        self, row: Effect, function: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a C function by its row of the effect table."""

    def call_torch(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls and records an operator of torch."""

    def call_torch_node(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A function that the user allowed in graphs: one node."""

    def native(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs native code; the tensor operators in it are recorded."""

    def native_reads(self, *values: Any) -> None:
        """Guards what a native function may read in its arguments."""

    def born(self, result: Any) -> Any:
        """Notes where native code made an object."""


class TracedNames(semantics.NameSemantics, semantics.DefaultSemantics, Protocol):
    """Names in a trace."""

    def namespace_source(self, function: types.FunctionType) -> Source:
        """The source of a function's globals: its module's dictionary if it is that module's."""
        ...

    def cell_contents(self, cell: Any) -> Any:
        """What a cell holds, or NULL; guarded either way."""

    def made_here(self, function: types.FunctionType) -> bool:
        """Whether the trace itself made this function."""
        ...

    def keep_alive(self, obj: Any) -> None:
        """Keeps an object while its id is remembered."""


class SymbolPolicy(Protocol):
    """What may be a symbol in this trace. takes_numbers: the backend takes numbers as inputs of the
    graph.
    """

    takes_numbers: bool


class Tracing(FrameRunner, semantics.CallBinder, Protocol):
    """One trace. provenance: where each object came from, and the guards. recorder: writes the
    graph.
    """

    provenance: Provenance
    effects: Effects
    recorder: Recorder
    scalars: TracedScalars
    side_effects: TracedSideEffects
    reads: TracedReads
    exceptions: TracedExceptions
    names: TracedNames
    entries: TracedEntries
    attributes: TracedAttributes
    attribute_writes: TracedAttributeWrites
    operators: TracedOperators
    containers: TracedContainers
    calls: TracedCalls
    native_calls: TracedNativeCalls
    shapes: SymbolPolicy
