"""Makes a module that shares everything with another module except how it is called.

`share` returns a second instance of the module's class whose ``__dict__`` *is* the first one's:
parameters, buffers, submodules, hooks, flags and attributes are the same objects, and a change
through one module is visible through the other.

torch reserves an entry in a module's ``__dict__``, ``_compiled_call_impl``, for what
``Module.__call__`` runs in place of the hooks and ``forward``. Here it holds a `CallTable`, which
has the calls of the modules that share the ``__dict__``, by their identity; `CallSlot`, put on
``nn.Module`` when the first module is shared, answers for each with its own. The entry dies with
the modules; ``Module.__getstate__`` leaves it out, so that pickle, copy and deepcopy give an
ordinary module of the class.

A direct call ``m.forward(x)`` runs no hooks, in eager PyTorch, and is not replaced.

What the entry cannot do needs a class: one with a ``__call__`` of its own, which may never reach
``Module.__call__``, and methods that only this module has. `_hidden_class` makes it without a
call of the program's metaclass and ``__init_subclass__``, one for each class; ``obj.__class__`` and
pickle name the original.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from torch import fx, nn
from torch.compiler import is_compiling as torch_is_compiling

from tracer_core.debug.user_lines import shorten
from tracer_core.errors import OptionError
from tracer_core.torch_private import share_module_state
from tracer_core.torch_private.module_calls import SLOT, call_implementation, put_slot

M = TypeVar("M", bound=nn.Module)

#: Calls with packed arguments.
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Replacement(Protocol):
    """What is called in place of a function."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls it."""


#: ``call -> replacement``. call: a function that takes the module first, as the replacement does.
Replace = Callable[[Callable[..., Any]], Replacement]

#: ``(called, forward) -> call``: chooses for a call of a module with forward pre-hooks whether the
#: replacement of the whole call runs, or the hooks around the replacement of its ``forward``.
Around = Callable[[Run, Run], Run]

#: ``(replacement, function) -> purpose`` of a module, see `purpose_of`. function: what is replaced.
Purpose = Callable[[Replacement, Callable[..., Any]], Any]

_NO_METHODS: Mapping[str, Callable[..., Any]] = types.MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class SharedCall:
    """How a module made by `share` is called.

    receiver: returns what the call gets as ``self``: the module that was compiled while it lives, which
    the program may compare with; then the module itself (weakly: its ``__dict__`` holds this), or where
    its class is hidden, one of the program's class with the same ``__dict__``. run:
    the call with packed arguments. purpose: what the module was shared for, as `share` was told.
    """

    receiver: Callable[[], nn.Module | None]
    run: Run
    purpose: Any


class CallTable(dict[int, "Callable[..., Any] | None"]):
    """What ``Module.__call__`` runs for the modules that share a ``__dict__``, by id: None for its
    own implementation. Mutable. otherwise: what ``Module.compile()`` of torch had put there before,
    for all other modules. shared: the modules made by `share`, by id."""

    def __init__(self, otherwise: Callable[..., Any] | None) -> None:
        super().__init__()
        self.otherwise = otherwise
        self.shared: dict[int, SharedCall] = {}

    def __missing__(self, key: int) -> Callable[..., Any] | None:
        return self.otherwise

    def __reduce__(self) -> tuple[Any, ...]:
        # A class with its own __getstate__ may copy the whole __dict__.
        return (types.NoneType, ())


class CallSlot:
    """``nn.Module._compiled_call_impl``: a module's own call if it was shared, else what torch or
    the program has put there, or None."""

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Any:
        if module is None:
            return None
        result = module.__dict__.get("_compiled_call_impl")
        if result is None:  # each call of any module comes here
            return None
        try:
            return result[id(module)]
        except TypeError:  # torch's function
            return result

    def __set__(self, module: nn.Module, value: Any) -> None:
        module.__dict__[SLOT] = value

    def __delete__(self, module: nn.Module) -> None:
        if module.__dict__.pop(SLOT, None) is None:
            raise AttributeError(SLOT)


