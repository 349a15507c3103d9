"""A program that hangs or ends its process costs its own seed, nothing else."""

from __future__ import annotations

import itertools
import os

from tests.random_programs.workers import Crew, Plan, batches_of, news


def serve(pipe, plan, trace):
    """Seed 2 is stuck in native code, 4 ends the process; 6 hangs eagerly too."""
    for _, seeds, eager in batches_of(pipe, trace):
        for seed in seeds:
            pipe.send(("at", (seed, "running it", plan.seconds)))
            if seed == 6 or (seed == 2 and not eager):
                sum(itertools.cycle([0]))
            if seed == 4 and not eager:
                os._exit(3)
            if not eager:
                pipe.send(("seed", news(seed, "same")))
            pipe.send(("next", None))
        pipe.send(("end", {"done": {}, "failures": {}, "coverage": {}, "raised": 0}))


def test_a_hanging_and_a_dying_program_are_told_and_the_rest_is_run():
    done, failures = {}, {}

    def take(messages):
        done.update(messages["done"])
        failures.update(messages["failures"])

    plan = Plan(seconds=0.2, minimise=0.0, batches=2, grace=0.3)
    Crew([[0, 1, 2, 3], [4, 5], [6, 7]], 2, plan, take, serve).run()
    assert done == {**dict.fromkeys("01357", "same"), "2": "hung", "4": "died", "6": "invalid"}
    assert "sum(" not in failures["2"]["where"] and "in serve" in failures["2"]["where"]
    assert "exit code 3" in failures["4"]["where"]
