"""Cached fakes of symbolic sizes are the fakes that FakeTensorMode makes; a symbol that gets another
value drops what was memoized of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tracer_core
from tests.fx_capture.test_fake_cache import PROGRAMS
from tests.support.eager_reference import same
from tracer_core import torch_private
from tracer_core.fx_capture import fake_cache

pytestmark = pytest.mark.skipif(
    not torch_private.is_tested(), reason="this torch's own FakeTensorMode is used"
)


def _numbers(sizes: Any) -> list[str]:
    return [str(size.node.expr) if isinstance(size, torch.SymInt) else str(size) for size in sizes]


def _metadata(value: Any, inputs: list[Any]) -> Any:
    if value is None or not isinstance(value, (torch.Tensor, list, tuple)):
        return value
    if not isinstance(value, torch.Tensor):
        return [_metadata(part, inputs) for part in value]
    storages = [torch_private.storage_id(item) for item in inputs]
    storage = torch_private.storage_id(value)
    return (
        _numbers(value.shape), _numbers(value.stride()), _numbers([value.storage_offset()]),
        value.dtype, value.device, value.constant, value.requires_grad, value.is_inference(),
        storages.index(storage) if storage in storages else None,
    )  # fmt: skip


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The operators of which a cached result was used; FakeTensorMode is asked as well, and finds no
    guard that the cached one did not have."""
    operators: list[Any] = []
    run = fake_cache._symbolic.run

    def check(mode: Any, func: Any, view: bool, args: Any, kwargs: Any, slow: Any) -> Any:
        asked = []

        def ask() -> Any:
            asked.append(slow())
            return asked[-1]

        result = run(mode, func, view, args, kwargs, ask)
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if result is fake_cache.SLOW or asked:
            return result
        before = len(mode.shape_env.guards)
        assert _metadata(result, inputs) == _metadata(slow(), inputs), (func, args)
        assert len(mode.shape_env.guards) == before, (func, args)
        operators.append(func)
        return result

    monkeypatch.setattr(fake_cache._symbolic, "run", check)
    yield operators


#: Programs for images of one size only, and those of which no fake is cached (convolutions have a
#: rule of their own).
ONE_SIZE = {"view", "reshape of a view"}
NOT_CACHED = {"making", "batch norm of a row"} | {
    name for name in PROGRAMS if "convolution" in name
}
IMAGES = [torch.randn(2, 4, 6, 8), torch.randn(3, 4, 6, 8)]


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ONE_SIZE])
@pytest.mark.parametrize("layout", ["contiguous", "permuted"])
def test_a_fake_is_the_one_that_torch_makes(name: str, layout: str, cached: list[Any]) -> None:
    images = [
        image if layout == "contiguous" else image.permute(0, 2, 3, 1).clone().permute(0, 3, 1, 2)
        for image in IMAGES
    ]
    program = PROGRAMS[name]

    def twice(x: torch.Tensor) -> Any:
        return program(x), program(x)

    with torch.random.fork_rng():
        tracer_core.reset()
        same(twice, *[(image,) for image in images])
    assert cached or name in NOT_CACHED


def test_sizes_that_become_equal() -> None:
    """A sum makes two sizes one symbol; results from before are not those of after."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        before = x * 2, y * 2, x.reshape(-1), torch.cat([x, y])
        both = x + y
        after = x * 2, y * 2, x.reshape(-1), torch.cat([x, y])
        return before, both, after, both.reshape(-1, 4) if x.shape[0] == y.shape[0] else both

    calls = [(torch.randn(n, 4), torch.randn(n, 4)) for n in (3, 5, 7, 1)]
    same(program, *calls, dynamic=True)


def test_a_size_that_becomes_a_number() -> None:
    def program(x: torch.Tensor) -> Any:
        before = torch.relu(x), x.view(-1, 2), x.shape[0] * 3
        if x.shape[0] == 6:
            return before, torch.relu(x), x.view(-1, 2), x.view(2, 3, 4), x.shape[0] * 3
        return before, torch.relu(x), x.view(-1, 2), x.shape[0] * 3

    same(program, *[(torch.randn(n, 4),) for n in (6, 8, 6, 2)], dynamic=True)


def _env(*hints: int) -> tuple[Any, list[torch.SymInt]]:
    env = torch_private.new_shape_env(lambda: "?")
    mode = torch_private.fake_tensor_mode(env)
    value = torch.empty(hints)
    fake = torch_private.to_symbolic_fake(mode, value, "x", (True,) * len(hints))
    return env, list(fake.shape)


def test_a_result_is_computed_once() -> None:
    _, (a, b) = _env(4, 5)
    assert (a * b).node is (a * b).node
    assert (a * 3).node is (a * 3).node is not (a * 4).node
    assert ((a * b) > 7).node is ((a * b) > 7).node


def test_a_result_is_dropped_when_a_symbol_is_replaced() -> None:
    env, (a, b) = _env(4, 4)
    product, larger = a * b, a > b
    assert product.node.maybe_as_int() is None
    assert not larger
    assert a == b  # a guard
    again = a * b
    assert again.node is not product.node
    assert len(again.node.expr.free_symbols) == 1 and product.node.expr == again.node.expr
    assert a == 4
    assert (a * b).node.maybe_as_int() == product.node.maybe_as_int() == 16
    assert [str(guard.expr) for guard in env.guards if "<" in str(guard.expr)] != []


def test_a_question_adds_its_guard_once() -> None:
    env, (a, b) = _env(4, 5)
    for _ in range(3):
        assert a < b
    assert len(env.guards) == 1
    with env.suppress_guards():
        assert a * 2 > b
    assert len(env.guards) == 1
    assert a * 2 > b
    assert len(env.guards) == 2


def test_ranges_that_become_narrower() -> None:
    """A remainder depends on the ranges of the sizes, which no count of replacements tells."""

    def program(x: torch.Tensor) -> Any:
        before = x.shape[0] % 4, (x.shape[0] - 5) % 4
        if x.shape[0] > 5:
            return before, (x.shape[0] - 5) % 4, x[: (x.shape[0] - 5) % 4 + 1]
        return before, x

    same(program, *[(torch.randn(n, 2),) for n in (9, 3, 12, 6, 4)], dynamic=True)
