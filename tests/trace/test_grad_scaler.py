"""torch.amp.GradScaler inside a compiled step: whether a step is skipped is read on the host, as in
eager mode, between two graphs; a fused optimizer reads it in the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_training import Side, mlp, trained
from tracer_core.testing import CaptureCounter


def _calls(count: int, *infinite: int) -> list[tuple[Any]]:
    torch.manual_seed(5)
    rows = [torch.randn(6, 4) for _ in range(count)]
    for number in infinite:
        rows[number][0, 0] = float("inf")
    return [(x,) for x in rows]


def _scaled(name: str, clips: bool, zeroes: bool = True, **options: Any) -> Any:
    def make() -> Side:
        model = mlp()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)

        def step(x: Any) -> Any:
            optimizer.zero_grad(set_to_none=zeroes)
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return Side(step, [model, optimizer, scaler])

    return make


#: Name -> (class of torch.optim, its options).
PLAIN = {
    "SGD": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "Adam": ("Adam", {}),
    "AdamW-single": ("AdamW", {"foreach": False}),
    "RMSprop": ("RMSprop", {}),
}


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_steps_are_two_graphs_and_skipped_ones_are_right(name: str, clips: bool) -> None:
    kind, options = PLAIN[name]
    make = _scaled(kind, clips, **options)
    counter = trained(make, *_calls(12, 4, 8, 9), breaks=None)
    kinds = {kind for kind, _, _ in counter.breaks}
    assert kinds <= {"data_dependent_value", "live_iterator"}
    # without state and with it, forward and update; the update of a skipped step
    assert len(counter.graphs) <= 5


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_steps_of_fused_optimizers_are_one_graph(name: str, clips: bool) -> None:
    make = _scaled(name, clips, fused=True)
    counter = trained(make, *_calls(9, 4, 6), breaks=0)
    assert len(counter.graphs) <= 2


def test_the_first_steps_are_skipped() -> None:
    counter = trained(_scaled("Adam", True), *_calls(8, 0, 1), breaks=None)
    assert len(counter.graphs) <= 6


def test_gradients_that_are_kept_between_steps() -> None:
    trained(_scaled("AdamW", True, zeroes=False), *_calls(8, 3), breaks=None)


def test_a_scheduler_wraps_the_step() -> None:
    def make() -> Side:
        side = _scaled("AdamW", True, fused=True)()
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(side.watched[1], 10)
        inner = side.step

        def step(x: Any) -> Any:
            loss = inner(x)
            scheduler.step()
            return loss

        return Side(step, [*side.watched, scheduler])

    trained(make, *_calls(7, 3), breaks=None)


@pytest.mark.parametrize("fused", [False, True])
def test_inductor_compiles_every_operator(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracer_core.dispatch import compile_graph

    actual: list[Any] = []
    monkeypatch.setattr(compile_graph, "report", actual.append)
    options = {"fused": True} if fused else {}
    ours, eager = (_scaled("Adam", True, **options)() for _ in range(2))
    compiled = tracer_core.compile(ours.step)
    with CaptureCounter() as counter:
        for (x,) in _calls(10, 4, 8):
            torch.testing.assert_close(compiled(x), eager.step(x))
            mine, theirs = ours.watched[2].state_dict(), eager.watched[2].state_dict()
            assert mine == theirs
    assert not actual and len(counter.graphs) <= (2 if fused else 5)
    for parameter, other in zip(
        ours.watched[0].parameters(), eager.watched[0].parameters(), strict=True
    ):
        torch.testing.assert_close(parameter, other, rtol=1e-5, atol=1e-6)
