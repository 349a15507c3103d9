"""`tracer_core.set_stance` and `torch.compiler.set_stance`: what calls that no cache entry fits do."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.counting_backend import CountingBackend
from tracer_core.errors import OptionError, RecompileError

SETTERS = {"ours": tracer_core.set_stance, "torch": torch.compiler.set_stance}


@pytest.fixture(params=SETTERS)
def set_stance(request):
    yield SETTERS[request.param]
    tracer_core.set_stance("default"), torch.compiler.set_stance("default")


def compiled() -> tuple:
    """Returns a compiled function and the counter of its captures."""
    counter = CountingBackend()
    return tracer_core.compile(lambda x: x * 2 + 1, backend=counter, dynamic=False), counter


def test_force_eager(set_stance):
    fast, counter = compiled()
    x = torch.randn(3)
    with set_stance("force_eager"):
        assert torch.equal(fast(x), x * 2 + 1)
        assert "set_stance('force_eager')" in tracer_core.last_compile(fast)[0].text
    assert counter.n_graphs == 0
    fast(x)
    assert counter.n_graphs == 1


def test_force_eager_runs_no_entry_from_before(set_stance):
    seen: list[bool] = []

    @tracer_core.assume_constant_result
    def note():
        seen.append(True)

    fast = tracer_core.compile(lambda x: (note(), x * 2)[1], backend="eager")
    x = torch.randn(3)
    fast(x), fast(x)
    assert len(seen) == 1
    set_stance("force_eager")
    fast(x)
    assert len(seen) == 2
    set_stance("default")
    fast(x)
    assert len(seen) == 2


def test_eager_on_recompile(set_stance):
    fast, counter = compiled()
    fast(torch.randn(3))
    with set_stance("eager_on_recompile"):
        for size in (4, 3, 5):
            x = torch.randn(size)
            assert torch.equal(fast(x), x * 2 + 1)
    assert counter.n_graphs == 1
    fast(torch.randn(4))
    assert counter.n_graphs == 2


def test_fail_on_recompile(set_stance):
    fast, counter = compiled()
    fast(torch.randn(3))
    with set_stance("fail_on_recompile"):
        fast(torch.randn(3))
        with pytest.raises(RecompileError, match=r"forbids: x\.shape == \(3,\), but"):
            fast(torch.randn(4))
        with pytest.raises(RecompileError, match="nothing was captured for such a call"):
            compiled()[0](torch.randn(4))
    assert counter.n_graphs == 1


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_the_second_call_compiles_with_sizes_and_numbers_of_the_first(stance):
    counter = CountingBackend()
    fast = tracer_core.compile(lambda x, k: x * k + 1, backend=counter)
    with torch.compiler.set_stance(stance):
        for calls, (size, k) in enumerate([(3, 2.5), (5, 3.5), (7, 4.5), (9, 0.5)]):
            x = torch.randn(size)
            assert torch.equal(fast(x, k), x * k + 1)
            assert counter.n_graphs == min(calls, 1)


def test_regions_after_a_break_obey(set_stance):
    def program(x):
        x = x + 1
        tracer_core.graph_break()
        return x * 2

    fast = tracer_core.compile(program, backend="eager")
    with set_stance("eager_on_recompile"):
        assert fast(torch.zeros(2)).tolist() == [2.0, 2.0]
    assert tracer_core.last_compile(fast) == ()


def test_as_a_decorator(set_stance):
    fast, counter = compiled()

    @set_stance("force_eager")
    def reference(x):
        return fast(x)

    reference(torch.randn(3)), reference(torch.randn(3))
    assert counter.n_graphs == 0
    fast(torch.randn(3))
    assert counter.n_graphs == 1


def test_ours_counts_before_torch_s():
    fast, counter = compiled()
    with torch.compiler.set_stance("fail_on_recompile"), tracer_core.set_stance("force_eager"):
        fast(torch.randn(3))
    assert counter.n_graphs == 0


def test_an_unknown_stance():
    with pytest.raises(OptionError, match=r"'force_eagre' \(did you mean 'force_eager'"):
        tracer_core.set_stance("force_eagre")
