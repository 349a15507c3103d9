"""Validates the arguments of `compile()`: returns a `CompileConfig`, or raises OptionError with
what is valid.

The config is frozen, its backend resolved, and its options are an instance of the backend's own
dataclass. The user's objects are never changed. Errors are found here, at `compile()`, not at the
first call.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from tracer_core.autoselect.candidates import is_auto, make_plan
from tracer_core.contract.backend import Backend, resolve
from tracer_core.errors import BackendError, OptionError, TracerError, did_you_mean
from tracer_core.options import CompileConfig, DynamicShapes, Verify, When
from tracer_core.registry import limits
from tracer_core.registry.auto import AUTO
from tracer_core.registry.discovery import get, unavailable_reason
from tracer_core.registry.torch_style import TorchStyle, from_callable, torch_style_settings

#: The modes of torch.compile. A backend lists those it has, and may have modes of its own.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

#: Changes each configuration of `tracer_core.compile`; `tracer-core bisect` sets it.
changed: Callable[[CompileConfig], CompileConfig] = lambda config: config


#: The backend of calls of `compile` that name none; `tracer_core.set_default_backend` sets it.
default_backend: list[Any] = ["inductor"]

#: Other arguments of `compile` -> their types. None stands for the default.
_MORE: dict[str, Any] = {
    "recompile_limit": int | None, "name": str | None, "verify": Verify | None, "dynamic_shapes": DynamicShapes | None,
}  # fmt: skip


def build_config(*, isolate_recompiles: Any = None, **settings: Any) -> CompileConfig:
    """Returns the configuration for the arguments of `compile()`; see `_build`, which also has the
    errors."""
    more = {name: settings.pop(name, None) for name in _MORE}
    for name, value in more.items():
        _demand(name, value, _MORE[name])
    _demand("isolate_recompiles", isolate_recompiles, Literal[True] | None)
    if more["recompile_limit"] is not None and more["recompile_limit"] < 1:
        raise OptionError(f"recompile_limit must be at least 1, not {more['recompile_limit']}")
    config = _build(**settings)
    return dataclasses.replace(config, **{k: v for k, v in more.items() if v is not None})


def _build(
    *,
    backend: Any = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Any = None,
    when: When = "now",
) -> CompileConfig:
    """Checks the arguments of `compile()` and asks the backend whether it can work with them.

    Raises OptionError (an argument, option, mode or limit is unknown or of the wrong type),
    BackendNotFoundError, BackendNameClashError, or BackendError (the backend cannot run here).
    """
    backend = default_backend[0] if backend is None else backend
    limits.check()
    _demand("fullgraph", fullgraph, bool)
    _demand("dynamic", dynamic, bool | None)
    _demand("mode", mode, str | None)
    _demand("when", when, When)
    if is_auto(backend) or is_auto(chosen := find_backend(backend)):
        own = build_options(AUTO, options)
        if when == "background" and own.wait:
            raise OptionError("when='background' and wait=True of backend 'auto': one of them")
        return make_plan(backend, own, mode, build_config, fullgraph=fullgraph, dynamic=dynamic)
    if isinstance(chosen.compile, TorchStyle):
        _demand_available(chosen)
        settings, name = torch_style_settings(chosen.compile, options, mode, MODES)
        return CompileConfig(chosen, settings, name, fullgraph, dynamic, when=when)
    name = _mode(chosen, mode)
    _demand_available(chosen)
    settings = build_options(chosen, options)
    _ask_check(chosen, settings, name)
    # who chooses how it is compiled, or uses a backend to look into it, wants it compiled
    usual = chosen.fuses and not fullgraph and name == "default" and not options
    return CompileConfig(
        chosen, settings, name, fullgraph, dynamic, native_if_faster=usual, when=when
    )


def _ask_check(backend: Backend, options: Any, mode: str) -> None:
    """Raises the error of the backend's `check`; an unexpected exception becomes BackendError."""
    try:
        if backend.check is not None:
            resolve(backend.check)(options, mode)
    except TracerError:
        raise
    except Exception as error:
        detail = f"its check() raised {type(error).__name__}: {error}"
        raise BackendError(backend.name, "check", detail) from error


def find_backend(backend: Any) -> Backend:
    """Returns a name, a `Backend` or a callable ``backend(gm, example_inputs)`` as a `Backend`."""
    if isinstance(backend, str):
        return get(backend)
    if isinstance(backend, Backend):
        return backend
    if callable(backend):
        return from_callable(backend)
    kind = type(backend).__name__
    raise OptionError(f"backend must be a name, a Backend or a callable, not {kind}")


def build_options(backend: Backend, options: Any) -> Any:
    """Returns an instance of the backend's options dataclass, or None if it has none.

    options: None, a mapping with the dataclass's field names, or an instance of it. Raises
    OptionError naming the valid fields, or the field whose value has the wrong type; BackendError
    if there is no such dataclass.
    """
    cls = options_class(backend)
    if cls is None:
        if options is not None and not (isinstance(options, Mapping) and not options):
            raise OptionError(f"backend {backend.name!r} has no options")
        return None
    if options is None or isinstance(options, Mapping):
        _demand_known_fields(backend, cls, options or {})
        return _construct(backend, cls, _checked(backend, cls, options or {}))
    if isinstance(options, cls):
        values = {field.name: getattr(options, field.name) for field in dataclasses.fields(cls)}
        # a copy: the user's own object may not be frozen
        return dataclasses.replace(options, **_checked(backend, cls, values))
    raise OptionError(
        f"options for backend {backend.name!r} must be a {cls.__name__} or a dict, "
        f"not {type(options).__name__}"
    )


