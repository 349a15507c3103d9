"""Traces names: globals, cells, imports, and functions that the trace made.

The entry that holds a value is guarded. A namespace or a cell that existed before the trace is
saved before it is changed.
"""

from __future__ import annotations

import builtins
import enum
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

from tracer_core.bytecode.frame import NULL, Frame, LazyValue, contents, unbound_free_variable
from tracer_core.bytecode.host_builtins import builtins_of
from tracer_core.bytecode.template_strings import INTERPOLATION, TEMPLATE
from tracer_core.graph_breaks import Break
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.own_reference import outlives_entries
from tracer_core.guards.source import Source, SourceKind
from tracer_core.trace.class_creation import ENUM_HOOKS, check_enum_entry
from tracer_core.trace.component import Component

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: Types of objects that instructions make and whose parts the trace may not know.
_MADE_IN_C = (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, INTERPOLATION, TEMPLATE)


class Names(Component):
    """Names in a trace. Mutable."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        #: ids of the functions and cells that the trace made; the objects, to keep them alive.
        self._fresh_functions: set[int] = set()
        self._fresh_cells: set[int] = set()
        self._keep: list[Any] = []

    def load_global(self, frame: Frame, name: str) -> Any:
        for scope, source in (
            (frame.globals, self.namespace_source(frame.function)),
            self._builtins_of(frame.function),
        ):
            change = self.effects.peek(scope)
            decided = change is not None and change.decided(name)
            if name not in scope:
                if not decided:
                    self.provenance.guard(GuardKind.HAS_NOT, source, name)
                continue
            value = scope[name]
            if decided:
                return value
            return self.provenance.read_varying(value, self.sources.entry(source, name))
        raise NameError(f"name '{name}' is not defined", name=name)

    def _builtins_of(self, function: types.FunctionType) -> tuple[dict[str, Any], Source]:
        """Returns the builtins that a function sees, and their source."""
        result = builtins_of(function)
        source = self.provenance.source_of(result)
        if source is None:
            if result is builtins.__dict__:
                holder = self.sources.module("builtins")
                source = self.sources.namespace(holder)
            else:
                source = self.provenance.constant(result)
            self.provenance.register(result, source)
        return result, source

    def namespace_source(self, function: types.FunctionType) -> Source:
        """Returns the source of a function's globals: its module's dictionary if they are that."""
        namespace = function.__globals__
        source = self.provenance.source_of(namespace)
        if source is None:
            module = sys.modules.get(namespace.get("__name__", ""))
            if module is not None and module.__dict__ is namespace:
                holder = self.sources.module(module.__name__)
                source = self.sources.namespace(holder)
            else:
                source = self.provenance.constant(namespace)
            self.provenance.register(namespace, source)
        return source

    def guard_namespace(self, function: types.FunctionType, source: Source) -> None:
        """Guards the globals of a function that may be another one in the next call."""
        slot = self.sources.slot(source, "__globals__")
        self.provenance.guard(GuardKind.SAME, slot, self.namespace_source(function))

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        self.namespace_source(frame.function)
        self.tracer.side_effects.before_store(frame.globals, name)
        frame.globals[name] = value

    def delete_global(self, frame: Frame, name: str) -> None:
        self.namespace_source(frame.function)
        if not self.tracer.reads.has_key(frame.globals, name):
            raise NameError(f"name '{name}' is not defined", name=name)
        self.tracer.side_effects.before_remove(frame.globals, name)
        del frame.globals[name]

    def store_name(self, namespace: Any, name: str, value: Any) -> None:
        if type(namespace) is enum._EnumDict:
            if name in ENUM_HOOKS:
                raise Break("class_statement", f"an enumeration has its own {name}")
            check_enum_entry(name, value)
            namespace[name] = value
            return
        self.tracer.containers.setitem(namespace, name, value)

    def load_cell(self, cell: Any, name: str) -> Any:
        source = self.provenance.source_of(cell)
        if source is not None and self.effects.peek(cell) is None:
            value = contents(cell)
            if type(value) is types.FunctionType and not outlives_entries(value):
                return LazyValue(value, self.sources.make(source, SourceKind.CONTENTS))
        value = self.cell_contents(cell)
        if value is NULL:
            raise unbound_free_variable(name)
        return value

    def cell_contents(self, cell: Any) -> Any:
        """Returns the contents of a cell, or NULL; guarded either way."""
        source = self.provenance.source_of(cell)
        change = self.effects.peek(cell)
        value = contents(cell)
        if source is None or change is not None:
            return value
        if value is NULL:
            self.provenance.guard(GuardKind.UNBOUND, source)
            return value
        return self.provenance.read_varying(value, self.sources.make(source, SourceKind.CONTENTS))

    def store_cell(self, cell: Any, value: Any) -> None:
        self.tracer.side_effects.before_cell(cell)
        if value is NULL:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    def free_cells(self, frame: Frame) -> tuple[Any, ...]:
        return self.cells_of(frame.function)

    def cells_of(self, function: types.FunctionType) -> tuple[Any, ...]:
        """Returns the cells of a function, with their sources."""
        cells = function.__closure__ or ()
        source = self.provenance.source_of(function)
        if source is None and cells and not self.made_here(function):
            source = self.provenance.constant(function)
        if source is not None:
            for i, cell in enumerate(cells):
                if id(cell) not in self._fresh_cells:
                    name = function.__code__.co_freevars[i]
                    self.provenance.adopt_same(
                        cell, self.sources.make(source, SourceKind.CELL, (i, name))
                    )
        return cells

    # -- functions made in the trace, and their cells --

    def register(self, value: Any) -> Any:
        if type(value) is types.FunctionType:
            self._fresh_functions.add(id(value))
            self._keep.append(value)
            for cell in value.__closure__ or ():
                self._fresh_cells.add(id(cell))
        elif isinstance(value, _MADE_IN_C):
            self.tracer.native_calls.note_allocation(value)
        return value

    def keep_alive(self, obj: Any) -> None:
        """Keeps an object alive while its id is in use."""
        self._keep.append(obj)

    def made_here(self, function: types.FunctionType) -> bool:
        """Returns whether the trace itself made this function."""
        return id(function) in self._fresh_functions

    def default(self, function: types.FunctionType, slot: str, key: Any) -> Any:
        defaults = getattr(function, slot)
        value = defaults[key]
        if self.made_here(function):
            return value
        holder = self.provenance.source_of(function) or self.provenance.constant(function)
        source = self.sources.slot(holder, slot)
        self.provenance.passes(defaults, source)
        step = SourceKind.ITEM if slot == "__defaults__" else SourceKind.KEY
        return self.provenance.read_varying(value, self.sources.make(source, step, key))

    # -- imports --

    def import_name(self, frame: Frame, name: str, fromlist: Any, level: int) -> Any:
        package = frame.globals.get("__package__") or ""
        absolute = name
        if level:
            base = package.rsplit(".", level - 1)[0] if level > 1 else package
            absolute = f"{base}.{name}" if name else base
        module = self._imported(absolute)
        if module is None:
            raise Break("native_python", f"module {absolute} is imported")
        if not fromlist and not level:
            module = self._imported(absolute.partition(".")[0])
        if fromlist == ("*",):
            return module
        self._register_module(module)
        return module

    def _imported(self, name: str) -> Any:
        """Returns the entry of sys.modules, which every import statement reads."""
        modules = self.sources.attribute(self.sources.module("sys"), "modules")
        if name not in sys.modules:
            self.provenance.guard(GuardKind.HAS_NOT, modules, name)
            return None
        self.provenance.guard(GuardKind.IS, self.sources.entry(modules, name), sys.modules[name])
        return sys.modules[name]

    def _register_module(self, module: types.ModuleType) -> None:
        if self.provenance.source_of(module) is None:
            self.provenance.register(module, self.sources.module(module.__name__))
