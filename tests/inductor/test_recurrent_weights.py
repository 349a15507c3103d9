"""cuDNN's recurrent layers read a model's weights where they lie (`kernels.recurrent`)."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from inductor_backend.kernels import recurrent
from inductor_backend.runtime.generated_module import Artifact, runner_of

SIZES = ((16, 5), (16, 4), (16,), (16,))  # an LSTM of width 4 over 5 inputs
REST = (torch.zeros(1, 2, 4), None, 2, 4, 0, 1, False, 0.0, False, False, [], None)


@pytest.fixture
def layout(monkeypatch):
    """cuDNN's layout, for a machine without it: the weights one after the other."""
    offsets = (0, 80, 144, 160)
    monkeypatch.setattr(recurrent, "_layout", lambda *how: (176, offsets))
    return offsets


def weights_in(memory, offsets):
    return [
        memory[begin : begin + torch.Size(size).numel()].view(size)
        for begin, size in zip(offsets, SIZES, strict=True)
    ]


def test_flattened_weights_are_their_own_buffer(layout):
    memory = torch.randn(200)
    weights = weights_in(memory[8:], layout)
    buffer = recurrent._buffer_of(torch.zeros(3, 2, 5), weights, 4, REST)
    assert buffer is not None and buffer.numel() == 176
    assert buffer.data_ptr() == weights[0].data_ptr()


def test_other_places_have_no_buffer(layout):
    """Weights apart, in another order (as a flat parameter of FSDP may have them), or at the end of
    their memory: cuDNN would read other numbers."""
    x = torch.zeros(3, 2, 5)
    apart = [torch.randn(size) for size in SIZES]
    assert recurrent._buffer_of(x, apart, 4, REST) is None
    swapped = weights_in(torch.randn(176), (64, 0, 144, 160))
    assert recurrent._buffer_of(x, swapped, 4, REST) is None
    transposed = weights_in(torch.randn(176), layout)
    transposed[0] = transposed[0].view(5, 16).t()
    assert recurrent._buffer_of(x, transposed, 4, REST) is None


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize("flat", [True, False])
def test_recurrent_layers_on_a_gpu(kind, flat):
    model = kind(32, 64, num_layers=2, bidirectional=True).cuda().eval()
    if not flat:
        for weight in model.parameters():
            weight.data = weight.data.clone()
    compiled = tracer_core.compile(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(7, 3, 32, device="cuda")
            torch.testing.assert_close(compiled(x)[0], model(x)[0])
            for weight in model.parameters():
                weight.mul_(1.01)  # what an optimizer does between calls is seen


def test_a_recurrent_layer_counts_as_many_launches():
    """A language model of two layers has five operators, and its LSTM a kernel for each step."""

    def launches(*operators):
        artifact = Artifact("", (), None, 1, 1, operators, (), {}, {})
        return runner_of({"call": list}, artifact).launches

    assert launches("aten.addmm.default") == 2
    for name in ("aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default"):
        assert launches(name, "aten.addmm.default") > 20


@pytest.mark.gpu
def test_a_recurrent_layer_is_replayed():
    layer, head = torch.nn.LSTM(64, 64, num_layers=2).cuda(), torch.nn.Linear(64, 10).cuda()

    def program(x):
        return head(layer(x)[0])

    compiled = tracer_core.compile(program)
    with torch.no_grad():
        for _ in range(60):
            x = torch.randn(128, 4, 64, device="cuda")
            torch.testing.assert_close(compiled(x), program(x), rtol=1e-3, atol=1e-3)
    assert "calls replayed" in str(tracer_core.last_compile(compiled))
