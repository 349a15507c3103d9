"""benchmarks.gradients: how one training step is judged, and a sample of the sweep on the CPU."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import gradients
from benchmarks.gradient_errors import InDouble, Loss, Step, judge, nudged, step
from benchmarks.zoo_models.automatic import Subject

#: Quick ones of the sweep; the sample is drawn from them.
QUICK = (
    "transformers/arcee", "transformers/audio-spectrogram-transformer", "transformers/blenderbot",
    "transformers/cohere",
    "transformers/cpmant", "transformers/cwm", "transformers/gemma", "transformers/glm4v_vision",
    "transformers/idefics3",
    "transformers/internvl", "transformers/llama", "transformers/luke", "transformers/mt5",
    "transformers/opt",
    "transformers/phi3", "transformers/qwen2_vl_text", "transformers/roberta-prelayernorm",
    "transformers/vilt",
    "transformers/vision-text-dual-encoder", "transformers/vivit", "transformers/voxtral_encoder",
    "zoo/funnel",
)  # fmt: skip


class Net(nn.Module):
    """A bias before batch norm, whose gradient is zero, and one layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        pooled = self.norm(self.conv(x)).relu().mean((2, 3))
        return {"pooled": pooled, "logits": self.head(pooled)}


def steps() -> tuple[Step, Step, Step]:
    """float64, eager, and the same once more."""
    actual = []
    for dtype in (torch.float32, torch.float32, torch.float64):
        torch.manual_seed(0)
        module = Net().to(dtype)
        x = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(1)).to(dtype)
        loss = None if not actual else actual[0][1]
        actual.append(step(module, module, ((x.requires_grad_(),), {}), loss))
    return actual[2][0], actual[0][0], actual[1][0]


def test_a_step_is_right_beside_itself():
    exact, eager, ours = steps()
    judged = judge(exact, [eager], ours)
    assert judged.right and judged.worst is not None
    names = {error.name for error in judged.errors}
    assert {
        "output 1",
        "gradient of conv.bias",
        "gradient of input 0",
        "buffer norm.running_var",
    } <= names
    assert "gradient of unused.weight" not in names  # None in all of them


@pytest.mark.parametrize(
    "name", ["gradient of norm.bias", "gradient of input 0", "output 0", "buffer norm.running_mean"]
)
def test_one_wrong_tensor_among_all_shows(name):
    exact, eager, ours = steps()
    ours.everything()[name].view(-1)[0] += 1e-2  # type: ignore[union-attr]
    assert [error.name for error in judge(exact, [eager], ours).wrong] == [name]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_wrong(value):
    exact, eager, ours = steps()
    ours.outputs["output 0"][0, 0] = value
    assert [error.name for error in judge(exact, [eager], ours).wrong] == ["output 0"]


def test_a_gradient_that_is_missing_or_extra_is_a_problem():
    exact, eager, ours = steps()
    ours.gradients["gradient of head.weight"] = None
    ours.gradients["gradient of unused.weight"] = torch.zeros(2, 2, dtype=torch.float64)
    judged = judge(exact, [eager], ours)
    assert len(judged.problems) == 2 and not judged.right


def test_a_gradient_that_is_zero_is_judged_by_the_others_size():
    exact, eager, ours = steps()
    assert float(exact.gradients["gradient of conv.bias"].norm()) < 1e-12  # type: ignore[union-attr]
    ours.gradients["gradient of conv.bias"].add_(1e-9)  # type: ignore[union-attr]
    assert judge(exact, [eager], ours).right
    ours.gradients["gradient of conv.bias"].add_(1e-1)  # type: ignore[union-attr]
    assert not judge(exact, [eager], ours).right


def test_nudged_parameters_are_put_back():
    module = Net()
    before = [p.detach().clone() for p in module.parameters()]
    with nudged(module, 0):
        assert not torch.equal(module.conv.weight, before[0])
        torch.testing.assert_close(module.conv.weight, before[0], rtol=1e-5, atol=0)
    assert all(map(torch.equal, module.parameters(), before))


def test_float32_asked_for_by_name_means_float64():
    x = torch.rand(5, dtype=torch.float64)
    with InDouble():
        actual = [
            x.float(),
            x.to(torch.float32),
            torch.softmax(x, -1, dtype=torch.float32),
            torch.ones(3),
            torch.rand(2),
        ]
    assert {item.dtype for item in actual} == {torch.float64}
    assert torch.ones(1).dtype == torch.float32


def test_the_loss_depends_on_every_finite_element():
    output = torch.tensor([[1.0, 2.0, -3.4e38], [0.5, float("-inf"), -1.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(Loss([output])([output]), output)
    assert ((gradient != 0) == output.isfinite().logical_and(output.abs() < 1e6)).all()


class QueriesWhetherItIsCompiled(nn.Module):
    """Fails where it is told so, as models of transformers whose masks do not fit then."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            raise ValueError("the mask does not fit")
        return self.linear(x)


def test_an_error_of_the_backend_is_no_failure_of_eager():
    def fails(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        raise AssertionError("not made from offsets")

    subject = Subject(QueriesWhetherItIsCompiled, lambda seed: ((torch.ones(2, 4),), {}))
    row = gradients.Trial(subject, {"backend": fails, "device": "cpu"}).row()
    assert row["status"] == "error" and "not made from offsets" in row["error"]


# --- the command ----------------------------------------------------------------------------------


def run(tmp_path: Any, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    out = tmp_path / "state.jsonl"
    status = gradients.main(["--out", str(out), "--workers", "1", *arguments])
    return status, gradients.read(out)


@pytest.mark.full
def test_a_sample_of_the_sweep(tmp_path):
    sample = sorted(random.Random(20).sample(QUICK, 12))
    status, rows = run(tmp_path, "--exactly", *sample)
    assert sorted(row["model"] for row in rows) == sample
    assert status == 0 and {row["status"] for row in rows} == {"ok"}, gradients.report(rows)


def test_rows_that_are_there_are_not_run_again(tmp_path, monkeypatch, capsys):
    row = {"backend": "inductor", "device": "cpu", "tf32": False, "options": "",
    "model": "zoo/bert", "status": "wrong",
           "worst": ["gradient of w", 1.0, 1e-7], "number_wrong": 1}  # fmt: skip
    (tmp_path / "state.jsonl").write_text(json.dumps(row) + "\n" + '{"cut off')
    monkeypatch.setattr(gradients.Sweep, "run", lambda self: None)
    status, rows = run(tmp_path, "--exactly", "zoo/bert")
    assert status == 1 and rows == [row]
    printed = capsys.readouterr().out
    assert printed.startswith("0 models to run, 1 done") and "gradient of w" in printed
    run(tmp_path, "--exactly", "zoo/bert", "--again", "wrong")
    assert capsys.readouterr().out.startswith("1 models to run, 0 done")


def test_a_process_that_dies_or_hangs_loses_its_own_row_only(tmp_path, monkeypatch):
    monkeypatch.setattr(gradients, "CHILD", "tests.benchmarks.gradients_child:serve")
    monkeypatch.setattr(gradients, "_IMPORTS", 0.0)
    status, rows = run(tmp_path, "--limit", "5", "--exactly", "zoo/bert", "zoo/gpt2", "zoo/opt")
    actual = {row["model"]: row["status"] for row in rows}
    assert status == 1 and actual == {"zoo/bert": "crashed", "zoo/gpt2": "crashed", "zoo/opt": "ok"}
