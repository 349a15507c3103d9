"""Branches on tensors that went the same way in several calls are expected to go that way again: one
graph, which checks it, and the program in eager mode where it does not hold."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer_core
from tracer_core.contract.backend import Backend
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.fx_capture.data_errors import ASSERTIONS
from tracer_core.limits import MAX_PROFILED_CALLS, MAX_PROFILED_OUTCOMES, MIN_EQUAL_PROFILES
from tracer_core.markers import compiled as behind
from tracer_core.plugin_api import Training
from tracer_core.trace import assertions

pytestmark = pytest.mark.usefixtures("may_leave_graphs")


@pytest.fixture
def without_foresight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call shows nothing (`test_speculated_branches.py` has the others)."""
    monkeypatch.setattr(assertions, "MAX_SPECULATED_BRANCHES", 0)


RUNS: list[str] = []


def noting() -> Backend:
    """A backend that is said to fuse, and notes each run of a graph."""

    def compile_graph(graph: torch.fx.GraphModule, spec: Any) -> Callable[[list[Any]], Any]:
        def run(inputs: list[Any]) -> Any:
            RUNS.append("graph")
            return graph(*inputs)

        return run

    return Backend(
        name="noting", compile=compile_graph, fuses=True, shapes="symbolic",
        training=Training.FORWARD_BACKWARD, numbers="inputs",
    )  # fmt: skip


BACKENDS = [pytest.param(noting, id="noting"), pytest.param(lambda: "inductor", id="inductor")]


def inner(fast: Any) -> CompiledFunction:
    actual = behind(fast)
    assert actual is not None and isinstance(actual.function, CompiledFunction)
    return actual.function


def runs(call: Callable[[], Any]) -> int:
    """How many graphs one call runs."""
    RUNS.clear()
    call()
    return len(RUNS)


def breaks(fast: Any) -> int:
    return len(inner(fast).breaks)


def captures(fast: Any) -> int:
    return inner(fast).runtime.tiering.n_captures


def kinked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2
    if z.sum() > 0:
        z = z + y
    if not torch.equal(x, y):
        z = z * 3
    if z.abs().max() > 100 or z.min() < -100:
        z = z / 2
    return z.sin() if z.isnan().any() else z.cos()


