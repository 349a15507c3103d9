"""Locals, globals, closures, attributes and imports."""

from __future__ import annotations

import builtins
import contextlib
import types
from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame, LazyValue
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine, handlers
from tracer_core.bytecode.versions import RUNNING

use_own_builtins(globals())

handlers({
    "LOAD_CLOSURE": lambda m, f, arg: f.stack.append(m.load(f, arg)),
    "LOAD_DEREF": lambda m, f, arg: f.stack.append(_contents(m, f, arg)),
    "LOAD_LOCALS": lambda m, f, arg: f.stack.append(f.namespace),
    "LOAD_BUILD_CLASS": lambda m, f, arg: f.stack.append(builtins.__build_class__),
    "LOAD_NAME": lambda m, f, arg: _load_name(m, f, f.namespace, arg),
    "LOAD_FROM_DICT_OR_GLOBALS": lambda m, f, arg: _load_name(m, f, f.stack.pop(), arg),
    "LOAD_CLASSDEREF": lambda m, f, arg: _load_class_cell(m, f, f.namespace, arg),
    "LOAD_FROM_DICT_OR_DEREF": lambda m, f, arg: _load_class_cell(m, f, f.stack.pop(), arg),
    "STORE_NAME": lambda m, f, arg: m.names.store_name(f.namespace, arg, m.pop(f)),
    "STORE_GLOBAL": lambda m, f, arg: m.names.store_global(f, arg, m.pop(f)),
    "DELETE_GLOBAL": lambda m, f, arg: m.names.delete_global(f, arg),
    "DELETE_ATTR": lambda m, f, arg: m.attribute_writes.delattr(m.pop(f), arg),
})  # fmt: skip


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(m: Machine, f: Frame, arg: int) -> None:
    # A lazy value stays lazy: one that is only passed on needs no guard.
    value = f.locals[arg]
    f.stack.append(m.load(f, arg) if value is NULL else value)


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(m: Machine, f: Frame, arg: int) -> None:
    # Saves a local around an inlined comprehension; NULL is legal here.
    f.stack.append(f.locals[arg])
    f.locals[arg] = NULL


@opcode("STORE_FAST")
def store_fast(m: Machine, f: Frame, arg: int) -> None:
    f.locals[arg] = f.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(m: Machine, f: Frame, arg: int) -> None:
    m.load(f, arg)
    f.locals[arg] = NULL


@opcode("MAKE_CELL")
def make_cell(m: Machine, f: Frame, arg: int) -> None:
    value = f.locals[arg]
    if type(value) is LazyValue:
        value = m.open(value)
    f.locals[arg] = types.CellType() if value is NULL else types.CellType(value)


@opcode("COPY_FREE_VARS")
def copy_free_vars(m: Machine, f: Frame, arg: int) -> None:
    cells = m.names.free_cells(f)
    f.locals[f.code.first_free :] = cells


def _contents(m: Machine, f: Frame, arg: int) -> Any:
    """Returns the contents of a cell; an empty cell of the function's own is an unbound local."""
    name = f.code.locals_names[arg]
    try:
        return m.names.load_cell(m.load(f, arg), name)
    except NameError:
        if arg >= f.code.first_free:
            raise
    raise UnboundLocalError(
        f"cannot access local variable '{name}' where it is not associated with a value"
    )


@opcode("STORE_DEREF")
def store_deref(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    m.names.store_cell(m.load(f, arg), value)


@opcode("DELETE_DEREF")
def delete_deref(m: Machine, f: Frame, arg: int) -> None:
    _contents(m, f, arg)
    m.names.store_cell(m.load(f, arg), NULL)


@opcode("LOAD_GLOBAL")
def load_global(m: Machine, f: Frame, arg: tuple[str, bool]) -> None:
    name, push_null = arg
    value = m.names.load_global(f, name)
    _push_callable(f, value, push_null)


def _push_callable(f: Frame, value: Any, is_called: bool) -> None:
    """Pushes a value; of one that is called without ``self``, NULL too."""
    f.stack.append(value)
    if is_called:
        f.stack.insert(len(f.stack) - (not RUNNING.null_last), NULL)


def _load_name(m: Machine, f: Frame, namespace: Any, name: str) -> None:
    result, value = _in_namespace(m, f, namespace, name)
    f.stack.append(value if result else m.names.load_global(f, name))


def _load_class_cell(m: Machine, f: Frame, namespace: Any, index: int) -> None:
    name = f.code.locals_names[index]
    result, value = _in_namespace(m, f, namespace, name)
    f.stack.append(value if result else m.names.load_cell(m.load(f, index), name))


def _in_namespace(m: Machine, f: Frame, namespace: Any, name: str) -> tuple[bool, Any]:
    """Returns (whether a namespace has a name, its value): that of the class body that runs, or of
    the class whose annotations are evaluated, which may be from before the trace."""
    if namespace is None:
        return False, None
    if namespace is f.namespace and type(namespace) is dict:
        return name in namespace, namespace.get(name)
    try:
        return True, m.containers.getitem(namespace, name)
    except KeyError:
        return False, None


@opcode("DELETE_NAME")
def delete_name(m: Machine, f: Frame, arg: str) -> None:
    with contextlib.suppress(KeyError):
        m.containers.delitem(f.namespace, arg)
        return
    raise NameError(f"name '{arg}' is not defined", name=arg)


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(m: Machine, f: Frame, arg: Any) -> None:
    if not _in_namespace(m, f, f.namespace, "__annotations__")[0]:
        m.names.store_name(f.namespace, "__annotations__", {})


@opcode("LOAD_ATTR", "LOAD_METHOD")
def load_attr(m: Machine, f: Frame, arg: tuple[str, bool]) -> None:
    name, method = arg
    obj = m.pop(f)
    _push_callable(f, m.attributes.getattr(obj, name), method)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(m: Machine, f: Frame, arg: tuple[str, bool, bool]) -> None:
    name, method, inputs = arg
    function, owner, obj = m.pop_n(f, 3)
    if function is super:
        value = m.attributes.super_attribute(owner, obj, name)
    else:
        result = m.calls.call_value(function, [owner, obj] if inputs else [], {})
        value = m.attributes.getattr(result, name)
    _push_callable(f, value, method)


@opcode("STORE_ATTR")
def store_attr(m: Machine, f: Frame, arg: str) -> None:
    value, obj = m.pop_n(f, 2)
    m.attribute_writes.setattr(obj, arg, value)


@opcode("IMPORT_NAME")
def import_name(m: Machine, f: Frame, arg: str) -> None:
    level, fromlist = m.pop_n(f, 2)
    f.stack.append(m.names.import_name(f, arg, fromlist, level))


@opcode("IMPORT_FROM")
def import_from(m: Machine, f: Frame, arg: str) -> None:
    module = m.peek(f)
    try:
        value = m.attributes.getattr(module, arg)
    except AttributeError:
        value = m.names.import_name(f, f"{module.__name__}.{arg}", ("*",), 0)
    f.stack.append(value)
