"""What differs between CPython releases in the meaning of bytecode: a module a release.

Decoding (`code.decode`) rewrites the instructions of every release to one set, CPython 3.12's with
a few of its neighbours', so that the handlers of `opcodes/`, the resume_functions and the liveness
of variables know no release. A release is supported when `VERSIONS` names its module.
"""

from __future__ import annotations

import sys
from types import MappingProxyType

from tracer_core.bytecode.versions import py311, py312, py313, py314
from tracer_core.bytecode.versions.version import OpcodeStep, Version

#: (major, minor) -> what is particular to the release.
VERSIONS: MappingProxyType[tuple[int, int], Version] = MappingProxyType({
    (3, 11): py311.VERSION, (3, 12): py312.VERSION, (3, 13): py313.VERSION,
    (3, 14): py314.VERSION,
})  # fmt: skip

#: Of the running release; of the newest known one on a release that is not supported, where nothing
#: is decoded.
RUNNING = VERSIONS.get(sys.version_info[:2], py314.VERSION)

__all__ = ["RUNNING", "VERSIONS", "OpcodeStep", "Version"]
