"""Programs for measurements on GPUs: the issue's rows, and two halves of twenty programs.

In: a name of `PROGRAMS`. Out: a `GpuProgram`. What always holds: no other benchmark here has the
programs of the two halves, and importing this imports neither torch nor a library of models.
"""

from __future__ import annotations

from benchmarks.gpu_programs import issue_rows
from benchmarks.gpu_programs.program import BuiltProgram, GpuProgram

__all__ = ["PROGRAMS", "BuiltProgram", "GpuProgram"]

PROGRAMS: dict[str, GpuProgram] = {program.name: program for program in issue_rows.PROGRAMS}