def share(
    module: M,
    replace: Replace,
    purpose: Purpose,
    methods: Mapping[str, Callable[..., Any]] = _NO_METHODS,
    around: Around | None = None,
    full: Callable[..., Any] | None = None,
) -> M:
    """Returns a module that shares `module`'s state; its call runs ``replace(function)``, where
    function is ``Module._call_impl``, or the class's own ``__call__`` if it has one.

    purpose: makes what `purpose_of` answers. methods: additional functions of the shared module.
    around: makes what is called instead while the module has forward pre-hooks. full: a function to
    replace instead of the class's ``__call__``. Raises OptionError if the class has ``__slots__``
    or objects of another layout than modules have, or already has an attribute of a method's name.
    """
    cls = original_class(module)
    slots = [name for base in cls.__mro__ for name in _slots(base)]
    if slots:
        raise OptionError(
            f"{cls.__qualname__} has __slots__ ({', '.join(slots)}), which cannot be shared"
        )
    for name in methods:
        if hasattr(module, name):
            raise OptionError(
                f"{cls.__qualname__} has an attribute {name!r} already, which compile() gives a"
                " method of its own"
            )
    in_slot = full is None and _reaches_slot(cls)
    function: Any = full or (call_implementation if in_slot else cls.__call__)
    replacement = replace(function)
    run: Run = replacement.call
    hooked = run
    forward = getattr(cls, "forward", None)
    if around is not None and inspect.isfunction(forward):  # a ScriptModule's is none
        hooked = around(run, replace(forward).call)
    result = cls if in_slot and not methods else _hidden_class(cls, in_slot, methods)
    shared = _with_state(result, vars(module))
    share_module_state(module, shared)
    called = shared_call(module)
    first = module if called is None else called.receiver() or module
    _put(shared, first, function if in_slot else None, run, hooked, purpose(replacement, function))
    return cast(M, shared)


def original_class(module: nn.Module) -> type[nn.Module]:
    """Returns the class of a module; of one with a hidden class, the program's."""
    cls: Any = type(module)
    return cast("type[nn.Module]", cls.original if isinstance(cls, _Hidden) else cls)


def shared_call(module: Any) -> SharedCall | None:
    """Returns how a module made by `share` is called; None for any other object."""
    if not isinstance(module, nn.Module):
        return None
    table = vars(module).get(SLOT)
    return table.shared.get(id(module)) if type(table) is CallTable else None


def purpose_of(module: Any) -> Any:
    """Returns what a module was shared for, or None if it was not."""
    shared = shared_call(module)
    return None if shared is None else shared.purpose


def called_by_torch(module: nn.Module) -> bool:
    """Returns whether calling a module runs what `Module.compile()` of torch has made."""
    entry = vars(module).get(SLOT)
    if type(entry) is CallTable:
        return entry.otherwise is not None and id(module) not in entry
    return entry is not None


def unshared(module: M) -> M:
    """Returns a module with the state of one made by `share` that is called as its class says, the one
    whose state it shares while that lives; returns any other module as it is."""
    shared = shared_call(module)
    if shared is None:
        return module
    result = shared.receiver()
    own = _plain(module) if result is None or shared_call(result) is not None else result
    return cast(M, own)


# -- the entry --


def _reaches_slot(cls: type[nn.Module]) -> bool:
    """Returns whether calling an object of a class reads the entry: in ``Module.__call__``, which
    the ``__call__`` of a GraphModule runs too."""
    if any(SLOT in vars(base) for base in cls.__mro__ if base is not nn.Module):
        return False
    return cls.__call__ is nn.Module.__call__ or issubclass(cls, fx.GraphModule)


