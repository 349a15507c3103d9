"""What the components of a tracer ask of one another: one protocol per role, and `Tracing`, their
union.

The tracer's header: its components in trace/, and natives/ below them, are written against these
protocols, which hold no more than they use. What stands above the tracer (`trace.tracer`), as the
tables of natives/ do, is written against the tracer itself.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import torch

from tracer_core.bytecode import semantics
from tracer_core.bytecode.frame import Frame
from tracer_core.fx_capture.dynamic_shapes import ShapePolicy
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.fx_capture.fx_recorder import Recorder
from tracer_core.fx_capture.object_mutations import Change, Effects
from tracer_core.fx_capture.provenance import Provenance
from tracer_core.guards.source import Source
from tracer_core.limits import MAX_READ_DEPTH
from tracer_core.natives.effects import Effect


class TracedExceptions(semantics.ExceptionSemantics, Protocol):
    """Exceptions in a trace."""

    def was_raised(self, error: BaseException) -> bool:
        """Returns whether an exception came through a frame of the program."""

    def traceback_of(self, error: BaseException) -> Any:
        """``error.__traceback__``, which can leave the trace only together with the exception."""

    def look_into_traceback(self) -> None:
        """Runs the activation in CPython if the trace raised an exception."""


class TracedScalars(Protocol):
    """Numbers of the program, some of them symbolic. symbolic: sizes may be symbols in this trace.
    numbers: id of a symbol -> (symbol, its current value, its source)."""

    symbolic: bool
    numbers: dict[int, tuple[Any, Any, Source]]

    def concrete(self, value: Any) -> Any:
        """Specializes a symbol: returns its value, guarded; any other value unchanged."""

    def specialized(self, value: Any, depth: int = 6) -> Any:
        """Specializes the symbolic scalars in a value, for code that is not interpreted."""

    def operates(self, left: Any, right: Any) -> bool:
        """Returns whether the operands are numbers and at least one is a symbol."""

    def operate(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Applies an operator to numbers of which at least one is a symbol."""

    def beside(self, value: Any, other: Any) -> Any:
        """Returns one of two operands: a symbol only if the other is a number or a tensor."""

    def payload(self, value: Any) -> Any:
        """Returns the guarded value of an instance of a number or str subclass, as C code sees it;
        others unchanged."""


class TracedFinalization(Protocol):
    """Finds where objects with an observable death die."""

    def overwritten(self, holder: Any, values: Iterable[Any]) -> None:
        """Notes that the program changes `holder`, which held these values."""


class TracedRng(Protocol):
    """Random numbers of Python that a trace draws."""

    def require_unused(self, source: Source) -> None:
        """Restarts with a break before the draw that a number depends on, if there is one."""


class TracedSideEffects(Protocol):
    """Saves pre-existing objects before their mutation. mutations: the number of mutations by the
    program, fresh objects included. hooks: that the program puts on pre-existing tensors. late:
    calls of each run after the graph. passed:
    the autograd nodes that a backward of the trace has freed."""

    mutations: int
    hooks: list[Any]
    late: list[Any]
    passed: set[Any]

    def activity(self) -> tuple[int, int]:
        """Returns counters that grow when the program mutates something or runs an operator."""

    def before_change(self, target: Any, moves: bool = True) -> None:
        """Saves a container before native code mutates it in any way; guards all its contents.
        moves: other than by replacing items."""

    def before_cell(self, cell: Any) -> None:
        """Saves a cell before its contents are set."""

    def before_store(self, target: dict[Any, Any], key: Any, owner: Any = None) -> None:
        """Saves a dictionary before one entry is set. owner: the object whose `__dict__` it is."""

    def before_remove(self, target: dict[Any, Any], key: Any, owner: Any = None) -> None:
        """Saves a dictionary before an existing entry is deleted."""

    def before_item(self, target: list[Any], index: int) -> None:
        """Saves a list before an item that it has is replaced; guards the list's length only."""

    def before_append(self, target: Any, values: Sequence[Any]) -> None:
        """Saves a list, deque or set before values are added."""

    def before_attribute(self, obj: Any, where: Any) -> Change | None:
        """Saves one slot (where: its descriptor) or class attribute (where: its name) before it is
        set.
        """


