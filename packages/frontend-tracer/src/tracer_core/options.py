"""Settings: the arguments of `compile()` (`CompileConfig`) and the environment (`env()`).

The environment variables of the core are the fields of `Environment`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from tracer_core.limit_table import VARIABLE as LIMITS_VARIABLE
from tracer_core.limits import MAX_RECOMPILES
from tracer_core.variable_table import FLAG, PREFIX, Variable, flag, seconds, size

if TYPE_CHECKING:
    # Annotation only: plugin_api re-exports env(), so it must be able to import this module.
    from tracer_core.contract.backend import Backend

#: When a captured graph is compiled. ``"now"``: in the call that captures it. ``"background"``: on
#: another thread; the graph runs eagerly until then.
When = Literal["now", "background"]


@dataclass(frozen=True, slots=True)
class CompileConfig:
    """One validated call of `compile()`."""

    #: The resolved backend.
    backend: Backend
    #: An instance of the backend's options dataclass, or None.
    options: Any = None
    #: One of the backend's modes.
    mode: str = "default"
    #: Whether a graph break is an error.
    fullgraph: bool = False
    #: None: sizes are static until they change; True: symbolic; False: static.
    dynamic: bool | None = None
    #: How many cache entries a function may have.
    recompile_limit: int = MAX_RECOMPILES
    #: Whether a specialized function runs in eager mode where that is faster.
    native_if_faster: bool = False
    #: When graphs are compiled.
    when: When = "now"

    @property
    def must_compile(self) -> bool:
        """Whether falling back to eager mode is an error."""
        return self.fullgraph or env().strict


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, text.split(","))))


def _debug_folder(text: str) -> str | None:
    try:
        return "tracer_debug" if flag(text) else None
    except ValueError:
        return text


def _folder(text: str) -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return text or os.path.join(home, "tracer")


def _read(name: str, parse: Callable[[str], Any], takes: str, effect: str, default: str = "") -> Any:  # fmt: skip
    """Makes a variable; returns the field of `Environment` that holds its value."""
    secret = name in ("STORE", "STORE_KEY")  # an address may hold a password
    variable = Variable(PREFIX + name, parse, takes, effect, default, secret)
    return field(metadata={"variable": variable}, repr=not secret)


_BYTES = "a size in bytes, or such as 500MB or 2GB"
_URL = "a URL: `redis://host:6379/0`, or any of fsspec (`file:///shared`, `s3://...`)"
_KEY = "a text: `openssl rand -hex 32`"
_OR_FOLDER = "1 (`./tracer_debug`), 0 or a folder"


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings of the environment variables, each described in its row."""

    # fmt: off
    disable: bool = _read("DISABLE", flag, FLAG, "Compiled objects run in eager mode. Read once.", "0")
    #: The names of the loggers that are on.
    logs: frozenset[str] = _read("LOGS", _names, "names, with commas", "Logs the lines of these categories.")
    #: The folder of stages, or None.
    debug: str | None = _read("DEBUG", _debug_folder, _OR_FOLDER, "Writes every stage of every compile to a file.", "0")
    always_compiled: bool = _read("ALWAYS_COMPILED", flag, FLAG, "No function runs in eager mode because it is faster.", "0")
    keep: bool = _read("KEEP", flag, FLAG, "0: no persistent cache; nothing is stored for later processes.", "1")
    cache_dir: str = _read("CACHE_DIR", _folder, "a folder", "Where compiled code is stored; default `~/.cache/tracer`.")
    cache_limit: int = _read("CACHE_LIMIT", size, _BYTES, "The size of that folder; old entries are removed.", "2GB")
    store: str = _read("STORE", str, _URL, "A store of compiled code that many machines share.")
    store_key: str = _read("STORE_KEY", str, _KEY, "Authenticates the entries of that store; required with it.")
    store_key_file: str = _read("STORE_KEY_FILE", str, "a file", "The file that holds this key.")
    store_timeout: float = _read("STORE_TIMEOUT", seconds, "seconds, such as 0.2", "Total wait of lookups that miss.", "0.2")
    #: One of `storage.processor.LEVELS`; "": that of the processor here.
    cpu: str = _read("CPU", str, "x86-64-v2, x86-64-v3 or x86-64-v4", "Compiles for every processor of this level.")
    strict: bool = _read("STRICT", flag, FLAG, "Internal errors, and those of backends, are raised.", "0")
    check: bool = _read("CHECK", flag, FLAG, "Every graph is verified after every stage.", "0")
    python_guards: bool = _read("PYTHON_GUARDS", flag, FLAG, "Guards use no C compiler.", "0")
    # fmt: on


_SEE = "Other limits for this process; `tracer-core limits` lists them."
Variable(LIMITS_VARIABLE, str, "`name=value,name=value`", _SEE)


def env() -> Environment:
    """Returns the settings as they are now; read at every call, so tests may change them.

    Raises:
        OptionError: The value of a variable is wrong.
    """
    values = {item.name: item.metadata["variable"].read() for item in fields(Environment)}
    return Environment(**values)
