"""Marks that users put on functions and tensors to steer capture, and how the tracer reads them.

Marks of torch's own `torch.compiler` functions are honored too, through the attributes they leave,
without importing their module. A marked function runs as before when nothing is being traced. A
mark holds a reference to the object that it was put on, so a decorator that copies attributes
(`functools.wraps`) does not copy the mark's effect.
"""

from __future__ import annotations

import enum
import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch

from tracer_core.compiled_callable import call_object
from tracer_core.compiled_module import purpose_of, share, unshared
from tracer_core.errors import OptionError
from tracer_core.torch_private.torch_compile import DECORATORS, is_in_set

F = TypeVar("F", bound=Callable[..., Any])

#: Names of the attributes that hold a `Mark`.
DISABLE = "_tracer_disable"
COMPILED = "_tracer_compiled"
ROLE = "_tracer_role"
#: Names of the attributes of tensors.
DYNAMIC_DIMS = "_tracer_dynamic_dims"
STATIC_DIMS = "_tracer_static_dims"


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on a function."""

    #: The object that was marked.
    owner: weakref.ref[Any]
    #: What the mark says (see `FunctionRole`, `disabled`, `Compiled`).
    value: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _mark_of, (self.owner(), self.value)


def _mark_of(owner: Any, value: Any) -> Mark | None:
    """Returns a mark again that was pickled with the function that it is on."""
    return None if owner is None else Mark(weakref.ref(owner), value)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The mark on a wrapper made by `compile()`."""

    #: The tracer's `CompiledFunction`.
    function: Any
    #: What to inline instead of the wrapper, called with the same arguments.
    original: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Disabled:
    """What `disable` says of a module that it returned."""

    #: Shown with the graph break.
    reason: str


class FunctionRole(enum.Enum):
    """How the tracer treats a marked function."""

    GRAPH_BREAK = "graph_break"
    IS_COMPILING = "is_compiling"
    ALLOW = "allow_in_graph"
    DISALLOW = "disallow_in_graph"
    CONSTANT_RESULT = "assume_constant_result"
    SUBSTITUTED = "substitute_in_graph"


#: torch.compile's sets of marked functions -> their role. The first set that has a function counts.
_TORCH_SETS = {
    "_disallowed_callable_ids": FunctionRole.DISALLOW,
    "_leaf_function_ids": None,  # it is called as it is, which breaks the graph
    "_nonstrict_trace_callable_ids": None,  # it is traced like any other
    "_allowed_callable_ids": FunctionRole.ALLOW,
}

#: Roles of functions that take no attributes (C functions). The function is kept alive, so that its
#: id stays unique.
_roles_of_builtins: dict[int, tuple[Any, FunctionRole]] = {}
#: What is traced in place of functions with the role SUBSTITUTED, by id.
_substitutes: dict[int, Callable[..., Any]] = {}


# Marking functions and tensors


@overload
def disable(fn: F, *, reason: str = ...) -> F: ...
@overload
def disable(fn: None = ..., *, reason: str = ...) -> Callable[[F], F]: ...
def disable(fn: Any = None, *, reason: str = "") -> Any:
    """Returns a form of `fn` that is never traced: a compiled caller breaks its graph and calls it.

    Usable as a decorator with and without arguments. `fn` itself is not changed.

    Args:
        fn: A function or method. For an nn.Module, returns a module that shares its parameters.
        reason: Shown with the graph break.

    Returns:
        The form of `fn`, or a decorator.

    Raises:
        OptionError: `fn` is not callable, or is a class.

    Examples:
        >>> @tracer_core.disable
        ... def log(x):
        ...     print(x)
    """
    if fn is None:
        return functools.partial(disable, reason=reason)
    _demand_function("disable", fn)
    text = reason or "marked with tracer_core.disable"
    if isinstance(fn, torch.nn.Module):
        return share(fn, _AsItIs, lambda replacement, call: Disabled(text))

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    put_mark(look_like(call, fn), DISABLE, text)
    return call


@dataclass(frozen=True, slots=True)
class _AsItIs:
    """Calls a function itself."""

    function: Callable[..., Any]

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.function(*args, **kwargs)


