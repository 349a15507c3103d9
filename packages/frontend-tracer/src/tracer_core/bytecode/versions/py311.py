"""CPython 3.11."""

from __future__ import annotations

from tracer_core.bytecode.versions.version import (
    ASYNC,
    AT_PROMPT,
    IN_MODULE,
    UNSUPPORTED,
    Version,
    compared,
    name_and_flag,
)

VERSION = Version(
    arguments={
        "COMPARE_OP": compared(0), "LOAD_GLOBAL": name_and_flag,
        "LOAD_ATTR": lambda arg, raw: (raw.co_names[arg], False),
        "LOAD_METHOD": lambda arg, raw: (raw.co_names[arg], True),
    },
    rewrites={},
    null_last=False,
    loop_end=(),
    unsupported={
        **UNSUPPORTED, **dict.fromkeys(("BEFORE_ASYNC_WITH", "ASYNC_GEN_WRAP"), ASYNC),
        "IMPORT_STAR": IN_MODULE, "PRINT_EXPR": AT_PROMPT,
    },
    unsupported_intrinsics={},
)  # fmt: skip
