"""Programs for measurements on GPUs: the issue's rows, and two halves of twenty programs.

In: a name of `PROGRAMS`. Out: a `GpuProgram`. What always holds: no other benchmark here measures
the programs of the two halves, and importing this imports neither torch nor a library of models.
"""

from __future__ import annotations

from benchmarks.gpu_programs import held_out, issue_rows, open_half
from benchmarks.gpu_programs.program import BuiltProgram, GpuProgram

__all__ = ["PROGRAMS", "BuiltProgram", "GpuProgram"]

PROGRAMS: dict[str, GpuProgram] = {
    program.name: program
    for program in (*issue_rows.PROGRAMS, *open_half.PROGRAMS, *held_out.PROGRAMS)
}
