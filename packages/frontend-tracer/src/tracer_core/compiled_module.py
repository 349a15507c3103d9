"""A module that shares everything with another module, except how it is called.

In: an nn.Module and a function that replaces its ``__call__`` and ``forward``. Out: an instance of
a generated subclass of the module's class whose ``__dict__`` *is* the original's, so that
parameters, buffers, submodules, hooks, flags and attributes are one and the same: whatever is
changed through one is seen through the other; `isinstance`, `state_dict()` keys and
`train()`/`eval()` are the original's.

What always holds:
- methods inherited from the class (``generate()``, a wrapper's ``self.module(...)``) run with the
  shared module as ``self`` and so reach the replaced call;
- the replaced call itself is given the *original* module, so that ``self`` there is what its
  parents and children know;
- pickle, copy and deepcopy give the original class;
- an object that merely has the generated class, but not the shared ``__dict__`` (a replica made by
  DataParallel), is called as its original class would be.

Not seen by the original: a later assignment to the shared module's ``__class__`` (parametrisations
that swap the class of the root module itself): apply those before compiling.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torch import fx, nn
from torch.compiler import is_compiling as torch_is_compiling

from tracer_core.errors import OptionError
from tracer_core.torch_private import share_module_state

M = TypeVar("M", bound=nn.Module)

#: On the generated class: the module whose ``__dict__`` it shares.
SHARED = "_tracer_shared_module"

#: ``(call, module) -> replacement``. call: the class's own function, which takes the module first.
#: The replacement is called in the same way.
Replace = Callable[[Callable[..., Any], nn.Module], Callable[..., Any]]

#: ``(method, replacement, call)``: marks the method of the generated class.
MarkMethod = Callable[[Callable[..., Any], Callable[..., Any], Callable[..., Any]], None]


_NO_METHODS: Mapping[str, Callable[..., Any]] = types.MappingProxyType({})


def share(
    module: M,
    replace: Replace,
    mark: MarkMethod,
    methods: Mapping[str, Callable[..., Any]] = _NO_METHODS,
) -> M:
    """A module that shares `module`'s state and is called through ``replace(type(module).__call__,
    module)``.

    ``forward`` is replaced likewise, so that code that calls ``m.forward(x)`` is served too: as in
    eager PyTorch, that runs no hooks. methods: functions that the shared module has besides. Raises
    OptionError if the class has ``__slots__``, cannot be subclassed or has something else by the
    name of a method.
    """
    module = unshared(module)
    cls = type(module)
    slots = [name for base in cls.__mro__ for name in _slots(base)]
    if slots:
        raise OptionError(
            f"{cls.__qualname__} has __slots__ ({', '.join(slots)}), which cannot be shared"
        )
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        SHARED: module,
        "__reduce_ex__": lambda self, protocol: _reduce(_plain(self), protocol),
        "__copy__": lambda self: copy.copy(_plain(self)),
        "__deepcopy__": lambda self, memo: copy.deepcopy(_plain(self), memo),
    }
    for name, function in methods.items():
        if hasattr(module, name):
            raise OptionError(
                f"{cls.__qualname__} has an attribute {name!r} already, which compile() gives a"
                " method of its own"
            )
        namespace[name] = staticmethod(function)
    for name in ("__call__", "forward"):
        call = getattr(cls, name, None)
        if inspect.isfunction(call):  # a ScriptModule's forward is not: it stays as it is
            namespace[name] = _method(call, module, replace, mark)
    if isinstance(
        module, fx.GraphModule
    ):  # recompile() sets `forward` on type(self): the original's
        namespace["recompile"] = lambda self: cast(fx.GraphModule, _plain(self)).recompile()
    try:
        generated = types.new_class(
            cls.__name__, (cls,), exec_body=lambda body: body.update(namespace)
        )
    except TypeError as error:
        raise OptionError(f"{cls.__qualname__} cannot be subclassed: {error}") from error
    shared: M = object.__new__(generated)
    object.__setattr__(shared, "__dict__", module.__dict__)
    share_module_state(module, shared)
    return shared


def unshared(module: M) -> M:
    """The original of a module made by `share`; any other module is returned as it is."""
    original: M | None = getattr(type(module), SHARED, None)
    if original is None or original.__dict__ is not module.__dict__:
        return module
    return original


def is_shared(module: nn.Module) -> bool:
    """Whether `module` was made by `share`."""
    return unshared(module) is not module


def _plain(module: nn.Module) -> nn.Module:
    """A module of the original class with `module`'s state: the original itself, except for a
    replica.
    """
    original = unshared(module)
    if original is module:
        original = object.__new__(type(getattr(type(module), SHARED)))
        object.__setattr__(original, "__dict__", module.__dict__)
    return original


def _reduce(original: nn.Module, protocol: Any) -> Any:
    """How `original` is pickled, when it is found under another object.

    pickle refuses ``copyreg.__newobj__`` for a class that is not the pickled object's own, so the
    same construction is spelled with a function that it does not look into. What it writes loads
    without tracer_core.
    """
    reduced = original.__reduce_ex__(protocol)
    if isinstance(reduced, str) or reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
        return reduced
    cls, *arguments = reduced[1]
    if cls.__new__ is object.__new__:
        return (copyreg._reconstructor, (cls, object, None), *reduced[2:])  # type: ignore[attr-defined]
    return (cls.__new__, (cls, *arguments), *reduced[2:])


def _method(
    call: Callable[..., Any], module: nn.Module, replace: Replace, mark: MarkMethod
) -> Callable[..., Any]:
    replacement = replace(call, module)
    state = module.__dict__

    @functools.wraps(call)
    def method(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        # torch.compile and torch.export trace the original: what they would see below is our own
        # code.
        if torch_is_compiling() or self.__dict__ is not state:
            return call(self, *args, **kwargs)
        return replacement(module, *args, **kwargs)

    mark(method, replacement, call)
    return method


def _slots(base: type) -> list[str]:
    found = base.__dict__.get("__slots__", ())
    names = [found] if isinstance(found, str) else list(found)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def call_object(target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What is traced for a callable that is not a Python function: `target` is its first
    argument.
    """
    return target(*args, **kwargs)
