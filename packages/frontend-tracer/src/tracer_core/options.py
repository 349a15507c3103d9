"""Settings: the arguments of `compile()` (`CompileConfig`) and the environment (`env()`).

Only this module and `limit_table` (`TRACER_LIMITS`, once at import) read the settings in `os.environ`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tracer_core.errors import OptionError
from tracer_core.limits import MAX_RECOMPILES

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


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings of the environment variables."""

    #: TRACER_LOGS: the loggers that are on.
    logs: frozenset[str]
    #: TRACER_DEBUG: the folder of stages (``"1"``: ``./tracer_debug``), or None.
    debug: str | None
    #: TRACER_CACHE_DIR: the folder of the persistent cache.
    cache_dir: str
    #: TRACER_CACHE_LIMIT: its largest size in bytes.
    cache_limit: int
    #: TRACER_STRICT: internal errors and failing backends raise.
    strict: bool
    #: TRACER_CHECK: every IR is verified.
    check: bool
    #: TRACER_PYTHON_GUARDS: guards use no C compiler.
    python_guards: bool = False
    #: TRACER_ALWAYS_COMPILED: no function runs in eager mode because that is faster.
    always_compiled: bool = False
    #: Not TRACER_KEEP=0: the persistent cache stores entries for later processes and loads them.
    keep: bool = True
    #: TRACER_DISABLE: compiled objects run in eager mode.
    disable: bool = False
    #: TRACER_CPU: one of `storage.processor.LEVELS`; "": that of the processor here.
    cpu: str = ""
    #: TRACER_STORE: the URL of a fleet's store.
    store: str = ""
    #: TRACER_STORE_KEY: the key that authenticates its entries.
    store_key: str = field(default="", repr=False)
    #: TRACER_STORE_KEY_FILE: the file that holds this key.
    store_key_file: str = ""
    #: TRACER_STORE_TIMEOUT: seconds to wait for the store.
    store_timeout: float = 0.2


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def _bytes(variable: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B|)", text.strip().upper())
    if match is None:
        raise OptionError(f"{variable}={text!r}: a size in bytes, or such as 500MB or 2GB")
    return int(float(match[1]) * _UNITS[match[2]])


def _seconds(variable: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise OptionError(f"{variable}={text!r}: seconds, such as 0.2")
    return seconds


def _is_set(variable: str, text: str) -> bool:
    if text not in ("", "0", "1"):
        raise OptionError(f"{variable}={text!r}: 1 or 0")
    return text == "1"


def env() -> Environment:
    """Returns the settings as they are now; read at every call, so tests may change them."""
    get = os.environ.get
    debug = get("TRACER_DEBUG", "")
    default_cache = os.path.join(get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tracer")
    return Environment(
        logs=frozenset(name.strip() for name in get("TRACER_LOGS", "").split(",") if name.strip()),
        debug={"": None, "0": None, "1": "tracer_debug"}.get(debug, debug),
        cache_dir=get("TRACER_CACHE_DIR") or default_cache,
        cache_limit=_bytes("TRACER_CACHE_LIMIT", get("TRACER_CACHE_LIMIT") or "2GB"),
        strict=get("TRACER_STRICT", "") not in ("", "0"),
        check=get("TRACER_CHECK", "") not in ("", "0"),
        python_guards=get("TRACER_PYTHON_GUARDS", "") not in ("", "0"),
        always_compiled=get("TRACER_ALWAYS_COMPILED", "") not in ("", "0"),
        keep=get("TRACER_KEEP", "") != "0",
        disable=_is_set("TRACER_DISABLE", get("TRACER_DISABLE", "")),
        cpu=get("TRACER_CPU", ""),
        store=get("TRACER_STORE", ""),
        store_key=get("TRACER_STORE_KEY", ""),
        store_key_file=get("TRACER_STORE_KEY_FILE", ""),
        store_timeout=_seconds("TRACER_STORE_TIMEOUT", get("TRACER_STORE_TIMEOUT") or "0.2"),
    )
