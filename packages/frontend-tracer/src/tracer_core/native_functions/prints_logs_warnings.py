"""Messages for people: warnings, logs and prints.

They are shown after the graph, in their order, from frames that look like the program's, and before
the changes of the program are replayed. A message is late only where nothing of the program can
tell: the other ones break the graph.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import types
import warnings
from functools import partial
from typing import Any

import torch

from tracer_core.bytecode.tracebacks import calling_line
from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import special, special_each, special_rows
from tracer_core.torch_private.settings import print_options
from tracer_core.trace import special_methods
from tracer_core.trace.guarded_calls import applied, query
from tracer_core.trace.save_before_mutation import LateCall
from tracer_core.trace.symbolic_scalars import SYMBOLS
from tracer_core.trace.tracer import Tracer


def _call_late(
    tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Calls a function after the graph instead of now."""
    side_effects = tracer.side_effects
    side_effects.mutations += 1
    lines = tuple(
        (calling_line(frame.code, frame.ip - 1), tracer.names.namespace_source(frame.function))
        for frame in tracer.frames
    )
    side_effects.late.append(LateCall(lines, function, args, kwargs))


def _shows_the_same_later(value: Any) -> bool:
    """Returns whether a value is the same, and shown in the same way, when it is shown later."""
    return is_constant(value) or isinstance(value, (*SYMBOLS, torch.dtype, torch.device))


def _as_it_is(tracer: Tracer, value: Any) -> Any:
    """Returns what a message shows later of a value as it is now: the value, a copy of a tensor, or
    for other objects their string, as `str` gives it."""
    if _shows_the_same_later(value):
        return value
    if isinstance(value, torch.Tensor):
        return _copy_of_tensor(tracer, value)
    before = tracer.side_effects.activity()
    text = special_methods.str_of(tracer, value)
    if tracer.side_effects.activity() != before:
        tracer.break_graph("side_effect_native", f"the text of a {type(value).__name__} is made")
    return text


def _copy_of_tensor(tracer: Tracer, value: torch.Tensor) -> Any:
    """Returns a tensor of the graph that keeps a tensor's values until they are shown."""
    if value.requires_grad or tracer.recorder.program_modes:
        tracer.break_graph("side_effect_native", "a tensor is shown with its gradient's function")
    options = print_options()
    if tracer.effects.peek(vars(options)) is not None or value.layout is not torch.strided:
        tracer.break_graph("side_effect_native", "a tensor is shown in another way")
    return tracer.native_calls.call_torch(torch.Tensor.clone, [value], {})


def _is_changed(tracer: Tracer, namespace: Any, *names: str) -> bool:
    """Returns whether the trace has given these names other values."""
    change = tracer.effects.peek(namespace)
    return change is not None and any(
        change.before.get(name) is not namespace.get(name) for name in names
    )


# -- prints --


def _shows(name: str) -> bool:
    """Returns whether a standard stream runs no code of the program."""
    return isinstance(getattr(sys, name), (io.TextIOBase, type(None)))


_OUTPUT, _ERRORS = partial(_shows, "stdout"), partial(_shows, "stderr")


@special(print)
def print_late(tracer: Tracer, *args: Any, file: Any = None, **kwargs: Any) -> None:
    to_errors = file is sys.stderr and file is not None
    if (
        not all(map(_shows_the_same_later, kwargs.values()))
        or not (to_errors or file is None or file is sys.stdout)
        or _is_changed(tracer, vars(sys), "stdout", "stderr")
        or not query(tracer, _ERRORS if to_errors else _OUTPUT)
    ):
        tracer.break_graph("side_effect_native", "print: what it prints or where is not plain")
    args = tuple([_as_it_is(tracer, value) for value in args])
    _call_late(tracer, print, args, kwargs if file is None else {**kwargs, "file": file})


# -- warnings --

_FILTERS = ("filters", "showwarning", "_showwarnmsg_impl", "defaultaction")
#: An option of CPython 3.14, and the default of its builds without the GIL.
_FILTERS_ARE_OF_CONTEXTS = bool(getattr(sys.flags, "context_aware_warnings", False))


