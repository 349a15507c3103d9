"""Lists and dictionaries of numbers that are read at a number that changes: schedules."""

from __future__ import annotations

import copy
import types

import pytest
import torch

from tests.support.eager_reference import compare_with_eager

X = torch.randn(3, 4)


def test_a_schedule_in_a_list_is_one_graph_for_all_steps():
    def make():
        schedule = types.SimpleNamespace(sigmas=[0.5 * step for step in range(12)], step=0)

        def program(x):
            now, after = schedule.sigmas[schedule.step], schedule.sigmas[schedule.step + 1]
            schedule.step += 1
            return x * (after - now) + now

        return program, schedule

    compare_with_eager(make, *[(X,)] * 8, graphs=2, breaks=0)


@pytest.mark.parametrize("table", [[0.5, 1.5, 2.5, 3.5], {0: 0.5, 1: 1.5, 2: 2.5, 3: 3.5, -1: 4.5}])
def test_entries_that_change_or_are_missing_are_those_of_the_call(table):
    def make():
        held = copy.copy(table)

        def program(x, step):
            try:
                return x * held[step]
            except LookupError as error:
                return repr(error)

        return program, held

    def change(held):
        held[2], held[1] = 9.5, 4

    steps = [(X, step) for step in (3, 0, 2, -1, 7, 1)]
    compare_with_eager(make, *steps, change, *steps, breaks=0)


def test_an_entry_that_the_program_has_written():
    def make():
        held = [0.5, 1.5, 2.5, 3.5]

        def program(x, step):
            x = x * held[step]
            held[step] += 1.0
            return x * held[step]

        return program, held

    compare_with_eager(make, *[(X, step) for step in (3, 0, 2, 0, 1, 3)], breaks=0)
