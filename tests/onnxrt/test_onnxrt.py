"""The backend onnxrt: a second, different consumer of the hook specification."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F

from tests.aten.programs import PROGRAMS, randn, runs_as_eager
from tracer_core.backends import get
from tracer_core.dispatch import compile_graph, fallback_of
from tracer_core.errors import BackendError, OptionError
from tracer_core.testing import (
    compare,
    conformance,
    error_ratio,
    table,
    torch_graph,
)
from tracer_core.validation import build_config

pytest.importorskip("onnxruntime")


def compiled(fn, *inputs, dynamic=False, **options):
    with torch.no_grad():
        captured = torch_graph(fn, inputs, dynamic=dynamic)
        runner = compile_graph(captured, build_config(backend="onnxrt", options=options or None))
    return runner, list(captured.real_inputs[len(inputs) :])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_programs_are_right_whatever_part_of_them_it_runs(program):
    runner, extra = compiled(program.fn, *program.inputs())
    runs_as_eager(program, runner, extra)


def test_it_conforms():
    rows = conformance("onnxrt")
    bad = [row for row in rows if row.status not in ("ok", "partly")]
    assert not bad, table(bad)
    whole = [row for row in rows if row.status == "ok" and row.dtype is torch.float32]
    assert len(whole) > 100


def test_resnet18_is_one_model_and_as_exact_as_eager():
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    x = torch.randn(1, 3, 64, 64)
    runner, extra = compiled(model, x)
    assert fallback_of(runner) is None
    with torch.no_grad():
        truth, eager = model.double()(x.double()), model.float()(x)
        ours = runner([x, *extra])[0]
    assert error_ratio((truth,), (eager,), (ours,)) <= 3


def test_parameters_are_inputs_so_writing_to_them_is_seen():
    weight = randn(5, 3)
    runner, extra = compiled(lambda x: F.linear(x, weight).relu(), randn(4, 3))
    assert extra[0] is weight
    x = randn(4, 3)
    for _ in range(2):
        torch.testing.assert_close(runner([x, weight])[0], F.linear(x, weight).relu())
        weight.mul_(2)
    weight.data = randn(5, 3) + 1  # other memory
    torch.testing.assert_close(runner([x, weight])[0], F.linear(x, weight).relu())


@pytest.mark.parametrize("rows", [3, 5, 9])
def test_symbolic_sizes_are_kept(rows):
    weight = randn(6, 4)
    fn = lambda x: (torch.relu(x @ weight).t(), x.sum(1), x.view(-1) * 2)  # noqa: E731
    runner, extra = compiled(fn, randn(4, 6), dynamic=True)
    assert fallback_of(runner) is None
    x = randn(rows, 6)
    compare(fn(x), tuple(runner([x, *extra])))


def test_symbolic_sizes_make_one_model(monkeypatch):
    from onnxrt_backend import session

    made = []
    real = session.session
    monkeypatch.setattr(session, "session", lambda *args: made.append(1) or real(*args))
    runner, extra = compiled(lambda x: x.relu() + 1, randn(4, 6), dynamic=True)
    for rows in (4, 2, 7):
        runner([randn(rows, 6), *extra])
    assert len(made) == 1


def test_outputs_are_not_copied_and_not_reused():
    runner, _ = compiled(lambda x: x + 1, randn(4, 3))
    x = randn(4, 3)
    first = runner([x])[0]
    kept = first.clone()
    second = runner([x * 5])[0]
    assert first.data_ptr() != second.data_ptr()
    torch.testing.assert_close(first, kept)


def test_random_numbers_stay_torchs():
    runner, _ = compiled(lambda x: F.dropout(x.relu(), 0.5, True) + 1, randn(30, 4))
    assert "random numbers" in fallback_of(runner).reason
    torch.manual_seed(3)
    ours = runner([torch.ones(30, 4)])[0]
    torch.manual_seed(3)
    torch.testing.assert_close(ours, F.dropout(torch.ones(30, 4), 0.5, True) + 1)


def test_threads_do_not_share_a_binding():
    runner, extra = compiled(lambda x: torch.linalg.vector_norm(x @ x) + x, randn(40, 40))
    inputs = [randn(40, 40) * number for number in range(1, 9)]
    expected = [torch.linalg.vector_norm(x @ x) + x for x in inputs]
    results: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        for _ in range(20):
            results[number] = runner([inputs[number], *extra])[0]
            if not torch.allclose(results[number], expected[number], rtol=1e-4):
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in results.items():
        torch.testing.assert_close(result, expected[number], rtol=1e-4, atol=1e-4)
    assert len(results) == 8


def test_options():
    runner, _ = compiled(lambda x: x + 1, randn(3), intra_op_threads=1, graph_optimization_level="disable")
    torch.testing.assert_close(runner([torch.ones(3)])[0], torch.full((3,), 2.0))
    with pytest.raises(OptionError, match="intra_op_threads"):
        build_config(backend="onnxrt", options={"threads": 1})
    with pytest.raises(BackendError, match="NoSuchProvider is not in this onnxruntime, which has"):
        build_config(backend="onnxrt", options={"providers": ("NoSuchProvider",)})


def test_it_is_listed_without_its_engine():
    program = (
        "import sys, tracer_core\n"
        "assert 'onnxrt' in tracer_core.list_backends()\n"
        "loaded = [name for name in ('onnx', 'onnxruntime', 'onnxscript') if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_its_packages_it_says_what_to_install(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else real(name, *rest)
    )
    assert "pip install onnxruntime" in get("onnxrt").available()


def test_an_operator_that_onnx_runtime_lacks_is_named():
    runner, _ = compiled(lambda x: F.gelu(x) + 1, randn(3).double())
    assert "aten.gelu.default (1x: ONNX Runtime refuses it" in fallback_of(runner).reason
    torch.testing.assert_close(runner([torch.ones(3).double()])[0], F.gelu(torch.ones(3).double()) + 1)