class TracedReads(Protocol):
    """Reads of containers that run no user code. key_hashes: id of a key whose hash the program
    computes -> (key, hash, step) of the first time."""

    key_hashes: dict[int, tuple[Any, int, int]]

    def expand(self, obj: Any, depth: int = MAX_READ_DEPTH) -> None:
        """Guards everything that native code may read in a container from before the trace."""

    def entries(self, obj: dict[Any, Any], varies: bool = False) -> list[tuple[Any, Any]]:
        """Returns the items of a dictionary, guarded. varies: numbers may become symbols."""

    def viewed(self, view: Any) -> Any:
        """Returns the mapping that a view of a dictionary or a mappingproxy shows, guarded."""

    def holds_object(self, members: Any, value: Any) -> bool | None:
        """Returns whether a set of objects that compare by identity has a member, guarded; None for
        other sets."""

    def guard_order(self, obj: Any) -> None:
        """Guards the iteration order of a set."""

    def note_order(self, obj: Any) -> None:
        """Notes that the trace follows the order of a set."""

    def note_orders(self, obj: Any) -> None:
        """Does `note_order` for a set that native code gets, perhaps in a container."""

    def guard_keys(self, obj: Any, source: Any, result: list[Any]) -> None:
        """Guards the keys of a dictionary and their order."""

    def guard_members(self, source: Any, members: Any) -> None:
        """Guards the members of a set."""

    def length(self, obj: Any) -> int: ...

    def guard_length(self, obj: Any, source: Any, size: int) -> None:
        """Guards how many items a container held when the trace began."""

    def list_item(self, obj: Any, index: int, varies: bool = False) -> Any:
        """obj[index] of a list or tuple, without user code. varies: a number may become a symbol."""

    def items(self, obj: Any, varies: bool = False) -> list[Any]:
        """Returns the items of a list, tuple or deque, guarded."""

    def keys(self, obj: dict[Any, Any]) -> list[Any]:
        """Returns the keys of a dict, guarded."""

    def dict_get(self, obj: dict[Any, Any], key: Any, default: Any, varies: bool = False) -> Any:
        """dict.get without user code; guards an entry or its absence."""

    def has_key(self, obj: dict[Any, Any], key: Any) -> bool:
        """``key in obj`` without user code; guards the answer, but not the entry."""

    def check_key(self, key: Any, container: Any) -> None:
        """Ensures that a look-up of the key runs no user code that was not interpreted, and guards
        the members of a key that is a tuple or a frozenset."""

    def keys_for(self, obj: dict[Any, Any], key: Any) -> None:
        """Guards what decides whether a key that is no literal is in a dictionary."""

    def note_change(self, container: Any, added: Sequence[Any] | None = None) -> None:
        """Notes that a container changes. added: the keys that come into it, if that is all."""


class TracedContainers(semantics.ContainerSemantics, Protocol):
    """Containers in a trace."""

    def advance(self, iterator: Any, owner: Any = None) -> tuple[bool, Any]:
        """Returns (True, item), or (False, result) at the end. owner: see trace/containers.py."""

    def extend(self, target: Any, values: Any) -> None:
        """``extend`` of a list or deque."""

    def stream(self, value: Any) -> Iterator[Any]:
        """Yields the items of an iterable one by one."""


