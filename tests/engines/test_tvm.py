"""The backend tvm: what is its own."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.aten.programs import randn
from tests.engines.running import compiled
from tracer_core.dispatch import fallback_of
from tracer_core.errors import BackendError, OptionError
from tracer_core.validation import build_config

pytest.importorskip("tvm")


def test_options_and_their_mistakes():
    runner, _ = compiled("tvm", lambda x: x + 1, randn(3), target='{"kind": "llvm", "mcpu": "x86-64"}')
    torch.testing.assert_close(runner([torch.ones(3)])[0], torch.full((3,), 2.0))
    with pytest.raises(BackendError, match="'no such thing' is no TVM target"):
        build_config(backend="tvm", options={"target": "no such thing"})
    with pytest.raises(OptionError, match="cost_model='best': one of xgb, random"):
        build_config(backend="tvm", options={"cost_model": "best"})


def test_what_tvm_does_not_check_is_left_to_pytorch():
    """TVM reads past the end of a table, and a whole number divided by zero ends the process."""
    table = torch.randn(5, 3)
    look_up = tracer_core.compile(lambda i: table[i] * 2, backend="tvm")
    divide = tracer_core.compile(lambda x, y: x // y, backend="tvm")
    for _ in range(2):
        torch.testing.assert_close(look_up(torch.tensor([4, 0])), table[[4, 0]] * 2)
        with pytest.raises(IndexError):
            look_up(torch.tensor([7, 0]))
        assert divide(torch.tensor([7]), torch.tensor([2])).item() == 3
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(torch.tensor([7]), torch.tensor([0]))


def test_cubes_of_negative_numbers():
    runner, _ = compiled("tvm", lambda x: x**3 + x**2, randn(64))
    x = torch.linspace(-3, 3, 64)
    assert fallback_of(runner) is None
    torch.testing.assert_close(runner([x])[0], x**3 + x**2)


@pytest.mark.slow  # importing TVM's MetaSchedule takes half a minute
def test_tuned_schedules_are_recorded_and_used_again(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).eval()
    x = torch.randn(8, 64)
    records = str(tmp_path / "records")
    tuned = tracer_core.compile(
        model, backend="tvm", options={"trials": 4, "cost_model": "random", "records": records}
    )
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
        found = list(tmp_path.glob("records/*/database_tuning_record.json"))
        assert len(found) == 1 and len(found[0].read_text().splitlines()) >= 4
        before = found[0].read_bytes()
        again = tracer_core.compile(model, backend="tvm", options={"records": records})
        torch.testing.assert_close(again(x), model(x))
    assert found[0].read_bytes() == before


CONVOLUTIONS = {
    "3x3": ((2, 8, 16, 16), dict(out_channels=16, kernel_size=3, padding=1)),
    "odd sizes": ((1, 3, 15, 9), dict(out_channels=5, kernel_size=3)),
    "stride 2": ((2, 4, 17, 16), dict(out_channels=8, kernel_size=3, stride=2, padding=1)),
    "1x1": ((3, 16, 8, 8), dict(out_channels=24, kernel_size=1)),
    "dilated": ((1, 4, 20, 20), dict(out_channels=8, kernel_size=3, dilation=2, padding=2)),
    "grouped": ((2, 8, 12, 12), dict(out_channels=16, kernel_size=3, groups=4, padding=1)),
    "depthwise": ((2, 8, 12, 12), dict(out_channels=8, kernel_size=3, groups=8, padding=1)),
    "7x7, stride 2": ((1, 3, 32, 32), dict(out_channels=8, kernel_size=7, stride=2, padding=3)),
    "one pixel": ((2, 8, 3, 3), dict(out_channels=8, kernel_size=3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@torch.no_grad()
def test_default_schedules_of_convolutions(name):
    shape, settings = CONVOLUTIONS[name]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(shape[1], **settings), torch.nn.ReLU()).eval()
    x = torch.randn(shape)
    fast = tracer_core.compile(model, backend="tvm")
    for scale in (1, 2):
        torch.testing.assert_close(fast(x * scale), model(x * scale), rtol=1e-4, atol=1e-5)
    truth = model.double()(x.double())
    model.float()
    assert (fast(x) - truth).norm() <= 3 * (model(x) - truth).norm() + 1e-6 * truth.norm()


@torch.no_grad()
def test_default_schedules_of_products_softmax_and_norms():
    torch.manual_seed(0)

    def program(x, w, batch):
        y = x @ w
        return y, (batch @ batch.transpose(1, 2)).softmax(-1), torch.nn.functional.layer_norm(y, (y.shape[-1],)), y.sum(0)

    inputs = torch.randn(24, 40), torch.randn(40, 32), torch.randn(3, 16, 8)
    fast = tracer_core.compile(program, backend="tvm")
    for _ in range(2):
        for ours, expected in zip(fast(*inputs), program(*inputs), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_default_schedules_tile_convolutions_and_can_be_left_out(monkeypatch):
    from tvm_backend import schedules

    scheduled = []
    real = schedules._scheduled
    monkeypatch.setattr(schedules, "_scheduled", lambda function: scheduled.append(real(function)) or scheduled[-1])
    model = torch.nn.Conv2d(8, 16, 3, padding=1).eval()
    x = torch.randn(1, 8, 16, 16)
    with torch.no_grad():
        plain = tracer_core.compile(model, backend="tvm", options={"default_schedules": False})
        torch.testing.assert_close(plain(x), model(x), rtol=1e-4, atol=1e-5)
        assert not scheduled
        torch.testing.assert_close(tracer_core.compile(model, backend="tvm")(x), model(x), rtol=1e-4, atol=1e-5)
    texts = [function.script() for function in scheduled if function is not None]
    assert any("T.vectorized" in text and "T.unroll" in text and "T.parallel" in text for text in texts)
