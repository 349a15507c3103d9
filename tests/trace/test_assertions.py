"""What programs assert of a tensor's values is checked by the graph: no break while it holds, the
program's own exception where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import (
    Bernoulli,
    Categorical,
    Gamma,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    kl,
    kl_divergence,
)

import tracer_core
from tests.support.comparison import assert_same_calls
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.markers import compiled as behind

BACKENDS = ("eager", "aten_eager", "inductor")


def captured(function: Callable[..., Any], backend: str = "eager", **settings: Any) -> Any:
    return tracer_core.compile(function, backend=backend, **settings)


def breaks(fast: Any) -> int:
    actual = behind(fast)
    assert actual is not None and isinstance(actual.function, CompiledFunction)
    return len(actual.function.breaks)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        # pytest writes addresses into what its assert statements say
        return type(error), "" if isinstance(error, AssertionError) else str(error)


def alike(fast: Any, eager: Any, *arguments: tuple[Any, ...]) -> None:
    """Both give the same results or raise the same, call after call."""
    for args in arguments:
        assert_same_calls(fast, eager, *args, calls=1)


def raises_if(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if (x < 0).any():
        raise ValueError(f"negative: {x.min():.1f}")
    return y + 1


def raises_unless(x: torch.Tensor) -> torch.Tensor:
    if not (x >= 0).all():
        raise ValueError("negative")
    return x.sqrt()


def asserts(x: torch.Tensor) -> torch.Tensor:
    assert x.sum() >= 0, "negative sum"
    assert (x >= 0).all()
    return x.sqrt()


def in_a_callee(x: torch.Tensor) -> torch.Tensor:
    def check(value: torch.Tensor) -> None:
        if value.isnan().any() or not torch._is_all_true(value >= 0):
            kind = "NaN" if value.isnan().any() else "sign"
            raise ArithmeticError(kind)

    check(x)
    return x.sqrt() + 1


def of_one_element(x: torch.Tensor) -> torch.Tensor:
    if x[:1] < 0:
        raise ValueError("first")
    return x * 3


def of_a_number(x: torch.Tensor) -> torch.Tensor:
    assert x.sum()  # any number but zero
    return x + 1


def by_a_function(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x >= 0).all(), "negative")
    torch._assert_async(x.sum() >= 0)
    torch._assert_async(input=x.isfinite().all(), assert_msg="not finite")
    return x.sqrt()


@pytest.mark.sweep(keep=9)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [raises_if, raises_unless, asserts, in_a_callee, of_one_element, of_a_number, by_a_function],
)
def test_one_graph_and_eager_s_exceptions(program: Any, backend: str) -> None:
    fast = captured(program, backend)
    good, bad = torch.tensor([1.0, 4.0]), torch.tensor([-1.0, 1.0])
    nothing = torch.tensor([float("nan"), 1.0])
    alike(fast, program, (good,), (bad,), (good + 1,), (nothing,), (good,))
    assert breaks(fast) == 0


def test_a_graph_with_such_a_function_is_compiled_whole(caplog: pytest.LogCaptureFixture) -> None:
    fast = captured(by_a_function, "inductor", fullgraph=True)
    alike(fast, by_a_function, (torch.ones(3),), (torch.ones(3) * 2,))
    assert "runs eagerly" not in caplog.text


def test_fullgraph_takes_assertions() -> None:
    fast = captured(raises_if, fullgraph=True)
    alike(fast, raises_if, (torch.ones(3),), (-torch.ones(3),), (torch.ones(3),))


def test_effects_before_a_failed_assertion_happen_once() -> None:
    def program(x: torch.Tensor, seen: list[str]) -> torch.Tensor:
        seen.append("before")
        if (x < 0).any():
            raise ValueError("negative")
        seen.append("after")
        return x + torch.rand(3)

    fast = captured(program)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        ours: list[str] = []
        theirs: list[str] = []
        torch.manual_seed(0)
        item = outcome(lambda x=x, seen=ours: fast(x, seen))
        ours_next = torch.rand(1)
        torch.manual_seed(0)
        other = outcome(lambda x=x, seen=theirs: program(x, seen))
        assert ours == theirs
        assert torch.equal(ours_next, torch.rand(1))
        assert type(item) is type(other)
    assert breaks(fast) == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [True, False])
def test_a_mutated_input_is_mutated_as_far_as_in_eager_mode(backend: str, first: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if first:
            x.add_(1)
        if (x < 0).any():
            raise ValueError("negative")
        return x.mul_(2) + 1

    fast = captured(program, backend)
    for value in (1.0, -5.0, 2.0, -7.0):
        ours, theirs = torch.full((3,), value), torch.full((3,), value)
        item, other = outcome(lambda x=ours: fast(x)), outcome(lambda x=theirs: program(x))
        assert torch.equal(ours, theirs)
        assert type(item) is type(other)


def test_an_exception_that_the_program_catches() -> None:
    """It goes on where the assertion fails: once it has done so often, the graph ends there."""

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            if (x < 0).any():
                raise ValueError("negative")
            return x + 1
        except ValueError:
            return x - 1

    fast = captured(program)
    alike(fast, program, *[(torch.full((3,), (-1.0) ** n),) for n in range(20)])
    assert breaks(fast) > 0  # it was captured again, with the branch as a break
    before = len(behind(fast).function.records)  # type: ignore[union-attr]
    alike(fast, program, *[(torch.full((3,), (-1.0) ** n),) for n in range(4)])
    assert len(behind(fast).function.records) == before  # type: ignore[union-attr]


def test_a_branch_both_ways_of_which_go_on_breaks() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            x = x.abs()
        return x + 1

    fast = captured(program)
    alike(fast, program, (torch.ones(3),), (-torch.ones(3),))
    assert breaks(fast) > 0


def test_a_break_behind_an_assertion_runs_only_if_it_holds() -> None:
    said: list[str] = []

    @tracer_core.disable
    def say() -> None:
        said.append("said")

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if (x < 0).any():
            raise ValueError("negative")
        say()
        return y * 2

    fast = captured(program)
    alike(fast, program, (torch.ones(3),), (-torch.ones(3),), (torch.ones(3),))
    assert said == ["said"] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        if not (y > 0).all():
            raise ValueError("sign")
        return y.log().sum()

    fast = captured(program, backend)
    x = torch.rand(4) + 0.5
    w = torch.rand(4, requires_grad=True)
    fast(x, w).backward()
    ours = w.grad
    exact = w.detach().double().requires_grad_()
    program(x.double(), exact).backward()
    torch.testing.assert_close(ours, exact.grad.float())
    with pytest.raises(ValueError, match="sign"):
        fast(-x, w)
    assert breaks(fast) == 0


def test_a_whole_step() -> None:
    """The optimizer writes to the parameters: the graph ends at the assertion as it did."""

    def made() -> tuple[Any, Any, torch.Tensor]:
        torch.manual_seed(0)
        w = torch.rand(4, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (x * w).square().sum()
            if not loss.isfinite():
                raise ValueError("diverged")
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, captured(step), w

    step, _, theirs = made()
    _, fast, ours = made()
    for x in (torch.ones(4), torch.full((4,), 2.0), torch.full((4,), float("inf")), torch.ones(4)):
        item, other = outcome(lambda x=x: fast(x)), outcome(lambda x=x: step(x))
        assert type(item) is type(other)
        torch.testing.assert_close(ours, theirs)


def normal(x: torch.Tensor) -> torch.Tensor:
    return Normal(x, x + 1).log_prob(x)


def mixture(x: torch.Tensor) -> torch.Tensor:
    return MixtureSameFamily(Categorical(x), Normal(x, x + 1)).log_prob(x)


def bernoulli(x: torch.Tensor) -> torch.Tensor:
    return Bernoulli(logits=x).log_prob((x > 1).float()) + Bernoulli(probs=x / 10).entropy()


def divergence(x: torch.Tensor) -> torch.Tensor:
    return kl_divergence(Normal(x, x + 1), Normal(x * 0, x * 0 + 1)) + Gamma(x + 1, x + 2).mean


class Shifted(Normal):
    """A subclass, whose divergence is found among those of its bases."""


def divergence_by_bases(x: torch.Tensor) -> torch.Tensor:
    return kl_divergence(Shifted(x, x + 1), Shifted(x * 0, x * 0 + 1))


def divergence_of_vectors(x: torch.Tensor) -> torch.Tensor:
    root = torch.diag(x + 1)
    item, other = MultivariateNormal(x, scale_tril=root), MultivariateNormal(x * 2, scale_tril=root)
    rows = MultivariateNormal(torch.stack([x, x * 0]), scale_tril=root)
    return kl_divergence(item, other) + kl_divergence(rows, other)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "program",
    [normal, mixture, bernoulli, divergence, divergence_by_bases, divergence_of_vectors],
)
def test_distributions_check_their_arguments_in_the_graph(program: Any, backend: str) -> None:
    if program is not divergence_by_bases:
        program(torch.ones(3))  # what torch fills once (the table of kl_divergence) is filled
    kl._KL_MEMOIZE.pop((Shifted, Shifted), None)
    fast = captured(program, backend)
    good, bad = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([float("nan"), -4.0, 3.0])
    alike(fast, program, (good,), (bad,), (good + 1,), (good,))
    assert breaks(fast) == 0