def _filters() -> Any:
    """Returns the filters that count where it is called."""
    return warnings._get_filters() if _FILTERS_ARE_OF_CONTEXTS else warnings.filters  # type: ignore[attr-defined]


def _fits(pattern: Any, text: str) -> bool:
    if pattern is None or type(pattern) is str:
        return pattern is None or pattern == text
    return bool(pattern.match(text))


def _action(category: type[Warning], text: str, module: str, line: int) -> Any:
    """Returns what the filters of warnings say, "unknown" if that depends on a line that is not
    known (0)."""
    for action, message, kind, where, number in _filters():
        if not (_fits(message, text) and issubclass(category, kind)):
            continue
        if not line and (where is not None or number):
            return "unknown"
        if not line or (_fits(where, module) and number in (0, line)):
            return "always" if action == "all" else action
    return warnings.defaultaction  # type: ignore[attr-defined]


def _is_shown_by_python() -> bool:
    """Returns whether no code of the program shows a warning: it is printed, logged or listed."""
    show, impl = warnings.showwarning, warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    if show is logging._showwarning:  # type: ignore[attr-defined]
        return _goes_out(logging.getLogger("py.warnings"))
    original = warnings._showwarning_orig  # type: ignore[attr-defined]
    is_own = isinstance(impl, types.FunctionType) and impl.__globals__ is original.__globals__
    is_listed = isinstance(impl, types.BuiltinMethodType) and type(impl.__self__) is list
    return show is original and (is_own or is_listed)


def _late_action(category: type[Warning], text: str, module: str, line: int) -> Any:
    """Returns what the filters say, or "error" if code of the program shows the warning."""
    return _action(category, text, module, line) if _is_shown_by_python() else "error"


def _warn(tracer: Tracer, message: Any, category: Any = None, stacklevel: Any = 1) -> None:
    """Traces a warning of the program at one of its frames."""
    frames, level = tracer.frames, tracer.scalars.concrete(stacklevel)
    if isinstance(message, Warning):
        category = type(message)
        known = category.__str__ is BaseException.__str__ and all(map(is_constant, message.args))
    else:
        category = UserWarning if category is None else category
        known = type(message) is str and isinstance(category, type)
        known = (
            known and issubclass(category, Warning) and id(category) not in tracer.entries.classes
        )
    if not known or type(level) is not int or level < 1:
        tracer.break_graph("side_effect_native", "a warning is shown in an unusual way")
    # Between a module's call and its forward are frames that no trace has.
    callees = frames[1 - level :] if level > 1 else []
    line, module = ("", "", "", 0), ""
    is_known = all(callee.function.__name__ != "forward" for callee in callees)
    if is_known and level <= len(frames):
        frame = frames[-level]
        line = calling_line(frame.code, frame.ip - 1)
        module = frame.globals.get("__name__") or "<string>"
    about = (category, str(message), module, line[3])
    if tracer.effects.peek(warnings.filters) or _is_changed(tracer, vars(warnings), *_FILTERS):
        _warn_now(tracer, message, _action(*about), category, line)
        return
    action = query(tracer, partial(_late_action, *about))
    if action in ("error", "unknown") or not (is_known or action == "ignore"):
        tracer.break_graph("side_effect_native", "a warning is raised, or shown by the program")
    if action != "ignore":
        _call_late(tracer, warnings.warn, (message, category, level), {})


def _warn_now(tracer: Tracer, message: Any, action: Any, category: Any, line: Any) -> None:
    """Traces a warning under filters that the trace has changed."""
    if action == "ignore":
        return
    call = tracer.calls.call_value
    if action in ("error", "always") and type(message) is str:
        message = call(category, [message], {})
    if action == "error":
        raise message
    show = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    recorded = tracer.provenance.is_fresh(getattr(show, "__self__", None))
    if action != "always" or not (line[3] and recorded and _is_shown_by_python()):
        tracer.break_graph("side_effect_native", f"a warning is shown ({action})")
    call(show, [call(warnings.WarningMessage, [message, category, line[0], line[3]], {})], {})