class TracedEntries(Protocol):
    """The dictionary entries that decide attribute look-ups. classes: id -> classes that the trace
    made. methods_of: class -> its special methods in Python."""

    classes: dict[int, Any]
    methods_of: dict[type, frozenset[str]]

    def guard_lineage(self, cls: type) -> None:
        """Guards the classes that a class inherits from."""

    def class_entry(self, cls: type, name: str) -> tuple[type | None, Any]:
        """Returns (defining class, raw value) along the MRO, guarded for classes that can change."""

    def made_class(self, cls: Any) -> bool:
        """Returns whether the trace made the class."""

    def note_class(self, cls: type) -> None:
        """Notes the entries of a class that the trace made."""

    def forget_entries(self) -> None:
        """Drops cached class look-ups after a class changed."""

    def special(self, cls: type, name: str) -> Any:
        """Looks up a special method on a class, guarded; ABSENT if no class of the MRO has it."""

    def instance_entry(self, obj: Any, name: str) -> Any:
        """Returns the value in the object's own dictionary, or ABSENT; guarded either way."""

    def static(self, cls: type, name: str) -> Any:
        """The same without guards."""

    def guard_operator(self, name: str) -> None:
        """Guards torch.Tensor's implementation of an operator: its methods can be replaced."""

    def says_its_class(self, cls: type) -> bool:
        """Returns whether ``obj.__class__`` of the class's objects may be user code."""

    def is_disabled(self, value: Any, name: str) -> bool:
        """Returns whether the value's class sets a special method to None."""

    def operator_method(self, obj: Any, name: str) -> Any:
        """Returns a user's method of an operator, None if it is disabled, else ABSENT."""

    def python_method(self, obj: Any, name: str) -> Any:
        """Returns a special method of the object's class if it is user code, else None."""

    def lacks(self, value: Any, *names: str) -> bool:
        """Returns whether no class of a value has these special methods."""