def options_class(backend: Backend) -> Any:
    """Returns the dataclass, or None. Raises BackendError: a mistake of the backend's author."""
    try:
        cls = resolve(backend.options)
    except (ImportError, AttributeError) as error:
        raise BackendError(backend.name, "options", str(error)) from error
    if cls is not None and not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise BackendError(backend.name, "options", f"{backend.options!r} is no dataclass")
    return cls


def _mode(backend: Backend, mode: str | None) -> str:
    name = mode or "default"
    if name in backend.modes:
        return name
    kind = "is not available with" if name in MODES else "is unknown to"
    available = ", ".join(f"{key!r}" for key in backend.modes)
    raise OptionError(f"mode {name!r} {kind} backend {backend.name!r}; available: {available}")


def _demand_available(backend: Backend) -> None:
    reason = unavailable_reason(backend)
    if reason is not None:
        raise BackendError(backend.name, "available", reason)


def _demand(argument: str, value: Any, expected: Any) -> None:
    if not matches(value, expected):
        raise OptionError(f"{argument} must be {describe(expected)}, not {value!r}")


def _demand_known_fields(backend: Backend, cls: type, options: Mapping[Any, Any]) -> None:
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    unknown = [key for key in options if key not in known]
    if unknown:
        guess = did_you_mean(str(unknown[0]), known)
        raise OptionError(
            f"backend {backend.name!r} has no option {', '.join(map(repr, unknown))}{guess}; "
            f"valid: {', '.join(known) or 'none'}"
        )


def _construct(backend: Backend, cls: type, values: Mapping[str, Any]) -> Any:
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:  # a rule of the dataclass's own __post_init__
        raise OptionError(f"options for backend {backend.name!r}: {error}") from error
    except Exception as error:
        detail = f"{cls.__name__}() raised {type(error).__name__}: {error}"
        raise BackendError(backend.name, "options", detail) from error


def _checked(backend: Backend, cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of fields, with tuples for lists. Raises OptionError for a wrong type."""
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:  # whatever the annotations, which are strings, evaluate to
        reason = f"the annotations of {cls.__name__} cannot be read"
        detail = f"{reason}: {type(error).__name__}: {error}"
        raise BackendError(backend.name, "options", detail) from error
    result = {name: with_tuples(value, hints[name]) for name, value in values.items()}
    for name, value in result.items():
        expected = hints[name]
        if not matches(value, expected):
            what = f"option {name!r} of backend {backend.name!r}"
            raise OptionError(f"{what} must be {describe(expected)}, not {value!r}")
    return result


def with_tuples(value: Any, expected: Any) -> Any:
    """Returns `value` with a tuple for each list where the annotated type `expected` has one."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in _UNIONS and not matches(value, expected):
        forms = (with_tuples(value, argument) for argument in arguments)
        return next((form for form in forms if matches(form, expected)), value)
    if origin is tuple and isinstance(value, (list, tuple)):
        types_ = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(map(with_tuples, value, types_)) if len(types_) == len(value) else value
    return value


def matches(value: Any, expected: Any) -> bool:
    """Whether `value` is of the annotated type `expected`, including containers' items.

    Understands classes, None, Any, unions, Literal, tuple[...], and one- and two-argument
    collections. As in typing, an int is a float; unlike in Python, a bool is not an int, because
    ``threads=True`` is always a mistake.
    """
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return True
    if expected is None:
        return value is None
    if origin in _GENERIC_RULES:
        return _GENERIC_RULES[origin](value, arguments)
    if origin is not None:
        return _matches_collection(value, origin, arguments)
    return _matches_class(value, expected)


def describe(expected: Any) -> str:
    """Returns the annotated type in words: ``int or None``, ``one of 'a', 'b'``."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is None or expected is type(None):
        return "None"
    if origin in _UNIONS:
        return " or ".join(describe(argument) for argument in arguments)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, arguments))
    return expected.__name__ if isinstance(expected, type) and origin is None else str(expected)


_UNIONS = (typing.Union, types.UnionType)


def _matches_class(value: Any, expected: Any) -> bool:
    if not isinstance(expected, type):  # a TypeVar, a NewType, ...: nothing to check against
        return True
    if isinstance(value, bool) and expected in (int, float):
        return False
    if expected is float:
        return isinstance(value, (int, float))
    return isinstance(value, expected)


def _matches_collection(value: Any, origin: Any, arguments: Sequence[Any]) -> bool:
    if not isinstance(origin, type) or not isinstance(value, origin):
        return False
    if isinstance(value, Mapping):
        key, item = arguments
        return all(matches(k, key) and matches(v, item) for k, v in value.items())
    if isinstance(value, Collection) and not isinstance(value, str) and len(arguments) == 1:
        return all(matches(item, arguments[0]) for item in value)
    return not isinstance(value, str)


def _matches_tuple(value: Any, arguments: Sequence[Any]) -> bool:
    if not isinstance(value, tuple):
        return False
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(matches(item, arguments[0]) for item in value)
    return len(value) == len(arguments) and all(map(matches, value, arguments))


def _matches_literal(value: Any, arguments: Sequence[Any]) -> bool:
    return any(value == argument and type(value) is type(argument) for argument in arguments)


def _matches_union(value: Any, arguments: Sequence[Any]) -> bool:
    return any(matches(value, argument) for argument in arguments)


#: Origin of a generic type -> (value, the type's arguments) -> whether the value matches.
_GENERIC_RULES: dict[Any, Callable[[Any, Sequence[Any]], bool]] = {
    **dict.fromkeys(_UNIONS, _matches_union),
    typing.Literal: _matches_literal,
    typing.Annotated: lambda value, arguments: matches(value, arguments[0]),
    tuple: _matches_tuple,
}
