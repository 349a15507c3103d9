"""The only lookup of torch names for tables, where a release may lack some.

`names`, `name` and `operators` return the objects under dotted names below ``torch``; `not_found`
lists the missing ones. Imports look up every optional name here, so a missing name costs only its
own table row. Code that needs the missing object raises `MissingName`, which breaks the graph
before that call.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from typing import Any

import torch


class MissingName(RuntimeError):
    """This torch release lacks a name that tracer_core needs. path: the name."""

    def __init__(self, path: str) -> None:
        super().__init__(f"torch {torch.__version__} has no torch.{path}")
        self.path = path


class Missing:
    """Placeholder for a missing torch object: unequal to everything as a key; any use raises
    `MissingName`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise MissingName(self._path)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # Python and libraries look this up on any object
        raise MissingName(self._path)

    def __repr__(self) -> str:
        return f"<torch has no torch.{self._path}>"


#: Requested name -> whether this torch has it; without build-dependent names.
_asked: dict[str, bool] = {}


def not_found() -> tuple[str, ...]:
    """Returns the requested names that this torch lacks, as ``torch.a.b``."""
    return tuple(sorted(f"torch.{path}" for path, result in _asked.items() if not result))


def asked() -> tuple[str, ...]:
    """Returns every name requested so far that every build has, as ``torch.a.b``."""
    return tuple(sorted(f"torch.{path}" for path in _asked))


def names(paths: str, *, of: str = "", in_every_build: bool = True) -> tuple[Any, ...]:
    """Returns the objects under several names (text, split at spaces), without missing ones.

    of: prefix of each name. in_every_build: False for names that only some builds (CUDA's) or
    releases have, whose absence is not reported. A method is returned as its class stores it: the
    function, or the C descriptor.
    """
    result = (_find(f"{of}.{path}" if of else path, in_every_build) for path in paths.split())
    return tuple(item for item in result if not isinstance(item, Missing))


def classes(paths: str, *, of: str = "") -> tuple[type, ...]:
    """Like `names`, but returns only classes, for isinstance."""
    return tuple(name for name in names(paths, of=of) if isinstance(name, type))


def name(path: str) -> Any:
    """Returns the object under a name, or a `Missing`."""
    return _find(path, True)


def code_inside(path: str) -> tuple[types.CodeType, ...]:
    """Returns the code of the function that a torch decorator makes; nothing if the decorator is
    gone."""
    for decorator in names(path):
        result = decorator(lambda self: None) if callable(decorator) else None
        code = getattr(result, "__code__", None)
        _asked[path] = code is not None
        return () if code is None else (code,)
    return ()


def _find(path: str, in_every_build: bool) -> Any:
    result = _look_up(path)
    present = result is not _NOWHERE and _is_key(result)
    if in_every_build:
        _asked[path] = present
    return result if present else Missing(path)


def _look_up(path: str) -> Any:
    attribute: Any = torch
    for part in path.split("."):
        owner, attribute = attribute, getattr(attribute, part, _NOWHERE)
        if attribute is _NOWHERE and isinstance(owner, types.ModuleType):
            attribute = _submodule(f"{owner.__name__}.{part}")
        if attribute is _NOWHERE:
            return attribute
    receiver = getattr(attribute, "__self__", None)
    if isinstance(owner, type) and isinstance(receiver, type):  # a class method, bound
        raw = inspect.getattr_static(owner, part)
        attribute = getattr(raw, "__func__", raw)
    return attribute


def _submodule(full_name: str) -> Any:
    """A module that nothing has imported yet."""
    try:
        return importlib.import_module(full_name)
    except ImportError:
        return _NOWHERE


def _is_key(result: Any) -> bool:
    """Returns whether an object can be a table key."""
    try:
        hash(result)
    except TypeError:
        return False
    return True


_NOWHERE = object()


class _Operator:
    """The overloads of one operator, as attributes."""

    __hash__ = None  # type: ignore[assignment]  # no key of a table: an overload is, or what `names` gives

    def __init__(self, path: str) -> None:
        self.__dict__["_path"] = path

    def __getattr__(self, overload: str) -> Any:
        if overload.startswith("__"):
            raise AttributeError(overload)
        result = self.__dict__[overload] = name(f"{self._path}.{overload}")
        return result


class _Namespace:
    def __init__(self, path: str) -> None:
        self.__dict__["_path"] = path

    def __getattr__(self, operator: str) -> Any:
        path = f"{self._path}.{operator}"
        if operator.startswith("__") and isinstance(_find(path, False), Missing):
            raise AttributeError(operator)
        result = self.__dict__[operator] = _Operator(path)
        return result


@functools.cache
def operators(namespace: str) -> Any:
    """Returns ``torch.ops.<namespace>``, for tables of operators.

    ``operators("aten").add.Tensor`` is the overload, or a `Missing` where this release of torch
    lacks it.

    Args:
        namespace: The name of the operators' library.
    """
    return _Namespace(f"ops.{namespace}")