def allow_in_graph(fn: F) -> F:
    """Marks a function to be one node of the graph, never traced into.

    Args:
        fn: A function that depends only on its arguments and has no side effects. It is called with
            the graph's tensors.

    Returns:
        `fn`.

    Raises:
        OptionError: `fn` is not callable, cannot be hashed, or is a function of ctypes or NumPy,
            which takes no traced tensor.

    Examples:
        >>> tracer_core.allow_in_graph(my_library.fused_norm)
    """
    library = _foreign_library(fn)
    if library is not None:
        raise OptionError(
            f"allow_in_graph: {_name(fn)} is a function of {library}, which takes no traced tensor;"
            " make an operator of it with torch.library.custom_op"
        )
    if type(fn).__hash__ is None:
        raise OptionError(
            f"allow_in_graph: {_name(fn)} cannot be hashed (its class has __eq__ and no __hash__);"
            " mark a function that calls it"
        )
    return _mark(fn, FunctionRole.ALLOW, "allow_in_graph")


def _foreign_library(fn: Any) -> str | None:
    """Returns the name of the library that a function is of, if that knows no tensors."""
    kinds = type(fn).__mro__
    if any(kind.__module__ == "_ctypes" for kind in kinds):
        return "ctypes"
    of_numpy = (getattr(fn, "__module__", None) or "").partition(".")[0] == "numpy"
    return "NumPy" if of_numpy or any(kind.__module__ == "numpy" for kind in kinds) else None


def disallow_in_graph(fn: F) -> F:
    """Marks a function never to be in a graph: the graph breaks, and the function runs eagerly.

    Args:
        fn: A function, such as a torch operator.

    Returns:
        `fn`.

    Raises:
        OptionError: `fn` is not callable.

    Examples:
        >>> tracer_core.disallow_in_graph(torch.sort)
    """
    return _mark(fn, FunctionRole.DISALLOW, "disallow_in_graph")


def assume_constant_result(fn: F) -> F:
    """Marks a function as constant: each cache entry stores the result of the first call.

    The result has no guard; the caller ensures that it does not change.

    Args:
        fn: A function.

    Returns:
        `fn`.

    Raises:
        OptionError: `fn` is not callable.

    Examples:
        >>> @tracer_core.assume_constant_result
        ... def world_size():
        ...     return int(os.environ["WORLD_SIZE"])
    """
    return _mark(fn, FunctionRole.CONSTANT_RESULT, "assume_constant_result")


def substitute_in_graph(original: Callable[..., Any]) -> Callable[[F], F]:
    """Has a Python function traced wherever compiled code calls another one, as of a C library.

    Eager mode calls the original.

    Args:
        original: The function that is called.

    Returns:
        A decorator for a function with the same parameters and the same behavior.

    Raises:
        OptionError: `original` is not callable, or is marked otherwise.

    Examples:
        >>> @tracer_core.substitute_in_graph(my_library.count)
        ... def count(values, wanted):
        ...     return sum(value == wanted for value in values)
    """

    def put(fn: F) -> F:
        _demand_function("substitute_in_graph", fn)
        _mark(original, FunctionRole.SUBSTITUTED, "substitute_in_graph")
        _substitutes[id(_marked_object(original))] = fn
        return fn

    return put


