"""Settings: the arguments of `compile()` (`CompileConfig`) and the environment (`env()`).

Only this module and `limit_table` (`TRACER_LIMITS`, once at import) read the settings in `os.environ`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracer_core.errors import OptionError
from tracer_core.limits import MAX_RECOMPILES

if TYPE_CHECKING:
    # Annotation only: plugin_api re-exports env(), so it must be able to import this module.
    from tracer_core.contract.backend import Backend


@dataclass(frozen=True, slots=True)
class CompileConfig:
    """One validated call of `compile()`.

    backend: resolved. options: an instance of the backend's options dataclass, or None. dynamic:
    None means static first, then symbolic for sizes that changed. native_if_faster: a settled
    function whose compiled calls are slower than eager ones runs in eager mode. when: "now", or
    "background": graphs run eagerly until they are compiled on another thread.
    """

    backend: Backend
    options: Any = None
    mode: str = "default"
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int = MAX_RECOMPILES
    native_if_faster: bool = False
    when: str = "now"

    @property
    def must_compile(self) -> bool:
        """Whether falling back to eager mode is an error."""
        return self.fullgraph or env().strict


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings of the environment variables.

    logs: names in TRACER_LOGS. debug: folder of TRACER_DEBUG (``"1"`` means ``./tracer_debug``) or
    None. cache_dir: TRACER_CACHE_DIR. cache_limit: bytes of TRACER_CACHE_LIMIT. strict:
    TRACER_STRICT. check: TRACER_CHECK (verify every IR).
    python_guards: TRACER_PYTHON_GUARDS (no C compiler is used for guards). always_compiled:
    TRACER_ALWAYS_COMPILED (no function runs in eager mode because that is faster). keep: not
    TRACER_KEEP=0 (nothing that is captured is kept for later processes, or taken from earlier ones).
    cpu: TRACER_CPU (`storage.processor.LEVELS`; "": the processor here).
    store: the URL of TRACER_STORE, a fleet's store; store_key, store_key_file, store_timeout
    (seconds): TRACER_STORE_KEY, TRACER_STORE_KEY_FILE, TRACER_STORE_TIMEOUT.
    """

    logs: frozenset[str]
    debug: str | None
    cache_dir: str
    cache_limit: int
    strict: bool
    check: bool
    python_guards: bool = False
    always_compiled: bool = False
    keep: bool = True
    cpu: str = ""
    store: str = ""
    store_key: str = field(default="", repr=False)
    store_key_file: str = ""
    store_timeout: float = 0.2


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def _bytes(variable: str, text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B|)", text.strip().upper())
    if found is None:
        raise OptionError(f"{variable}={text!r}: a size in bytes, or such as 500MB or 2GB")
    return int(float(found[1]) * _UNITS[found[2]])


def _seconds(variable: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise OptionError(f"{variable}={text!r}: seconds, such as 0.2")
    return seconds


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
        cpu=get("TRACER_CPU", ""),
        store=get("TRACER_STORE", ""),
        store_key=get("TRACER_STORE_KEY", ""),
        store_key_file=get("TRACER_STORE_KEY_FILE", ""),
        store_timeout=_seconds("TRACER_STORE_TIMEOUT", get("TRACER_STORE_TIMEOUT") or "0.2"),
    )
