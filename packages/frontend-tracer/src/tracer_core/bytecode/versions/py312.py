"""CPython 3.12."""

from __future__ import annotations

from tracer_core.bytecode.versions.version import (
    ASYNC,
    UNSUPPORTED_INTRINSICS,
    UNSUPPORTED_SINCE_312,
    Version,
    compared,
    name_and_flag,
    nothing,
    super_attribute,
)

VERSION = Version(
    arguments={
        "COMPARE_OP": compared(4), "LOAD_ATTR": name_and_flag, "LOAD_GLOBAL": name_and_flag,
        "LOAD_SUPER_ATTR": super_attribute,
    },
    rewrites={"END_FOR": nothing},
    null_last=False,
    loop_end=("END_FOR",),
    unsupported={**UNSUPPORTED_SINCE_312, "BEFORE_ASYNC_WITH": ASYNC},
    unsupported_intrinsics=UNSUPPORTED_INTRINSICS,
)  # fmt: skip
