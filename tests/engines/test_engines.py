"""What the backends over an engine have in common: onnxrt and tvm give eager's results, with or
without eager's help.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.aot.programs import PROGRAMS, randn, runs_as_eager
from tests.engines.running import compiled
from tests.support.threads import together
from tracer_core.testing import compare, error_ratio

pytest.importorskip("onnxruntime")
pytest.importorskip("tvm")

ENGINES = {"onnxrt": ("onnx", "onnxruntime", "onnxscript"), "tvm": ("tvm",)}

#: TVM compiles for half a second an operator: CI runs every fifth program, ``-m slow`` all.
TRIED = [
    pytest.param(
        name,
        program,
        id=f"{name}-{program.name}",
        marks=[pytest.mark.slow] if name == "tvm" and n % 5 else [],
    )
    for name in ENGINES
    for n, program in enumerate(PROGRAMS)
]


@pytest.fixture(params=list(ENGINES))
def engine(request):
    return request.param


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize(("engine", "program"), TRIED)
def test_programs_are_right_whatever_part_of_them_it_runs(engine, program):
    runner, extra = compiled(engine, program.fn, *program.inputs())
    runs_as_eager(program, runner, extra)


@pytest.mark.full
def test_resnet18_is_one_graph_of_the_engine_and_as_exact_as_eager(engine):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    x = torch.randn(1, 3, 32, 32)
    runner, extra = compiled(engine, model, x)
    assert runner.fallback is None
    with torch.no_grad():
        exact, eager = model.double()(x.double()), model.float()(x)
        ours = runner([x, *extra])[0]
    assert error_ratio((exact,), (eager,), (ours,)) <= 3


def test_parameters_are_inputs_so_writing_to_them_is_seen(engine):
    weight = randn(5, 3)
    runner, extra = compiled(engine, lambda x: F.linear(x, weight).relu(), randn(4, 3))
    assert extra[0] is weight
    x = randn(4, 3)
    for _ in range(2):
        torch.testing.assert_close(runner([x, weight])[0], F.linear(x, weight).relu())
        weight.mul_(2)
    weight.data = randn(5, 3) + 1  # other memory
    torch.testing.assert_close(runner([x, weight])[0], F.linear(x, weight).relu())


def test_symbolic_sizes_are_kept(engine):
    weight = randn(6, 4)
    fn = lambda x: (torch.relu(x @ weight).t(), x.sum(1), x.view(-1) * 2)
    runner, extra = compiled(engine, fn, randn(4, 6), dynamic=True)
    assert runner.fallback is None
    for rows in (3, 5, 9):
        x = randn(rows, 6)
        compare(fn(x), tuple(runner([x, *extra])))


def test_a_model_of_changing_batch_sizes_compiles_twice_at_most(engine):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    ).eval()
    fast = tracer_core.compile(model, backend=engine, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 32, 7):
            x = torch.randn(batch, 8)
            torch.testing.assert_close(fast(x), model(x))
    assert [record.name for record in tracer_core.last_compile(fast)].count("trace") in (1, 2)


def test_one_build_serves_batches_from_one_on(engine):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
    ).eval()
    fast = tracer_core.compile(model, backend=engine)
    with torch.no_grad():
        for batch in (4, 1, 2, 32, 1):
            x = torch.randn(batch, 3, 96, 96)
            tracer_core.mark_dynamic(x, 0, min=1, max=32)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    assert [record.name for record in tracer_core.last_compile(fast)].count("trace") == 1


def test_results_are_the_callers_own(engine):
    runner, _ = compiled(engine, lambda x: (x + 1, x.view(3, 4), (x * 2).view(-1)), randn(4, 3))
    x = randn(4, 3)
    first = runner([x])
    kept = [value.clone() for value in first]
    second = runner([x * 5])
    assert {value.data_ptr() for value in first[::2]}.isdisjoint(
        value.data_ptr() for value in second[::2]
    )
    for value, before in zip(first, kept, strict=True):
        torch.testing.assert_close(value, before)
    first[0].add_(1)
    assert not torch.equal(x, first[0])


def test_random_numbers_stay_torchs(engine):
    runner, _ = compiled(engine, lambda x: F.dropout(x.relu(), 0.5, True) + 1, randn(30, 4))
    assert "random numbers" in runner.fallback.reason or "bernoulli" in runner.fallback.reason
    torch.manual_seed(3)
    ours = runner([torch.ones(30, 4)])[0]
    torch.manual_seed(3)
    torch.testing.assert_close(ours, F.dropout(torch.ones(30, 4), 0.5, True) + 1)


def test_results_with_gaps_between_parts_have_eagers_strides(engine):
    fn = lambda x: [part.cumsum(0) for part in (x @ x).split(2, 1)]
    runner, extra = compiled(engine, fn, randn(6, 6))
    x = randn(6, 6)
    compare(tuple(fn(x)), tuple(runner([x, *extra])))


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_are_other_shapes_of_values(engine, dynamic):
    weight = randn(6, 8)

    def program(x):
        flat = x.view(-1, 6) @ weight
        logits = flat.view(x.shape[0], 3, 8)
        turned = (flat + 1).view(x.shape[0], 3, 8).transpose(0, 1)
        return (
            logits,
            flat.relu().view(-1),
            logits.unsqueeze(0),
            flat,
            turned,
            (flat * 2).t().reshape(-1),
            x.view(-1),
        )

    runner, extra = compiled(engine, program, randn(4, 3, 6), dynamic=dynamic)
    assert runner.fallback is None
    for batch in (4, 2, 7) if dynamic else (4, 4):
        x = randn(batch, 3, 6)
        compare(program(x), tuple(runner([x, *extra])))


def test_threads_share_nothing(engine):
    runner, extra = compiled(engine, lambda x: torch.linalg.vector_norm(x @ x) + x, randn(40, 40))
    inputs = [randn(40, 40) * number for number in range(1, 9)]
    expected = [torch.linalg.vector_norm(x @ x) + x for x in inputs]
    results: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        for _ in range(20):
            results[number] = runner([inputs[number], *extra])[0]
            if not torch.allclose(results[number], expected[number], rtol=1e-4):
                return

    together(work)
    for number, result in results.items():
        torch.testing.assert_close(result, expected[number], rtol=1e-4, atol=1e-4)
    assert len(results) == 8


@torch.no_grad()
def test_infinities_and_nan(engine):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1.5, -2.5, 1e30, -1e30] * 2)

    def program(x):
        maxima = (
            x.relu(),
            x.clamp_min(0),
            x.clamp(max=1),
            x.clamp(-1, 1),
            torch.maximum(x, x.flip(0)),
            x.amax(),
        )
        return (
            *maxima,
            x.sign(),
            F.normalize(x, dim=0),
            x.view(4, 4).argmax(1),
            x != x,
            torch.where(x > 0, x, -x),
            x.exp(),
        )

    fast = tracer_core.compile(program, backend=engine)
    for ours, expected in zip(fast(x), program(x), strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)


def test_eight_threads_call_one_compiled_model(engine):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    ).eval()
    fast = tracer_core.compile(model, backend=engine, options={"freeze": True})
    inputs = [torch.randn(6, 32) * number for number in range(1, 9)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.no_grad():
            results = [
                fast(inputs[number]) for _ in range(30)
            ]  # kept: results must not share memory
        wrong.extend(
            number
            for result in results
            if not torch.allclose(result, expected[number], rtol=1e-4, atol=1e-5)
        )
        done.append(number)

    done: list[int] = []
    together(work)
    assert sorted(done) == list(range(8)) and not wrong


def test_it_is_listed_without_its_engine(engine):
    program = (
        "import sys, tracer_core\n"
        f"assert {engine!r} in tracer_core.list_backends()\n"
        f"loaded = [name for name in {ENGINES[engine]!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_its_packages_it_says_what_to_install(engine, monkeypatch):
    import importlib.util

    from tracer_core.plugin_api import resolve
    from tracer_core.registry.discovery import get

    real = importlib.util.find_spec
    missing = ENGINES[engine][-1 if engine == "tvm" else 1]
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == missing else real(name, *rest),
    )
    assert (
        f"pip install {'apache-tvm' if engine == 'tvm' else missing}"
        in resolve(get(engine).available)()
    )