@special(warnings.warn)
def warn(
    tracer: Tracer,
    message: Any,
    category: Any = None,
    stacklevel: Any = 1,
    source: Any = None,
    **prefixes: Any,
) -> None:
    if source is not None or prefixes:
        tracer.break_graph("side_effect_native", "a warning is shown")
    _warn(tracer, message, category, stacklevel)


@special(warnings.warn_explicit)
def warn_explicit(tracer: Tracer, *args: Any, **kwargs: Any) -> None:
    tracer.break_graph("side_effect_native", "a warning is shown for a line that the program names")


@special(warnings._add_filter)  # type: ignore[attr-defined]
def add_filter(tracer: Tracer, *item: Any, append: bool) -> None:
    if _FILTERS_ARE_OF_CONTEXTS:
        tracer.break_graph("side_effect_native", "a filter of warnings is set in a context")
    module = tracer.names.import_name(tracer.frames[-1], "warnings", None, 0)
    attribute: Any = tracer.attributes.getattr(module, "filters")
    tracer.side_effects.before_change(attribute)  # the filters themselves are objects of C
    if not append:
        if item in attribute:
            attribute.remove(item)
        attribute.insert(0, item)
    elif item not in attribute:
        attribute.append(item)
    call_late(tracer, warnings._filters_mutated)  # type: ignore[attr-defined]


#: Functions that tell C code of changes, and its lock around them (3.14).
_TOLD = ("_filters_mutated", "_filters_mutated_lock_held", "_acquire_lock", "_release_lock")


@special_each(*(vars(warnings)[name] for name in _TOLD if hasattr(warnings, name)))
def call_late(tracer: Tracer, function: Any) -> None:
    _call_late(tracer, function, (), {})


# -- logs --

LOGGING = frozenset({"debug", "info", "warning", "error", "critical"})
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "exception": 40, "critical": 50}


class Enabled:
    """Returns whether a logger emits messages of a level."""

    __slots__ = ("level", "__qualname__")

    def __init__(self, level: int) -> None:
        self.level = level
        self.__qualname__ = "isEnabledFor"

    def __call__(self, logger: Any) -> bool:
        return bool(logger.isEnabledFor(self.level))


_QUESTIONS: dict[int, Enabled] = {}


def _effective_level(logger: Any) -> int:
    return int(logger.getEffectiveLevel())


def _ask_logger(tracer: Tracer, question: Any, logger: Any) -> Any:
    """Returns question(logger), guarded."""
    if not isinstance(logger, logging.Logger):
        tracer.break_graph(
            "side_effect_native", f"a {type(logger).__name__} is asked for a logger's level"
        )
    if tracer.provenance.is_fresh(logger):
        tracer.provenance.constant(logger)
    return applied(tracer, question, logger)


def _goes_out(logger: Any) -> bool:
    """Returns whether the handlers of a logger run no code of the program."""
    while logger is not None:
        parts = [logger, *logger.handlers]
        parts += [handler.formatter for handler in logger.handlers if handler.formatter is not None]
        if any(
            getattr(part, "filters", None) or type(part).__module__ not in _LOGGING
            for part in parts
        ):
            return False
        logger = logger.parent if logger.propagate else None
    return True


_LOGGING = ("logging", "logging.handlers")


def logs_as_before(tracer: Tracer, logger: Any, *parts: Any) -> bool:
    """Returns whether a message of constants that is logged now is what eager logs: nothing that the
    trace has changed is logging's, and no message waits to be shown before it."""
    if type(logger) not in (logging.Logger, logging.RootLogger) or not _goes_out(logger):
        return False
    if tracer.side_effects.late or not all(map(is_constant, parts)):
        return False
    read: list[Any] = [vars(logging), vars(sys), logging.root.manager]
    while logger is not None:
        formatters = (handler.formatter for handler in logger.handlers)
        for item in (logger, *logger.handlers, *formatters):
            read += [item, getattr(item, "__dict__", None), getattr(item, "handlers", None)]
        logger = logger.parent if logger.propagate else None
    changed = {id(change.obj) for change in tracer.effects.changes.values()}
    return changed.isdisjoint(map(id, read))


