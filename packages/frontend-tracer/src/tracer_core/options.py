"""Settings: the arguments of `compile()` (`CompileConfig`) and the environment (`env()`).

The environment variables of the core are the fields of `Environment`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from tracer_core.limit_table import VARIABLE as LIMITS_VARIABLE
from tracer_core.limits import MAX_RECOMPILES
from tracer_core.variable_table import FLAG, FLAGS, PREFIX, Variable, flag, seconds, size

if TYPE_CHECKING:
    # Annotation only: plugin_api re-exports env(), so it must be able to import this module.
    from tracer_core.contract.backend import Backend

#: When a captured graph is compiled. ``"now"``: in the call that captures it. ``"background"``: on
#: another thread; the graph runs eagerly until then.
When = Literal["now", "background"]

#: What becomes of a graph whose first call differs from eager mode's. ``"report"``: a row of
#: `last_compile`. ``"warn"``: also a warning. ``"fallback"``: also, the graph runs in eager mode.
Verify = Literal["report", "warn", "fallback"]
#: Names of arguments -> dimension -> least and largest size, or None for any.
DynamicShapes = Mapping[str, Mapping[int, tuple[int | None, int | None] | None]]


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
    #: What a message, report or profile calls the function; "": its own name.
    name: str = ""
    #: Sizes of arguments that are symbolic from the start.
    dynamic_shapes: DynamicShapes = field(default_factory=dict)
    #: Whether the first call of each graph is compared with eager mode, and what follows.
    verify: Verify | None = None

    @property
    def must_compile(self) -> bool:
        """Whether falling back to eager mode is an error."""
        return self.fullgraph or env().strict


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, text.split(","))))


def _debug_folder(text: str) -> str | None:
    result = FLAGS.get(text.lower(), text)
    return "tracer_debug" if result is True else result or None


#: What the name of a report's file may end in, the longest first.
REPORT_SUFFIXES = (".trace.json", ".json", ".html")


def _report_file(text: str) -> str | None:
    if text and not text.lower().endswith(REPORT_SUFFIXES):
        raise ValueError(text)
    return text or None


def _folder(text: str) -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return text or os.path.join(home, "tracer")


def _read(name: str, parse: Callable[[str], Any], takes: str, effect: str, default: str = "") -> Any:  # fmt: skip
    """Makes a variable; returns the field of `Environment` that holds its value."""
    secret = name in ("STORE", "STORE_KEY")  # an address may hold a password
    variable = Variable(PREFIX + name, parse, takes, effect, default, secret)
    return field(metadata={"variable": variable}, repr=not secret)


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings of the environment variables, each described in its row."""

    # fmt: off
    #: Compiled objects run in eager mode.
    disable: bool = _read("DISABLE", flag, FLAG, "Compiled objects run in eager mode. Read once.", "0")
    #: The names of the loggers that are on.
    logs: frozenset[str] = _read("LOGS", _names, "names, with commas", "Logs the lines of these categories.")
    #: The folder of stages, or None.
    debug: str | None = _read("DEBUG", _debug_folder, "1, 0 or a folder", "Each stage is a file; 1: in `./tracer_debug`.", "0")
    #: The file of the report of this process, or None.
    report: str | None = _read("REPORT", _report_file, "a file: .html, .json or .trace.json", "A report at exit.")
    #: No function runs in eager mode because that is faster.
    always_compiled: bool = _read("ALWAYS_COMPILED", flag, FLAG, "No function runs in eager mode because it is faster.", "0")
    #: The persistent cache stores entries for later processes and loads them.
    keep: bool = _read("KEEP", flag, FLAG, "0: no persistent cache; nothing is stored for later processes.", "1")
    #: The folder of the persistent cache.
    cache_dir: str = _read("CACHE_DIR", _folder, "a folder", "Where compiled code is stored; default `~/.cache/tracer`.")
    #: Its largest size in bytes.
    cache_limit: int = _read("CACHE_LIMIT", size, "bytes, or such as 500MB or 2GB", "Size of that folder; old entries go.", "2GB")
    #: The URL of a fleet's store.
    store: str = _read("STORE", str, "a URL", "A store that many machines share: `redis://host:6379/0`, or any URL of fsspec.")
    #: The key that authenticates its entries.
    store_key: str = _read("STORE_KEY", str, "a text", "Authenticates its entries; required with it: `openssl rand -hex 32`.")
    #: The file that holds this key.
    store_key_file: str = _read("STORE_KEY_FILE", str, "a file", "The file that holds this key.")
    #: Seconds to wait for the store.
    store_timeout: float = _read("STORE_TIMEOUT", seconds, "seconds, such as 0.2", "Longest total wait for it.", "0.2")
    #: One of `storage.processor.LEVELS`; "": that of the processor here.
    cpu: str = _read("CPU", str, "x86-64-v2, x86-64-v3 or x86-64-v4", "Compiles for every processor of this level.")
    #: Internal errors and failing backends raise.
    strict: bool = _read("STRICT", flag, FLAG, "Internal errors, and those of backends, are raised.", "0")
    #: Every IR is verified.
    check: bool = _read("CHECK", flag, FLAG, "Every graph is verified after every stage.", "0")
    #: Guards use no C compiler.
    python_guards: bool = _read("PYTHON_GUARDS", flag, FLAG, "Guards use no C compiler.", "0")
    # fmt: on


Variable(
    LIMITS_VARIABLE,
    str,
    "`name=value,name=value`",
    "Other limits; `tracer-core limits` lists them.",
)


def env() -> Environment:
    """Returns the settings as they are now; read at every call, so tests may change them.

    Raises:
        OptionError: The value of a variable is wrong.
    """
    return Environment(**{item.name: item.metadata["variable"].read() for item in fields(Environment)})  # fmt: skip