def substitute_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what is traced in place of a function with the role SUBSTITUTED."""
    return _substitutes[id(_marked_object(original))]


def graph_break(message: str = "") -> None:
    """Breaks the graph here. Does nothing outside of a trace.

    Args:
        message: Shown with the break.

    Examples:
        >>> tracer_core.graph_break("the rest is not worth compiling")
    """


def is_compiling() -> bool:
    """Returns True in code that tracer_core captures, otherwise False.

    Examples:
        >>> if not tracer_core.is_compiling():
        ...     print(x.mean())
    """
    return False


def mark_dynamic(
    t: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Makes sizes of a tensor symbolic from the first compile on.

    With ``min=1`` the graph also serves size 1, unless size 1 is a different program; without
    `min`, size 1 is specialized.

    Args:
        t: The tensor.
        dim: One or several dimensions; negative ones count from the end.
        min: The smallest size.
        max: The largest size.

    Raises:
        OptionError: A dimension does not exist, the range is empty, or the present size lies
            outside.

    Examples:
        >>> tracer_core.mark_dynamic(x, 0, min=1, max=64)
        >>> fast(x)
    """
    dims: dict[int, tuple[int | None, int | None]] = dict(getattr(t, DYNAMIC_DIMS, {}))
    for index in _dimensions(t, dim):
        size = t.shape[index]
        if (min is not None and size < min) or (max is not None and size > max):
            raise OptionError(
                f"mark_dynamic: size {size} of dimension {index} is outside {min}..{max}"
            )
        dims[index] = (min, max)
    static = frozenset(getattr(t, STATIC_DIMS, frozenset())) - dims.keys()
    setattr(t, DYNAMIC_DIMS, dims)
    setattr(t, STATIC_DIMS, static)