@special(logging.Logger.isEnabledFor)
def is_enabled_for(tracer: Tracer, logger: Any, level: Any) -> bool:
    if type(level) is not int:
        tracer.break_graph("side_effect_native", "a logger is asked in an unusual way")
    return bool(_ask_logger(tracer, _QUESTIONS.setdefault(level, Enabled(level)), logger))


@special(logging.Logger.getEffectiveLevel)
def effective_level(tracer: Tracer, logger: Any) -> Any:
    return _ask_logger(tracer, _effective_level, logger)


@special_rows({vars(logging.Logger)[name]: (name, level) for name, level in _LEVELS.items()})
def log_at(tracer: Tracer, name: str, level: Any, logger: Any, *args: Any, **kwargs: Any) -> None:
    """Drops a disabled log message, which has no effect; guards that its level is disabled."""
    simple = type(logger) in (logging.Logger, logging.RootLogger) and type(level) is int
    if simple and not is_enabled_for(tracer, logger, level):
        return
    about = {key: value for key, value in kwargs.items() if not (key == "exc_info" and not value)}
    if not (
        simple
        and args
        and about.keys() <= {"extra", "stacklevel"}
        and type(about.get("stacklevel", 1)) is int
        and _ask_logger(tracer, _goes_out, logger)
    ):
        tracer.break_graph("side_effect_native", f"a message is logged ({name})")
    if name == "exception":
        tracer.break_graph("side_effect_native", "an exception is logged")
    if about.get("extra") is not None:
        about["extra"] = _constant_extra(tracer, about["extra"])
    levels = (level,) if name == "log" else ()
    message = _late_message(tracer, *args)
    _call_late(tracer, vars(logging.Logger)[name], (logger, *levels, *message), about)


def _late_message(tracer: Tracer, message: Any, *args: Any) -> tuple[Any, ...]:
    """Returns a message and its arguments as they are now. Objects are shown by %s only: another
    conversion may show another string than `str` gives."""
    if all(map(_shows_the_same_later, (message, *args))):
        return message, *args
    if type(message) is not str or not args:
        return _as_it_is(tracer, message), *args
    ways = [way for way in _CONVERSION.findall(message) if way != "%"]
    fits = len(ways) == len(args)
    if fits and all(
        way == "s" or _shows_the_same_later(arg) for way, arg in zip(ways, args, strict=True)
    ):
        return message, *(_as_it_is(tracer, value) for value in args)
    tracer.break_graph("side_effect_native", "a message is made of objects in an unusual way")


#: A conversion of a format string; one that takes more than one argument has no letter here.
_CONVERSION = re.compile(r"%[#0\- +]*\d*(?:\.\d+)?(.?)")


def _constant_extra(tracer: Tracer, extra: Any) -> Any:
    if type(extra) is not dict or not all(map(_shows_the_same_later, (*extra, *extra.values()))):
        tracer.break_graph("side_effect_native", "a message is logged with objects beside it")
    tracer.native_calls.native_reads(extra)
    return dict(extra)


def _has_handlers(logger: Any) -> bool:
    return bool(logger.handlers)


@special_rows(
    {getattr(logging, name): (name, level) for name, level in (*_LEVELS.items(), ("log", None))}
)
def log_at_root(tracer: Tracer, name: str, level: Any, *args: Any, **kwargs: Any) -> None:
    """logging.info and the like. Without a handler, the first call gives the root logger one."""
    root = logging.root
    if not _ask_logger(tracer, _has_handlers, root):
        tracer.break_graph("side_effect_native", "the root logger is configured")
    if level is None:
        level, *args = args  # type: ignore[assignment]
    log_at(tracer, name, level, root, *args, **kwargs)


@special(logging.Logger.log)
def log(tracer: Tracer, logger: Any, level: Any, *args: Any, **kwargs: Any) -> None:
    log_at(tracer, "log", level, logger, *args, **kwargs)


@special(logging.getLogger)
def get_logger(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    if not all(map(is_constant, (*args, *kwargs.values()))):
        tracer.break_graph("side_effect_native", "a logger is made")
    return query(tracer, partial(logging.getLogger, *args, **kwargs))
