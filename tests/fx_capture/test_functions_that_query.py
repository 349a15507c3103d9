"""autograd.Functions whose forward asks for values of tensors, or is given objects and functions made
in the program: one node, whose questions the graph checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core
from tests.fx_capture.test_profiled_branches import BACKENDS, captures, inner, noting

pytestmark = pytest.mark.usefixtures("may_leave_graphs")


class Scaled(torch.autograd.Function):
    """Asks whether its arguments are equal and positive, and writes to what it made."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, scale: Any) -> torch.Tensor:
        ctx.scale = scale
        z = x - x.mean()
        if torch.equal(x, y):
            z.mul_(2)
        if (z.sum() + y.sum()) > 0:
            z.add_(1)
        ctx.save_for_backward(x)
        return z * scale(y).sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * x, gradient + ctx.scale(x), None


class Plan:
    """An object without tensors, made in each call."""

    def __init__(self, factor: float, parts: list[Any]) -> None:
        self.factor, self.parts, self.names = factor, parts, {"a": 1, "b": 2}.keys()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor * len(self.parts) * len(self.names)


def by_plan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Scaled.apply(x.sin(), y.sin(), Plan(2.0, [(slice(0, 2), None), 3])).cos()


def by_closure(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    factor, power = 3.0, [2]
    result = Scaled.apply(x * 2, y * 2, lambda t, more=1: (t * factor + more) ** power[0])
    return result * 2


def by_python(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Scaled.apply(x, y, torch.sin) + 1


def calls(function: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    result = function(x, y)
    result.pow(2).sum().backward()
    return result.detach(), x.grad, y.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [by_plan, by_closure, by_python])
def test_values_and_gradients(program: Any, backend: Any) -> None:
    fast = tracer_core.compile(program, backend=backend())
    x, y = torch.rand(4) + 0.1, torch.rand(4) + 0.1
    for pair in ((x, y), (y, x), (x, x), (-x, -y), (x, y), (y, x + y)):
        actual = calls(fast, *pair)
        torch.testing.assert_close(actual, calls(program, *pair), rtol=1e-4, atol=1e-4)
        wanted = calls(program, *(item.double() for item in pair))
        torch.testing.assert_close(actual, wanted, check_dtype=False, rtol=1e-4, atol=1e-4)
    assert not inner(fast).breaks and captures(fast) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_questions_of_a_function_inside_a_function(backend: Any) -> None:
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if x.max() > 5:
                x = x / 2
            z = Scaled.apply(x, y, torch.cos)
            return z + 1 if z.isfinite().all() else z

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * 2, gradient * 3

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return Outer.apply(x * 1.5, y)

    fast = tracer_core.compile(program, backend=backend())
    x, y = torch.rand(4), torch.rand(4)
    for pair in ((x, y), (x * 9, y), (x, x * 1.5), (-x, y), (x / 0, y), (x, y)):
        torch.testing.assert_close(
            calls(fast, *pair), calls(program, *pair), rtol=1e-4, atol=1e-4, equal_nan=True
        )


def test_a_plan_that_changes_is_another_entry() -> None:
    factors = [2.0]

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x, y, Plan(factors[0], []))

    fast = tracer_core.compile(program, backend=noting())
    x, y = torch.rand(4), torch.rand(4)
    for factor in (2.0, 3.0, 2.0, -1.0):
        factors[0] = factor
        torch.testing.assert_close(fast(x, y), program(x, y))


def test_an_object_with_tensors_ends_the_graph() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x, y, Plan(2.0, [x * 2])) + 1

    fast = tracer_core.compile(program, backend=noting())
    for _ in range(3):
        x, y = torch.rand(4), torch.rand(4)
        torch.testing.assert_close(fast(x, y), program(x, y))
    assert {record.kind for record in inner(fast).breaks} == {"unsupported_value"}


def test_a_forward_that_keeps_its_object_gets_a_new_one_each_time() -> None:
    kept: list[Any] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, plan: Any) -> torch.Tensor:
            ctx.plan = plan
            return plan(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            kept.append(ctx.plan)
            ctx.plan.factor += 1  # of this call's alone
            return gradient * ctx.plan.factor, None

    def program(x: torch.Tensor) -> torch.Tensor:
        return Keeps.apply(x, Plan(2.0, [1]))

    fast = tracer_core.compile(program, backend="eager")
    for function in (program, fast):
        for _ in range(3):
            x = torch.ones(2, requires_grad=True)
            function(x).sum().backward()
            assert torch.equal(x.grad, torch.full((2,), 3.0))
    assert len({id(item) for item in kept}) == 6


def test_random_numbers_in_a_forward_that_asks() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            noise = torch.rand(3)
            return x + noise if noise.sum() > 1 else x - noise

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient

    fast = tracer_core.compile(lambda x: Noisy.apply(x) * torch.rand(3), backend=noting())
    for seed in range(8):
        results = []
        for function in (fast, lambda x: Noisy.apply(x) * torch.rand(3)):
            torch.manual_seed(seed)
            results.append((function(torch.ones(3)), torch.get_rng_state()))
        torch.testing.assert_close(*results)


def test_an_object_that_holds_one_twice_ends_the_graph() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        part: list[Any] = [1]
        return Scaled.apply(x, y, Plan(2.0, [part, part])) + 1

    fast = tracer_core.compile(program, backend="eager")
    x, y = torch.rand(4), torch.rand(4)
    for _ in range(2):
        torch.testing.assert_close(fast(x, y), program(x, y))
