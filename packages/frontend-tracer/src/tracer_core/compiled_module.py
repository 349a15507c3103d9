"""Makes a module that shares everything with another module except how it is called.

`share` returns an instance of a generated subclass of the module's class. Its ``__dict__`` *is* the
original's, so parameters, buffers, submodules, hooks, flags and attributes are the same objects: a
change through one module is visible through the other. `isinstance`, `state_dict()` keys and
`train()`/`eval()` behave as for the original.

- Methods inherited from the class (``generate()``, a wrapper's ``self.module(...)``) run with the
  shared module as ``self``, and so reach the replaced call.
- The replaced call itself gets the *original* module, so that its ``self`` is the object that
  parent and child modules know.
- pickle, copy and deepcopy produce the original class.
- An object of the generated class without the shared ``__dict__`` (a replica made by DataParallel)
  is called as its original class would be.

Limitation: the original does not see a later assignment to the shared module's ``__class__``
(parametrizations that swap the class of the root module itself). Apply those before compiling.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from torch import fx, nn
from torch.compiler import is_compiling as torch_is_compiling

from tracer_core.errors import OptionError
from tracer_core.torch_private import share_module_state

M = TypeVar("M", bound=nn.Module)

#: On the generated class: the module whose ``__dict__`` it shares.
SHARED = "_tracer_shared_module"

#: Calls with packed arguments.
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Replacement(Protocol):
    """What is called in place of a function."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls it."""


#: ``(call, module) -> replacement``. call: the class's own function, which takes the module first.
#: The replacement gets the same arguments.
Replace = Callable[[Callable[..., Any], nn.Module], Replacement]

#: ``(called, forward) -> call``: chooses for each call of a module whether the replacement of its
#: ``__call__`` runs, or the hooks of the module around the replacement of its ``forward``.
Around = Callable[[Run, Run], Run]

#: ``(method, replacement, call)``: marks the method of the generated class.
MarkMethod = Callable[[Callable[..., Any], Replacement, Callable[..., Any]], None]


_NO_METHODS: Mapping[str, Callable[..., Any]] = types.MappingProxyType({})


def share(
    module: M,
    replace: Replace,
    mark: MarkMethod,
    methods: Mapping[str, Callable[..., Any]] = _NO_METHODS,
    around: Around | None = None,
) -> M:
    """Returns a module that shares `module`'s state and calls ``replace(type(module).__call__,
    module)``.

    ``forward`` is replaced likewise, so that ``m.forward(x)`` is compiled too; as in eager PyTorch,
    it runs no hooks. methods: additional functions of the shared module. around: makes what is
    called in place of the replaced ``__call__``. Raises OptionError if the class has ``__slots__``,
    cannot be subclassed or already has an attribute of a method's name.
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
    calls = {name: getattr(cls, name, None) for name in ("__call__", "forward")}
    replaced = {
        name: replace(call, module)
        for name, call in calls.items()
        if inspect.isfunction(call)  # a ScriptModule's forward is no function: it stays as it is
    }
    for name, replacement in replaced.items():
        run: Run = replacement.call
        if name == "__call__" and "forward" in replaced and around is not None:
            run = around(run, replaced["forward"].call)
        namespace[name] = _method(calls[name], module, replacement, run, mark)
    if isinstance(module, fx.GraphModule):
        # recompile() sets `forward` on type(self): the original's.
        namespace["recompile"] = lambda self: cast(fx.GraphModule, _plain(self)).recompile()
    try:
        generated = types.new_class(cls.__name__, (cls,), None, lambda body: body.update(namespace))
    except TypeError as error:
        raise OptionError(f"{cls.__qualname__} cannot be subclassed: {error}") from error
    shared: M = object.__new__(generated)
    object.__setattr__(shared, "__dict__", module.__dict__)
    share_module_state(module, shared)
    return shared


def unshared(module: M) -> M:
    """Returns the original of a module made by `share`; returns any other module as it is."""
    original: M | None = getattr(type(module), SHARED, None)
    if original is None or original.__dict__ is not module.__dict__:
        return module
    return original


def is_shared(module: nn.Module) -> bool:
    """Whether `module` was made by `share`."""
    return unshared(module) is not module


def _plain(module: nn.Module) -> nn.Module:
    """Returns a module of the original class with `module`'s state: the original itself, except for
    a replica.
    """
    original = unshared(module)
    if original is module:
        original = object.__new__(type(getattr(type(module), SHARED)))
        object.__setattr__(original, "__dict__", module.__dict__)
    return original


def _reduce(original: nn.Module, protocol: Any) -> Any:
    """Returns the pickle form of `original` when it is pickled through a shared module.

    pickle rejects ``copyreg.__newobj__`` for a class that is not the pickled object's own, so the
    same construction is spelled with a function that pickle does not inspect. The pickle loads
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
    call: Any,
    module: nn.Module,
    replacement: Replacement,
    run: Run,
    mark: MarkMethod,
) -> Callable[..., Any]:
    """Returns a method of the generated class. run: the replacement's call, or what does its work."""
    state = module.__dict__

    @functools.wraps(call)
    def method(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        # torch.compile and torch.export trace the original: below they would see our own code.
        if torch_is_compiling() or self.__dict__ is not state:
            return call(self, *args, **kwargs)
        return run((module, *args), kwargs)

    mark(method, replacement, call)
    return method


def _slots(base: type) -> list[str]:
    found = base.__dict__.get("__slots__", ())
    names = [found] if isinstance(found, str) else list(found)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def call_object(target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls `target`: the function that is traced for a callable that is not a Python function."""
    return target(*args, **kwargs)
