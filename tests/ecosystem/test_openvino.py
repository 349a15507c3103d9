"""OpenVINO's own backend for torch.compile, through ours: ``compile(m, backend="openvino")``."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.support.threads import together
from tracer_core.errors import OptionError
from tracer_core.testing.compare import tensors_in
from tracer_core.torch_private import settings

pytest.importorskip("openvino")

#: What OpenVINO computes in is the processor's affair (bfloat16 where it has it) unless it is told.
EXACT = {"config": {"INFERENCE_PRECISION_HINT": "f32"}}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.head(x.mean((2, 3))).softmax(-1)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def everything_global():
    """What a library may change of torch by being imported or used."""
    return {
        **{name: str(value) for name, value in settings.snapshot().items()},
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default device": str(torch.get_default_device()),
        "rng": torch.get_rng_state().sum().item(),
    }


def test_it_is_listed_and_runs_a_model_right(net):
    assert "openvino" in tracer_core.list_backends()
    row = next(row for row in tracer_core.backends() if row.name == "openvino")
    assert row.distribution == "openvino" and row.version
    before = everything_global()
    fast = tracer_core.compile(net, backend="openvino", options=EXACT, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 16, 16)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
            before["rng"] = torch.get_rng_state().sum().item()
    assert everything_global() == before


def test_the_engine_runs_it_and_not_torchs_compiler(net, monkeypatch):
    """On any failure OpenVINO's backend hands the graph to torch's own compiler without a word."""
    from openvino.frontend.pytorch.torchdynamo import backend as theirs
    from openvino.frontend.pytorch.torchdynamo import execute

    def forbidden(*args, **kwargs):
        raise AssertionError("handed on to torch's compiler")

    models = []
    real = execute.openvino_compile
    monkeypatch.setattr(
        execute, "openvino_compile", lambda *a, **k: models.append(real(*a, **k)) or models[-1]
    )
    monkeypatch.setattr(theirs, "compile_fx", forbidden)
    fast = tracer_core.compile(net, backend="openvino", options=EXACT)
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(models) == 1  # the whole graph is one model of the engine


def test_sizes_that_change(net):
    fast = tracer_core.compile(net, backend="openvino", options=EXACT)
    with torch.no_grad():
        for batch in (2, 3, 5, 1):
            x = torch.randn(batch, 3, 16, 16)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


def test_new_values_of_parameters_are_seen(net):
    """Parameters are inputs of the graphs that we hand out."""
    model = copy.deepcopy(net)
    fast = tracer_core.compile(model, backend="openvino", options=EXACT)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        model.head.weight.mul_(3)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_as_one_of_several(net, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path))
    fast = tracer_core.compile(net, backend=[("openvino", EXACT), "onnxrt"], options={"wait": True})
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    (choice,) = fast.choices()
    row = next(row for row in choice.rows if row.name.startswith("openvino"))
    assert row.error is not None and row.error < 1e-4, str(choice)


def writes(x):
    x.add_(1)
    return x * 2


def writes_through_views(x):
    y = x + 1
    y[0].mul_(2)
    x[1] = 7
    return y.sum(), y


def views(x):
    return x.view(-1), x.t(), x + 1


def one_result_twice(x):
    y = x + 1
    return y, y, y.t()


def other_strides(x):
    return (x + 1).t(), x[::2, 1:] * 2, x[:1].expand(3, 6) + 0, (x * 3)[:, ::2]


def integers(x):
    y = (x * 10).long()
    return torch.div(y, -3, rounding_mode="floor"), y // 3, y % 3, y.sum()


def bfloat16(x):
    return x.to(torch.bfloat16) * 3, x - 1


def random_numbers(x):
    return x * torch.rand_like(x), F.dropout(x, 0.5)


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize(
    "program",
    [
        writes,
        writes_through_views,
        views,
        one_result_twice,
        other_strides,
        integers,
        bfloat16,
        random_numbers,
    ],
)
def test_what_the_engine_itself_gets_wrong(program):
    """It drops writes, has no views and no strides, divides towards zero and has no bfloat16: the
    core does these.
    """
    fast = tracer_core.compile(program, backend="openvino", options=EXACT)
    torch.manual_seed(0)
    for shape in ((4, 6), (4, 6), (3, 6)):
        mine = torch.randn(shape)
        theirs = mine.clone()
        with torch.no_grad():
            torch.manual_seed(1)
            expected = program(theirs)
            torch.manual_seed(1)
            actual = fast(mine)
        assert torch.equal(mine, theirs)
        expected, actual = (
            [value] if isinstance(value, torch.Tensor) else value for value in (expected, actual)
        )
        for item, other in zip(expected, actual, strict=True):
            torch.testing.assert_close(other, item, rtol=1e-5, atol=1e-5)
            assert other.stride() == item.stride()
            assert (other.data_ptr() == mine.data_ptr()) == (item.data_ptr() == theirs.data_ptr())


def test_results_stay_and_threads_get_their_own():
    """Its results are memory that its next call writes to."""

    def program(x):
        return x * 2, x.sum(-1)

    fast = tracer_core.compile(program, backend="openvino", options=EXACT)
    with torch.no_grad():
        kept = [fast(torch.full((3, 4), float(number))) for number in range(6)]
    assert [item[0, 0].item() for item, _ in kept] == [0, 2, 4, 6, 8, 10]
    assert [item[0].item() for _, item in kept] == [0, 4, 8, 12, 16, 20]
    wrong = []

    def work(number):
        x = torch.full((3, 4), float(number))
        for _ in range(50):
            with torch.no_grad():
                if not torch.equal(fast(x)[0], x * 2):
                    wrong.append(number)

    together(work)
    assert not wrong


def test_lstm_and_gradients(net):
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(5, 7, batch_first=True).eval()
    fast, x = tracer_core.compile(lstm, backend="openvino", options=EXACT), torch.randn(2, 4, 5)
    with torch.no_grad():
        for one, other in zip(tensors_in(fast(x)), tensors_in(lstm(x)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert one.stride() == other.stride()
    fast, x = tracer_core.compile(net, backend="openvino", options=EXACT), torch.randn(2, 3, 8, 8)
    fast(x).sum().backward()  # it is for inference: eager's autograd, and it is said
    assert net.conv.weight.grad is not None
    assert any(
        "inference only" in record.text
        for record in tracer_core.last_compile(fast)
        if record.name == "fallback"
    )
    net.zero_grad()


def test_mistakes():
    with pytest.raises(OptionError, match="'openvino' takes no mode"):
        tracer_core.compile(lambda x: x, backend="openvino", mode="max-autotune")


def test_listing_does_not_import_it():
    program = "import sys, tracer_core; tracer_core.backends(); print('openvino' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "False\n", done.stdout + done.stderr
