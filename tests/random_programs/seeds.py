"""Which program a seed stands for.

In: a seed. Out: its program: every fifth is made from the native effects table, the others from the
grammar.
"""

from __future__ import annotations

from tests.random_programs.program import Program, generate_program
from tests.random_programs.table_programs import generate_calls


def generate(seed: int) -> Program:
    return generate_calls(seed) if seed % 5 == 4 else generate_program(seed)
