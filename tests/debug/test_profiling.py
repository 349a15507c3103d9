"""A compiled call in profilers: named rows, and no eager calls of a comparison."""

from __future__ import annotations

import cProfile
import linecache

import pytest
import torch
from torch.profiler import profile

import tracer_core
from tracer_core.debug import profiling


def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cos(x) * torch.sigmoid(y)


def sorted_sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    weights = (x @ w).softmax(-1)
    return torch.sort(weights)[0].sum(0) + weights.amax()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)


def rows_of(run) -> dict[str, int]:
    """The rows of a profile that are not ATen's."""
    with profile() as recorded:
        run()
    return {row.key: row.count for row in recorded.key_averages() if "::" not in row.key}


def line(function, offset: int = 0) -> str:
    return f"test_profiling.py:{function.__code__.co_firstlineno + offset}"


def test_the_profile_names_calls_and_graphs_with_the_users_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRACER_ALWAYS_COMPILED", raising=False)
    monkeypatch.setenv("TRACER_STRICT", "0")  # with it every call stays compiled
    fast = tracer_core.compile(gated, backend="inductor")
    x = torch.randn(8)
    fast(x, x)

    def run() -> None:
        for _ in range(60):
            fast(x, x)

    rows = rows_of(run)
    (graph,) = (
        name for name in rows if name.startswith("graph_") and name.endswith(f"({line(gated, 1)})")
    )
    # sixty calls are enough for a comparison with eager mode, whose calls would lack the graph
    assert (rows[f"tracer_core: gated ({line(gated)})"], rows[graph]) == (60, 60)
    assert rows[f"fused_cos_sigmoid_mul_0 ({line(gated, 1)})"] == 60


@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_and_operators_have_rows_in_the_order_of_the_program(dynamic: bool) -> None:
    fast = tracer_core.compile(sorted_sums, backend="inductor", dynamic=dynamic)
    x, w = torch.randn(6, 8), torch.randn(8, 8)
    expected = sorted_sums(x, w)
    fast(x, w)
    results = []
    rows = rows_of(lambda: results.append(fast(x, w)))
    torch.testing.assert_close(results[0], expected)
    matmul, *kernels = [name for name in rows if not name.startswith(("tracer_core", "graph_"))]
    assert matmul.startswith("aten.mm.default") and matmul.endswith(f"({line(sorted_sums, 1)})")
    assert f"aten.sort.default ({line(sorted_sums, 2)})" in kernels
    # two kernels are one call from Python
    assert any("softmax" in name and line(sorted_sums, 1) in name for name in kernels)
    assert any(name.startswith("fused_sum_") and line(sorted_sums, 2) in name for name in kernels)
    assert all(rows[name] == 1 for name in (matmul, *kernels))


def test_an_unprofiled_call_after_a_profiled_one_has_no_rows() -> None:
    fast = tracer_core.compile(sorted_sums, backend="inductor")
    x, w = torch.randn(6, 8), torch.randn(8, 8)
    fast(x, w)
    rows_of(lambda: fast(x, w))
    torch.testing.assert_close(fast(x, w), sorted_sums(x, w))
    assert rows_of(lambda: None) == {}


def test_a_module_and_its_backward() -> None:
    model = Model()
    fast = tracer_core.compile(model, backend="inductor")
    x = torch.randn(4, 8)
    fast(x).sum().backward()
    rows = rows_of(lambda: fast(x).sum().backward())
    assert f"tracer_core: Model ({line(Model.forward)})" in rows
    names = [name for name in rows if name.startswith(("fused_", "aten."))]
    matmuls = sum(rows[name] for name in names if name.startswith("aten.mm"))
    assert matmuls == 2 and len(names) == 3  # the backward's kernels belong to the forward's line
    assert all(name.endswith(f"({line(Model.forward, 1)})") for name in names)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_triton_kernels_have_rows() -> None:
    pytest.importorskip("triton")
    from inductor_backend.ir.target import interpreted
    from inductor_backend.runtime.cuda.interpreter import interpreting
    from tests.inductor.compiling import compiled

    if not interpreting():
        pytest.skip("Triton compiles for a GPU in this process")
    x, w = torch.randn(6, 8), torch.randn(8, 8)
    with interpreted():
        result = compiled(sorted_sums, x, w)
    expected = result(x, w)
    actual = []
    rows = rows_of(lambda: actual.extend(result(x, w)))
    torch.testing.assert_close(actual, expected)
    kernels = [name for name in rows if name.startswith("fused_")]
    assert len(kernels) > 2 and all("(test_profiling.py:" in name for name in kernels)
    assert f"aten.sort.default ({line(sorted_sums, 2)})" in rows


def test_on_a_machine_with_cuda_rows_are_nvtx_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[str | None] = []
    monkeypatch.setattr(profiling, "_has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: ranges.append(None))
    fast = tracer_core.compile(gated, backend="inductor")
    x = torch.randn(8)
    fast(x, x)
    assert ranges == []
    rows = rows_of(lambda: fast(x, x))
    assert [name for name in ranges if name is not None] == list(rows)
    assert ranges[-3:] == [None] * 3
    del ranges[:]
    monkeypatch.setattr(profiling, "is_emitting_nvtx", lambda: True)
    rows_of(lambda: fast(x, x))
    assert ranges == []  # PyTorch makes a range of each row


def test_frames_of_generated_code_have_source() -> None:
    fast = tracer_core.compile(sorted_sums, backend="inductor")
    x, w = torch.randn(6, 8), torch.randn(8, 8)
    fast(x, w)
    recorded = cProfile.Profile()
    recorded.runcall(fast, x, w)
    codes = [row.code for row in recorded.getstats() if not isinstance(row.code, str)]
    generated = [code for code in codes if code.co_filename.startswith("<tracer_core ")]
    assert any("inductor graph_" in code.co_filename for code in generated)
    for code in generated:
        assert f"def {code.co_name}(" in linecache.getline(code.co_filename, code.co_firstlineno)
