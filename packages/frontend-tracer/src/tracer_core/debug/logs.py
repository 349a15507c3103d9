"""Log categories, switched on by ``TRACER_LOGS=graph_breaks,recompiles,...``.

Each category has one logger, ``tracer_core.<category>``; TRACER_LOGS is read again at every
`tracer_core.compile`. Notes of a category are of level INFO if TRACER_LOGS names it, else of level
DEBUG, so that a program which shows INFO is not flooded. An unknown name is an OptionError that
lists the known ones. Warnings are always shown.
"""

from __future__ import annotations

import logging
from typing import Any

from tracer_core.errors import OptionError, did_you_mean
from tracer_core.options import env

CATEGORIES: dict[str, str] = {
    "graph_breaks": "each graph break with the user's line, its reason and what would remove it",
    "recompiles": "each recompilation with the guard that failed",
    "guards": "the guards of each compiled entry",
    "graph": "each captured graph",
    "output_code": "the code that a backend generated",
    "kernels": "each generated kernel with its loops, blocks and the bytes that it must move",
    "stages": "each stage with its seconds",
    "cache": "each cache hit or miss with its reason",
}

ROOT = "tracer_core"


def _encodable(record: logging.LogRecord) -> bool:
    """Escapes characters that no encoding can write (lone surrogates in a program's names), as
    stderr does.

    A filter of all our loggers: a file handler would print "Logging error" instead of the line.
    """
    message = record.getMessage()
    if not message.isascii():
        record.msg, record.args = message.encode("utf-8", "backslashreplace").decode("utf-8"), None
    return True


for _name in (ROOT, *(f"{ROOT}.{category}" for category in CATEGORIES)):
    logging.getLogger(_name).addFilter(_encodable)

_active: frozenset[str] = frozenset()
_handler: logging.Handler | None = None


def logger(category: str | None = None) -> logging.Logger:
    """Returns the logger of a category.

    Args:
        category: A name for TRACER_LOGS. None: the logger of the whole package.

    Raises:
        KeyError: There is no such category.
    """
    if category is None:
        return logging.getLogger(ROOT)
    if category not in CATEGORIES:
        raise KeyError(f"no log category {category!r}; one of {', '.join(CATEGORIES)}")
    return logging.getLogger(f"{ROOT}.{category}")


def enabled(category: str) -> bool:
    """Returns whether notes of a category are seen, through TRACER_LOGS or the user's own logging.

    Args:
        category: A name for TRACER_LOGS.
    """
    return category in _active or logger(category).isEnabledFor(logging.DEBUG)


def note(category: str, text: str, *values: Any) -> None:
    """Logs ``text % values`` under a category.

    Call `enabled` before computing a costly value.

    Args:
        category: A name for TRACER_LOGS.
        text: The format.
        *values: What it formats.
    """
    logger(category).log(logging.INFO if category in _active else logging.DEBUG, text, *values)


def configure() -> frozenset[str]:
    """Makes the loggers follow TRACER_LOGS as it is now; returns the active categories.

    Raises OptionError if TRACER_LOGS holds a name that is not a category.
    """
    global _active
    wanted = env().logs
    if wanted == _active:
        return _active
    unknown = sorted(wanted - CATEGORIES.keys())
    if unknown:
        names = ", ".join(f"{name!r}{did_you_mean(name, CATEGORIES)}" for name in unknown)
        raise OptionError(f"TRACER_LOGS: unknown {names}; one or more of {', '.join(CATEGORIES)}")
    _attach_handler()
    for category in CATEGORIES:
        level = logging.DEBUG if category in wanted else logging.NOTSET
        if (category in wanted) != (category in _active):
            logger(category).setLevel(level)
    _active = wanted
    return _active


def _attach_handler() -> None:
    """Adds one handler on stderr, unless the program has set up logging itself."""
    global _handler
    root = logging.getLogger(ROOT)
    if _handler is not None or logging.getLogger().handlers or root.handlers:
        return
    _handler = logging.StreamHandler()
    _handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
    root.addHandler(_handler)