def usual() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(5) + 0.1, torch.randn(5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_after_some_calls_and_eager_s_results_always(backend: Any) -> None:
    fast = tracer_core.compile(kinked, backend=backend())
    unusual = random.Random(3)
    for n in range(5 * MIN_EQUAL_PROFILES):
        x, y = usual()
        if n > 2 * MIN_EQUAL_PROFILES and unusual.random() < 0.3:
            x, y = [(-x, y), (x, x.clone()), (x * 1e3, y), (x * float("nan"), y)][n % 4]
        torch.testing.assert_close(fast(x, y), kinked(x, y), equal_nan=True)


@pytest.mark.usefixtures("without_foresight")
def test_how_many_graphs_run() -> None:
    fast = tracer_core.compile(kinked, backend=noting())
    assert runs(lambda: fast(*usual())) > 3
    for _ in range(MIN_EQUAL_PROFILES - 1):
        fast(*usual())
    before = captures(fast)
    assert [runs(lambda: fast(*usual())) for _ in range(4)] == [1] * 4
    assert captures(fast) == before + 1
    x, y = usual()
    torch.testing.assert_close(fast(-x, y), kinked(-x, y))
    assert captures(fast) == before + 1


@pytest.mark.usefixtures("without_foresight")
def test_what_does_not_hold_any_more_is_expected_no_more() -> None:
    fast = tracer_core.compile(kinked, backend=noting())
    for _ in range(MIN_EQUAL_PROFILES + 2):
        fast(*usual())
    assert runs(lambda: fast(*usual())) == 1
    for _ in range(8):
        x, y = usual()
        torch.testing.assert_close(fast(-x, y), kinked(-x, y))
    assert runs(lambda: fast(-x, y)) > 3
    assert (
        ASSERTIONS not in inner(fast).runtime.regions.starts[2,].specializations.refused
    )  # the program's own stay


def test_effects_happen_once_and_in_order() -> None:
    seen: list[Any] = []

    def program(x: torch.Tensor, log: dict[str, int]) -> torch.Tensor:
        log["calls"] = log.get("calls", 0) + 1
        seen.append("before")
        if x.max() > 0:
            seen.append("positive")
            x = x + 1
        else:
            seen.append("negative")
        if x.min() > 0:
            seen.append("all")
        log["ends"] = log.get("ends", 0) + 1
        return x * len(seen)

    fast = tracer_core.compile(program, backend=noting())
    logs: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for n in range(4 * MIN_EQUAL_PROFILES):
        x = torch.randn(3) if n > 2 * MIN_EQUAL_PROFILES else torch.rand(3) + 0.1
        seen.clear()
        want = program(x, logs[0])
        items = list(seen)
        seen.clear()
        torch.testing.assert_close(fast(x, logs[1]), want)
        assert seen == items
        assert logs[1] == logs[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_drawn_once(backend: Any) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(4)
        y = torch.nn.functional.dropout(x, 0.5) + noise
        if x.sum() > 0:
            y = y + torch.randn(4)
        return y, torch.rand(2)

    fast = tracer_core.compile(program, backend=backend())
    for n in range(3 * MIN_EQUAL_PROFILES):
        x = torch.full((4,), -1.0 if n > MIN_EQUAL_PROFILES + 2 and n % 3 == 0 else 1.0)
        results, states = [], []
        for call in (program, fast):
            torch.manual_seed(n)
            results.append(call(x))
            states.append(torch.get_rng_state())
        torch.testing.assert_close(results[0], results[1])
        assert torch.equal(*states)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: Any) -> None:
    net = torch.nn.Linear(3, 2).double()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = net(x)
        loss = y.pow(2).mean()
        if loss > 100:
            loss = loss.sqrt()
        if torch.any(y != y):
            return loss * 0
        return loss + y.sum()

    fast = tracer_core.compile(program, backend=backend())
    for n in range(3 * MIN_EQUAL_PROFILES):
        x = torch.randn(4, 3).double() * (1e3 if n > MIN_EQUAL_PROFILES + 2 and n % 3 == 0 else 1)
        actual = []
        for call in (program, fast):
            inputs = x.clone().requires_grad_()
            net.zero_grad()
            loss = call(inputs)
            loss.backward()
            actual.append((loss.detach(), inputs.grad, net.weight.grad, net.bias.grad))
        torch.testing.assert_close(actual[1], actual[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_that_only_the_branch_makes_valid(backend: Any) -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        if at.max() < 4:
            return x[at] * 2
        return x[at.clamp(max=3)] + 1

    fast = tracer_core.compile(program, backend=backend())
    x = torch.randn(4)
    for n in range(2 * MIN_EQUAL_PROFILES):
        at = torch.tensor([0, 3, 2 if n < MIN_EQUAL_PROFILES + 2 or n % 2 else 1000])
        torch.testing.assert_close(fast(x, at), program(x, at))


@pytest.mark.usefixtures("without_foresight")
def test_branches_that_go_both_ways_are_not_expected() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        return x + 1 if x.sum() > 0 else x - 1

    fast = tracer_core.compile(program, backend=noting())
    for n in range(2 * MAX_PROFILED_CALLS):
        x = torch.full((2,), 1.0 if n % 3 else -1.0)
        torch.testing.assert_close(fast(x), program(x))
        if n == 3:
            before = captures(fast)
    assert captures(fast) == before
    assert inner(fast).runtime.regions.starts[1,].profile.is_over


@pytest.mark.usefixtures("without_foresight")
def test_the_first_branches_are_expected_if_later_ones_differ() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if x[0] > 0:
            x = x + 1
        if x[1] > 0:
            x = x.sin()
        return x + 1 if x[2] > 0 else x - 1

    fast = tracer_core.compile(program, backend=noting())

    def given(n: int) -> torch.Tensor:
        return torch.tensor([1.0, 2.0, 0.5 if n % 2 else -0.5])

    counts = []
    for n in range(2 * MIN_EQUAL_PROFILES):
        x = given(n)
        torch.testing.assert_close(fast(x), program(x))
        counts.append(runs(lambda x=x: fast(x)))
    assert counts[0] == 4
    assert counts[-1] == 2


def test_a_loop_until_it_converges() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        steps = 0
        while x.abs().max() > 1e-2:
            x = x / 2
            steps += 1
        return x, steps

    fast = tracer_core.compile(program, backend=noting())
    for n in range(4 * MIN_EQUAL_PROFILES):
        x = torch.full((2,), 1.0 if n < 2 * MIN_EQUAL_PROFILES else float(2 ** (n % 5)))
        (want, wanted), (got, steps) = program(x), fast(x)
        assert torch.equal(got, want)
        assert steps == wanted
    long = torch.full((2,), 2.0 ** (MAX_PROFILED_OUTCOMES + 10))
    assert fast(long)[1] == program(long)[1]


@pytest.mark.parametrize("first", [True, False])
def test_inputs_that_are_mutated(first: bool) -> None:
    """A graph that mutates an input checks nothing: the breaks stay."""

    def program(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        if first:
            total.add_(x)
        if x.sum() > 0:
            x = x * 2
        if not first:
            total.add_(x)
        return x + total

    fast = tracer_core.compile(program, backend=noting())
    totals = torch.zeros(2), torch.zeros(2)
    for n in range(3 * MIN_EQUAL_PROFILES):
        x = torch.full((2,), -1.0 if n > MIN_EQUAL_PROFILES + 2 and n % 3 == 0 else 1.0)
        torch.testing.assert_close(fast(x, totals[1]), program(x, totals[0]))
        assert torch.equal(*totals)


def test_an_exception_on_the_other_way() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        y = x + 1
        raise ValueError(f"{y.sum().item():.1f} is too little")

    def program(x: torch.Tensor) -> Any:
        try:
            return checked(x).cos()
        except ValueError as error:
            return str(error)

    for function in (checked, program):
        fast = tracer_core.compile(function, backend=noting())
        for n in range(3 * MIN_EQUAL_PROFILES):
            x = torch.full((2,), -1.0 if n > MIN_EQUAL_PROFILES + 2 and n % 2 else 1.0)
            actual = []
            for call in (function, fast):
                try:
                    actual.append(call(x))
                except ValueError as error:
                    actual.append((type(error), str(error)))
            assert type(actual[0]) is type(actual[1])
            same = torch.equal if isinstance(actual[0], torch.Tensor) else (lambda a, b: a == b)
            assert same(actual[0], actual[1])


def test_modules_that_go_different_ways() -> None:
    class Gate(torch.nn.Module):
        def __init__(self, limit: float) -> None:
            super().__init__()
            self.register_buffer("limit", torch.tensor(limit))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * 2
            return x.sin() if x.sum() < self.limit else x.cos()

    def program(gate: Gate, x: torch.Tensor) -> torch.Tensor:
        return gate(x) + 1

    gates = Gate(100.0), Gate(-100.0)
    fast = tracer_core.compile(program, backend=noting())
    for n in range(6 * MIN_EQUAL_PROFILES):
        gate = gates[0] if n < 2 * MIN_EQUAL_PROFILES else gates[n % 2]
        x = torch.randn(3)
        torch.testing.assert_close(fast(gate, x), program(gate, x))


@pytest.mark.parametrize("off", ["fullgraph", "strict", "eager", "cuda"])
def test_where_nothing_is_expected(off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        return x + 1 if x.sum() > 0 else x - 1

    if off == "strict":
        monkeypatch.setenv("TRACER_STRICT", "1")
    if off == "cuda":
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    backend: Any = "eager" if off == "eager" else noting()
    fast = tracer_core.compile(program, backend=backend, fullgraph=off == "fullgraph")
    if off == "fullgraph":
        for _ in range(MIN_EQUAL_PROFILES + 2):
            with pytest.raises(tracer_core.errors.GraphBreakError, match="branch on a tensor"):
                fast(torch.ones(2))
        return
    fast(torch.ones(2))
    before = captures(fast)
    for _ in range(2 * MIN_EQUAL_PROFILES):
        assert torch.equal(fast(torch.ones(2)), torch.full((2,), 3.0))
    assert captures(fast) == before


def test_torch_equal_of_other_shapes_breaks_nothing() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, torch.equal(x, y), x[0].equal(y), torch.equal(x * 1, (x + y[:1])[:1])

    fast = tracer_core.compile(program, backend=noting(), fullgraph=True)
    for n in (2, 3, 4, 4):
        x, y = torch.randn(n, 2), torch.randn(n + 1, 2)
        want, got = program(x, y), fast(x, y)
        assert torch.equal(got[0], want[0])
        assert got[1:] == want[1:] == (False, False, False)


@pytest.mark.parametrize(
    "other", [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.int32)]
)
def test_torch_equal_of_other_dtypes_raises_as_in_eager_mode(other: torch.Tensor) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, torch.equal(x, y)

    fast = tracer_core.compile(program, backend=noting())
    actual = []
    for call in (program, fast, fast):
        try:
            actual.append(call(torch.ones(2), other)[1])
        except RuntimeError as error:
            actual.append(str(error))
    assert actual[0] == actual[1] == actual[2]


def test_torch_equal_of_a_tensor_with_nan() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x + 1
        return (y, "same") if torch.equal(y, y) and torch.equal(x, x + 0) else (y, "different")

    fast = tracer_core.compile(program, backend=noting())
    for n in range(3 * MIN_EQUAL_PROFILES):
        x = torch.tensor([1.0, float("nan") if n > MIN_EQUAL_PROFILES + 2 and n % 2 else 2.0])
        assert fast(x)[1] == program(x)[1]


def test_graphs_that_have_no_lowered_form_together_stay_apart() -> None:
    """The size that depends on data and the grad mode are in one graph without the branch."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0] * 2
        if x.sum() > -100:
            y = y + 1
        with torch.no_grad():
            z = x * 3
        return y.sum() * z.sum()

    fast = tracer_core.compile(program, backend="inductor")
    for _ in range(2 * MIN_EQUAL_PROFILES):
        x = torch.cat([torch.rand(3) + 0.1, -torch.rand(3)])
        torch.testing.assert_close(fast(x), program(x))
    assert not inner(fast).runtime.regions.starts[1,].specializations.outcomes
    runners = [record.runner for record in inner(fast).records]
    assert not any(runner is not None and runner.fallback is not None
                   and runner.fallback.kind == "lowering" for runner in runners)  # fmt: skip


class Fails(RuntimeError):
    """What an engine raises."""


def failing_on_both(graph: torch.fx.GraphModule, spec: Any) -> Callable[[list[Any]], Any]:
    names = {str(node.target) for node in graph.graph.nodes}
    if any("sin" in name for name in names) and any("cos" in name for name in names):
        raise Fails("the engine takes no graph with both")
    return noting().compile(graph, spec)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("speculation", [True, False])
def test_graphs_that_a_backend_fails_on_together_stay_apart(
    monkeypatch: pytest.MonkeyPatch, speculation: bool, request: pytest.FixtureRequest
) -> None:
    """The graph behind the branch has an operator that the backend does not take beside one before it."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        if y.sum() > 0:
            y = y.cos() + 1
        return y

    if not speculation:
        request.getfixturevalue("without_foresight")
    monkeypatch.setenv("TRACER_STRICT", "0")
    backend = dataclasses.replace(noting(), compile=failing_on_both)
    fast = tracer_core.compile(program, backend=backend)
    for _ in range(2 * MIN_EQUAL_PROFILES):
        x = torch.rand(4)
        torch.testing.assert_close(fast(x), program(x))
    assert runs(lambda: fast(x)) >= 2  # by the backend
    kept = inner(fast).runtime.regions.starts[1,].entries
    fallbacks = [record.runner.fallback for record in inner(fast).records
                 if record.runner is not None and record.entry_function in kept]  # fmt: skip
    assert not any(fallbacks)