def _with_state(cls: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    """Returns an object of a class whose ``__dict__`` is `state`."""
    try:
        module: nn.Module = object.__new__(cls)
    except TypeError as error:
        raise OptionError(f"{cls.__qualname__} cannot share its state: {error}") from error
    object.__setattr__(module, "__dict__", state)
    return module


def _plain(module: nn.Module) -> nn.Module:
    """Returns an object of the program's class with a module's state."""
    return _with_state(original_class(module), vars(module))


def _put(
    module: nn.Module,
    original: nn.Module,
    function: Callable[..., Any] | None,
    run: Run,
    hooked: Run,
    purpose: Any,
) -> None:
    """Enters how a module is called into its state. original: whose state it shares. function: what
    ``Module.__call__`` runs where torch traces; None where the module's class has replaced
    ``__call__``. hooked: the call while the module has forward pre-hooks. Where the program gives
    one of both modules another class, the other gets it with the next call."""
    put_slot(CallSlot)
    entry = vars(module).get(SLOT)
    table = entry if type(entry) is CallTable else CallTable(entry)
    vars(module)[SLOT] = table
    key = id(module)

    def forget(_: Any) -> None:
        table.pop(key, None)
        table.shared.pop(key, None)

    reference: Callable[[], nn.Module | None] = weakref.ref(module, forget)
    compiled, otherwise = weakref.ref(original), reference
    if type(module) is not original_class(module):
        simple = _plain(module), reference

        def otherwise() -> nn.Module:
            return simple[0]

    def receiver() -> nn.Module | None:
        result = compiled()
        return otherwise() if result is None else result

    cls: type = original_class(module)

    def agree(own: nn.Module) -> None:
        nonlocal cls
        result = reference()
        for item, other in ((own, result), (result, own)):
            if item is not None and other is not None and item.__class__ is not cls:
                cls = other.__class__ = item.__class__
                return

    def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = args[0]
        agree(own)
        result = (hooked if own._forward_pre_hooks else run)(args, kwargs)
        agree(own)
        return result

    def slot(*args: Any, **kwargs: Any) -> Any:
        own: Any = receiver()
        if type(own) is not type(reference()):
            agree(own)
        # torch.compile and torch.export trace the module: below they would see our own code.
        if torch_is_compiling():
            return function(own, *args, **kwargs)  # type: ignore[misc]
        try:
            result = (hooked if own._forward_pre_hooks else run)((own, *args), kwargs)
        except BaseException as error:
            shorten(error)
            raise
        if type(own) is not cls:  # a lazy module after its first call
            agree(own)
        return result

    table[key] = None if function is None else slot
    table.shared[key] = SharedCall(receiver, choose, purpose)


# -- hidden classes --


class _Bare:
    """The first base of hidden classes: ends ``__init_subclass__`` before the program's."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass


class _Hidden(type):
    """The metaclass of hidden classes, with the program's. original: the program's class, which
    calling a hidden class makes an object of."""

    original: type[nn.Module]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.original(*args, **kwargs)


def _original_of(hidden: _Hidden) -> tuple[Any, ...]:
    """Returns the pickle form of a hidden class: the program's class."""
    return copy.copy, (hidden.original,)


@functools.cache
def _metaclass(program: Any) -> type[_Hidden]:
    """Returns `_Hidden` together with a metaclass of the program, of which no method has run."""
    bases = (_Hidden,) if program is type else (_Hidden, program)
    metaclass: Any = type.__new__(type(program), _Hidden.__name__, bases, {})
    copyreg.pickle(metaclass, _original_of)
    return cast("type[_Hidden]", metaclass)


#: The hidden classes without methods of their own, by class.
_hidden: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def _hidden_class(
    cls: type[nn.Module], in_slot: bool, methods: Mapping[str, Callable[..., Any]] = _NO_METHODS
) -> type[nn.Module]:
    """Returns a class for modules of `cls` that are called through `SharedCall`, with `methods`.
    in_slot: whether ``Module.__call__`` does that."""
    known = None if methods else _hidden.get(cls)
    if known is not None and (result := known()) is not None:
        return cast("type[nn.Module]", result)

    @functools.wraps(cls.__call__)
    def call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        shared = shared_call(self)
        if shared is None or torch_is_compiling():
            return original_class(self).__call__(self, *args, **kwargs)
        return shared.run((shared.receiver(), *args), kwargs)

    def change_class(self: nn.Module, new: type[nn.Module]) -> None:
        object.__dict__["__class__"].__set__(self, _hidden_class(new, in_slot, methods))
        shared = shared_call(self)
        if shared is not None:
            object.__dict__["__class__"].__set__(shared.receiver(), new)

    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__class__": property(original_class, change_class),
        "__reduce_ex__": lambda self, protocol: _plain(self).__reduce_ex__(protocol),
        "original": cls,
        **{name: staticmethod(method) for name, method in methods.items()},
    }
    if not in_slot:
        namespace["__call__"] = call
    if issubclass(cls, fx.GraphModule):
        # recompile() sets `forward` on type(self): the original's.
        namespace["recompile"] = lambda self: cast(fx.GraphModule, _plain(self)).recompile()
    try:
        hidden: Any = type.__new__(
            _metaclass(cast(Any, type(cls))), cls.__name__, (_Bare, cls), namespace
        )
    except TypeError as error:
        raise OptionError(f"{cls.__qualname__} cannot be shared: {error}") from error
    if not methods:
        _hidden[cls] = weakref.ref(hidden)
    return cast("type[nn.Module]", hidden)


def _slots(base: type) -> list[str]:
    result = base.__dict__.get("__slots__", ())
    names = [result] if isinstance(result, str) else list(result)
    return [name for name in names if name not in ("__dict__", "__weakref__")]