def mark_static(t: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Makes sizes of a tensor constants, even after they have changed.

    Each new size then causes a recompile.

    Args:
        t: The tensor.
        dim: One or several dimensions; None: every dimension.

    Raises:
        OptionError: A dimension does not exist.

    Examples:
        >>> tracer_core.mark_static(x, 1)
    """
    chosen = frozenset(range(t.dim())) if dim is None else frozenset(_dimensions(t, dim))
    dynamic = {k: v for k, v in getattr(t, DYNAMIC_DIMS, {}).items() if k not in chosen}
    setattr(t, DYNAMIC_DIMS, dynamic)
    setattr(t, STATIC_DIMS, frozenset(getattr(t, STATIC_DIMS, frozenset())) | chosen)


# What the tracer reads


def disabled(fn: Any) -> str | None:
    """Returns why `fn` must run eagerly, or None. Honors `torch.compiler.disable` too."""
    purpose = purpose_of(fn)
    if isinstance(purpose, Disabled):
        return purpose.reason
    fn = _marked_object(fn)
    reason: str | None = read_mark(fn, DISABLE)
    if reason is None and getattr(fn, "_torchdynamo_disable", False):
        said: str | None = getattr(fn, "_torchdynamo_disable_msg", None)
        return said or "marked with torch.compiler.disable"
    return reason


def compiled(fn: Any) -> Compiled | None:
    """Returns the `Compiled` mark of what `compile()` returned.

    Args:
        fn: A function, bound method or module; None is returned for any other.
    """
    result = purpose_of(fn) or read_mark(_marked_object(fn), COMPILED)
    return result if isinstance(result, Compiled) else None


def uncompiled(fn: Any) -> Any:
    """Returns what `compile()` was given to make `fn`; returns any other object as it is."""
    behind = compiled(fn)
    if behind is None:
        return fn
    if isinstance(fn, torch.nn.Module):
        return unshared(fn)
    original = uncompiled(behind.original)
    return original.__get__(fn.__self__) if inspect.ismethod(fn) else original


def traced_function(fn: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns the function that is traced for a callable, and its arguments before those of a call."""
    if isinstance(fn, torch.nn.Module):
        return type(fn).__call__, (fn,)
    if inspect.ismethod(fn):
        return fn.__func__, (fn.__self__,)
    return (fn, ()) if inspect.isfunction(fn) else (call_object, (fn,))


def role(fn: Any) -> FunctionRole | None:
    """Returns the role that the user gave a function, or None.

    Honors `assume_constant_result`, `allow_in_graph` and `nonstrict_trace` of torch.compiler, and
    `disallow_in_graph` of torch.compile.
    """
    fn = _marked_object(fn)
    builtin = _roles_of_builtins.get(id(fn))
    if builtin is not None:
        return builtin[1]
    attached: FunctionRole | None = read_mark(fn, ROLE)
    if attached is None and getattr(fn, "_dynamo_marked_constant", False):
        # functools.wraps copies the attribute from a wrapped function; then only the wrapped
        # function is marked.
        if not getattr(getattr(fn, "__wrapped__", None), "_dynamo_marked_constant", False):
            return FunctionRole.CONSTANT_RESULT
    if attached is None:
        attached = next((role for name, role in _TORCH_SETS.items() if is_in_set(name, fn)), None)
        if attached is FunctionRole.DISALLOW and fn.__module__ == DECORATORS:
            return FunctionRole.GRAPH_BREAK  # torch's own graph_break()
    return attached


def dynamic_dims(t: torch.Tensor) -> dict[int, tuple[int | None, int | None]]:
    """Returns the (min, max) size of each dimension marked dynamic.

    Honors torch's mark_dynamic, and mark_unbacked, whose graph also serves size 1.
    """
    theirs: dict[int, tuple[int | None, int | None]] = dict.fromkeys(
        getattr(t, "_dynamo_dynamic_indices", ()), (None, None)
    )
    theirs |= dict.fromkeys(getattr(t, "_dynamo_unbacked_indices", ()), (1, None))
    theirs |= getattr(t, "_dynamo_unbacked_bounds", {})
    for bounds in getattr(t, "_dynamo_dynamic_range", ()):
        theirs[bounds.dim] = (bounds.min, bounds.max)
    return {**theirs, **getattr(t, DYNAMIC_DIMS, {})}


def symbolic_dims(t: torch.Tensor) -> set[int]:
    """Returns the dimensions marked dynamic.

    Includes those of torch's maybe_mark_dynamic, which the program may specialize.
    """
    return {*dynamic_dims(t), *getattr(t, "_dynamo_weak_dynamic_indices", ())}


def static_dims(t: torch.Tensor) -> frozenset[int]:
    """Returns the dimensions marked static by us or by torch's mark_static."""
    ours: frozenset[int] = getattr(t, STATIC_DIMS, frozenset())
    return ours | frozenset(getattr(t, "_dynamo_static_indices", ()))


# Implementation


def put_mark(fn: Any, name: str, value: Any) -> None:
    """Marks a function.

    Raises:
        AttributeError: It takes no attributes.
        TypeError: It takes no weak references.
    """
    setattr(fn, name, Mark(weakref.ref(fn), value))


def read_mark(fn: Any, name: str) -> Any:
    """Returns the value of a mark that was put on `fn` itself, or None."""
    mark = getattr(fn, name, None)
    return mark.value if isinstance(mark, Mark) and mark.owner() is fn else None


def _marked_object(fn: Any) -> Any:
    """Returns the object that holds the marks of `fn`: a bound method's function."""
    return fn.__func__ if inspect.ismethod(fn) else fn


def look_like(wrapper: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a wrapper the name, documentation and signature of a function, and returns the wrapper.

    A function's attributes are copied too.
    """
    copied = ("__dict__",) if inspect.isfunction(fn) else ()  # another object's is its state
    return functools.update_wrapper(wrapper, fn, updated=copied)


def _mark(fn: F, role: FunctionRole, by: str) -> F:
    _demand_function(by, fn, classes=True)
    target = _marked_object(fn)
    _, present = _roles_of_builtins.get(id(target), (target, read_mark(target, ROLE)))
    if present not in (None, role):
        raise OptionError(f"{by}: {_name(fn)} is already marked {present.value}")
    try:
        put_mark(target, ROLE, role)
    except (AttributeError, TypeError):
        _roles_of_builtins[id(target)] = (target, role)
    return fn


def _demand_function(by: str, fn: Any, classes: bool = False) -> None:
    if not callable(fn) or (inspect.isclass(fn) and not classes):
        raise OptionError(f"{by} needs a function, method or module instance, not {_name(fn)}")


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or repr(fn)


def _dimensions(t: torch.Tensor, dim: int | Sequence[int]) -> list[int]:
    wanted = [dim] if isinstance(dim, int) else list(dim)
    for index in wanted:
        if not -t.dim() <= index < t.dim():
            raise OptionError(f"a tensor with {t.dim()} dimensions has no dimension {index}")
    return [index % t.dim() for index in wanted]


put_mark(graph_break, ROLE, FunctionRole.GRAPH_BREAK)
put_mark(is_compiling, ROLE, FunctionRole.IS_COMPILING)