class TracedAttributes(semantics.AttributeSemantics, Protocol):
    """Reading attributes in a trace: CPython's descriptor protocol, with guards. tensor_attributes:
    id of an intermediate tensor -> attributes set by the program."""

    tensor_attributes: dict[int, dict[str, Any]]

    def unproxied(self, container: Any) -> Any:
        """Returns the dictionary behind a mappingproxy that the trace made; other values unchanged."""

    def call_special(self, raw: Any, obj: Any, hook: str, *args: Any) -> Any:
        """Calls a special method that the object's class has under the name `hook`."""

    def template_parts(self, template: Any) -> list[Any]:
        """Returns what a loop over a template string gives."""

    def require_local(self, obj: Any) -> None:
        """Breaks unless a threading.local from before the trace itself keeps the attribute."""

    def attributes_of(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Returns the attributes that the program set on an intermediate tensor."""


class TracedOperators(semantics.OperatorSemantics, Protocol):
    """Operators in a trace."""

    def apply(self, function: Any, *operands: Any) -> Any:
        """Applies an operator of the `operator` module; on tensors it is recorded as the user wrote
        it."""

    def same_object(self, left: Any, right: Any) -> bool:
        """Returns ``left is right`` for values other than symbolic scalars, which stay symbolic."""

    def native_operands(self, *values: Any) -> None:
        """Guards the operand contents that a native operator reads; breaks for unknown types."""

    def index(self, value: Any) -> Any:
        """operator.index(value) for a method written in Python."""


class TracedCalls(semantics.CallSemantics, Protocol):
    """Calls in a trace: inline, record, run eagerly, or break. interpreted: every interpreted code
    object, with a function that has it."""

    interpreted: dict[types.CodeType, types.FunctionType]

    def prepare(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Returns the result of a call, or the frame that computes it."""

    def run_nested(self, frame: Frame, error: BaseException | None = None) -> Any:
        """Runs a frame to its end below native code."""


class TracedNativeCalls(Protocol):
    """Calls of C functions and of torch's. questions: guarded calls, by function and arguments."""

    questions: dict[Any, Any]

    def call_native(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls a C function."""

    def apply_effect(
        self, row: Effect, function: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a C function by its row of the native effects table."""

    def call_torch(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls and records a torch operator."""

    def call_torch_node(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Records a function that the user allowed in graphs as one node."""

    def native(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs native code and records its tensor operators."""

    def native_reads(self, *values: Any) -> None:
        """Guards the argument contents that a native function may read."""

    def note_allocation(self, result: Any) -> Any:
        """Notes the allocation site of an object that native code made."""


class TracedNames(semantics.NameSemantics, semantics.DefaultSemantics, Protocol):
    """Names in a trace."""

    def cell_contents(self, cell: Any) -> Any:
        """Returns the contents of a cell, or NULL; guarded either way."""

    def guard_namespace(self, function: types.FunctionType, source: Source) -> None:
        """Guards the globals of a function that may be another one in the next call."""

    def made_here(self, function: types.FunctionType) -> bool:
        """Returns whether the trace itself made this function."""


class TracedSubclasses(Protocol):
    """Tensors of subclasses in a trace."""

    def is_known(self, value: Any) -> bool:
        """Returns whether the trace made a tensor of a subclass."""

    def plain(self, value: Any) -> Any:
        """Returns the plain tensor in place of one that holds data; any other value unchanged."""

    def original(self, value: Any) -> Any:
        """Returns the program's object for a fake, or for the plain tensor in its place."""


class TracedAssumptions(Protocol):
    """What a trace expects of branches that follow data."""

    def take(self, frame: Frame) -> bool | None: ...


class TracedSpeculation(Protocol):
    """How branches that follow data go in the call that is captured, and which numbers it has."""

    @property
    def wanted(self) -> bool: ...

    def number_of(self, node: torch.fx.Node) -> Any: ...

    def known(self, tensor: torch.Tensor) -> int | None: ...

    def note(self, tensor: torch.Tensor, number: int) -> None: ...

    def asks(self, frame: Frame) -> bool: ...

    def values(self, *tensors: torch.Tensor) -> list[torch.Tensor] | None: ...


class Tracing(semantics.CallBinder, Protocol):
    """One trace. provenance: source of each object, and the guards. recorder: records the graph.
    frames: the chain of frames. outer_step: index of the outermost frame's current instruction.
    advanced_at: that of the last one that took an item of an iterator.
    steps: the number of instructions run.
    nesting: the number of running calls below native code.
    unguarded: why what the trace found hangs on what neither guards nor code tell."""

    provenance: Provenance
    effects: Effects
    recorder: Recorder
    fakes: Fakes
    scalars: TracedScalars
    draws: TracedRng
    shapes: ShapePolicy
    side_effects: TracedSideEffects
    finalization: TracedFinalization
    reads: TracedReads
    exceptions: TracedExceptions
    names: TracedNames
    entries: TracedEntries
    attributes: TracedAttributes
    operators: TracedOperators
    containers: TracedContainers
    calls: TracedCalls
    native_calls: TracedNativeCalls
    subclasses: TracedSubclasses
    assumptions: TracedAssumptions
    speculation: TracedSpeculation
    frames: list[Frame]
    outer_step: int
    advanced_at: int
    steps: int
    nesting: int
    unguarded: dict[str, None]

    def peek(self, frame: Frame, n: int = 1) -> Any:
        """Returns the n-th value from the top of a frame's stack."""

    def break_graph(self, kind: str, reason: str) -> NoReturn: ...

    def load(self, frame: Frame, index: int) -> Any:
        """Returns a local variable."""

    def where(self) -> str:
        """``file:line in function`` of the innermost frame of the user's code."""

    def is_compiling(self) -> bool:
        """The answer for programs that query whether they are being compiled."""

    def run(self, base: int) -> Any:
        """Runs until the frame at position `base` of the chain returns; returns its value."""

    def unwind(self, error: BaseException, base: int) -> None:
        """Unwinds the chain to the handler of an exception; re-raises it if there is none."""

    def start_function(self, function: types.FunctionType, source: Source) -> None:
        """Registers a function of a frame that existed before the trace."""
