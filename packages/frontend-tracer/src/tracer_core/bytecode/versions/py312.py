"""CPython 3.12."""

from __future__ import annotations

from tracer_core.bytecode.versions.version import (
    ASYNC,
    UNSUPPORTED,
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
    unsupported={
        **UNSUPPORTED, "BEFORE_ASYNC_WITH": ASYNC,
        "INSTRUMENTED_LINE": "added at run time by tools; decoded as the original",
    },
    lazy_intrinsics={
        "CALL_INTRINSIC_1": frozenset({1, 2, 4, 11}), "CALL_INTRINSIC_2": frozenset({2, 3})
    },
)  # fmt: skip
