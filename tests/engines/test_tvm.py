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
