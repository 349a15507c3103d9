"""Random programs of views and writes are the same lowered, whole or in parts."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from tests.aot.random_programs import inputs_of, program_of
from tests.aot.test_lower import interpreter
from tracer_core.dispatch.compile_graph import compile_graph
from tracer_core.options import CompileConfig
from tracer_core.plugin_api import Backend
from tracer_core.testing import compare, compare_aliasing, torch_graph

SEEDS = range(120)


def run(seed: int, backend: Backend) -> str | None:
    """Compares two calls; why the program ran eagerly, if it did."""
    program, inputs = program_of(seed), inputs_of(seed)
    with torch.no_grad():
        captured = torch_graph(program, copy.deepcopy(inputs))
        runner = compile_graph(captured, CompileConfig(backend))
        extra = captured.real_inputs[len(inputs) :]
        for _ in range(2):
            ours, eager = inputs_of(seed), inputs_of(seed)
            torch.manual_seed(1)
            expected = program(*eager)
            state = torch.get_rng_state()
            torch.manual_seed(1)
            actual = tuple(runner([*ours, *extra]))
            compare(expected, actual)
            compare(eager, ours, path="inputs")
            compare_aliasing([eager, expected], [ours, actual])
            assert torch.equal(state, torch.get_rng_state())
    fallback = runner.fallback
    return None if fallback is None else f"{fallback.kind}: {fallback.reason}"


@pytest.mark.sweep(keep=40)
@pytest.mark.parametrize("seed", SEEDS)
def test_lowered(seed):
    run(seed, Backend(name="whole", compile=interpreter))


@pytest.mark.sweep(keep=40)
@pytest.mark.parametrize("seed", SEEDS)
def test_in_parts(seed):
    choice = random.Random(seed)
    decided: dict[torch.fx.Node, bool] = {}
    supports = lambda node: "by chance" if decided.setdefault(node, choice.random() < 0.4) else None
    run(seed, Backend(name="parts", compile=interpreter, supports=supports))


def test_most_of_them_have_a_functional_form():
    backend = Backend(name="whole", compile=interpreter)
    eager = [reason for seed in range(60) if (reason := run(seed, backend))]
    assert len(eager) <= 6, eager
