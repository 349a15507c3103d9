"""The ecosystem: small programs that read like user code of many libraries on top of PyTorch.

In: a name of `ECOSYSTEM`. Out: a `Program`. What always holds: weights are random, nothing is
downloaded, and a library that is missing fails only the programs that use it.
"""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.ecosystem_programs.program import Program

__all__ = ["ECOSYSTEM", "Program"]

ECOSYSTEM: dict[str, Program] = {}
for _, _name, _ in pkgutil.iter_modules(__path__):
    if _name != "program":
        for _one in importlib.import_module(f"{__name__}.{_name}").FAMILY.programs:
            assert _one.name not in ECOSYSTEM, _one.name
            ECOSYSTEM[_one.name] = _one
