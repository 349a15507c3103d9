"""Modules of torch whose eager forward does something else than one that is compiled would."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.gradients import same_gradients
from tracer_core.testing import CaptureCounter, CountingBackend

# TransformerEncoder puts a padded batch into a nested tensor

MASKS = {
    "aligned": torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]).bool(),
    "nothing-longest": torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 1]]).bool(),
    "an-empty-row": torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]).bool(),
    "not-aligned": torch.tensor([[0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]).bool(),
    "none": torch.zeros(3, 5).bool(),
}
MASKS["floats"] = torch.zeros(3, 5).masked_fill(MASKS["aligned"], -2.0)
MASKS["infinite"] = torch.zeros(3, 5).masked_fill(MASKS["aligned"], float("-inf"))


def _encoder(norm=False, **options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8) if norm else None, **options).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm", [False, True], ids=["", "norm"])
def test_an_encoder_of_a_padded_batch(norm):
    encoder = _encoder(norm)
    backend = CountingBackend()
    compiled = tracer_core.compile(encoder, backend=backend)
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        for name, mask in MASKS.items():
            want = encoder(x, src_key_padding_mask=mask)
            got = compiled(x, src_key_padding_mask=mask)
            torch.testing.assert_close(got, want, msg=lambda lines, name=name: f"{name}: {lines}")
            assert got.stride() == want.stride(), name
    assert len(backend.graphs) == 2  # one for each dtype of the mask


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    ["gradients", "training", "mask_check", "no-nesting", "other-layer", "causal"],
)
def test_an_encoder_with_other_settings(change):
    encoder = _encoder(
        mask_check=change != "mask_check", enable_nested_tensor=change != "no-nesting"
    )
    if change == "training":
        encoder.train()
        for part in encoder.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        for layer in encoder.layers:
            layer.self_attn.dropout = 0.0
    if change == "other-layer":

        class Twice(nn.TransformerEncoderLayer):
            def forward(self, src, **options):
                return super().forward(src, **options) * 2

        for layer in encoder.layers:
            layer.__class__ = Twice
    compiled = tracer_core.compile(encoder, backend="eager")
    x = torch.randn(3, 5, 8)
    options = {"is_causal": True} if change == "causal" else {}
    with torch.set_grad_enabled(change == "gradients"):
        for mask in (MASKS["aligned"], MASKS["none"], MASKS["not-aligned"]):
            if change == "mask_check" and mask is MASKS["not-aligned"]:
                continue
            want = encoder(x, src_key_padding_mask=mask, **options)
            torch.testing.assert_close(compiled(x, src_key_padding_mask=mask, **options), want)


# Observers of fake quantization


def _observed(fused, per_channel):
    from torch.ao import quantization

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = quantization.FusedMovingAvgObsFakeQuantize if fused else quantization.FakeQuantize
        if not per_channel:
            observer, options = quantization.MovingAverageMinMaxObserver, {}
        else:
            observer = quantization.MovingAveragePerChannelMinMaxObserver
            options = {"dtype": torch.qint8, "qscheme": torch.per_channel_symmetric}
        bounds = (-128, 127) if per_channel else (0, 255)
        return kind(observer, *bounds, **options)


class Quantized(nn.Module):
    def __init__(self, fused, per_channel):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.observed = _observed(fused, False)
        self.weights = _observed(fused, per_channel)

    def forward(self, x):
        weight = self.weights(self.linear.weight)
        y = nn.functional.linear(self.observed(x), weight, self.linear.bias)
        return y, *[buffer.clone() for buffer in self.buffers()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channels"])
def test_fused_fake_quantization_trains(per_channel, backend):
    calls = [(torch.randn(5, 4) * n,) for n in (1, 2, 3, 4)]
    counter = same_gradients(
        lambda: Quantized(True, per_channel), *calls, breaks=int(per_channel), backend=backend
    )
    if per_channel:  # the first call gives the statistics their sizes
        (reason,) = counter.breaks.values() if isinstance(counter.breaks, dict) else counter.breaks
        assert "resizes" in str(reason)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channels"])
def test_fake_quantization_trains(per_channel):
    calls = [(torch.randn(5, 4) * n,) for n in (1, 2, 3, 4)]
    same_gradients(lambda: Quantized(False, per_channel), *calls, breaks=None)


# Libraries that compute something else where they are told that they are compiled


def test_paligemma_is_told_that_it_runs_eagerly():
    module = "transformers.models.paligemma.modeling_paligemma"
    namespace = {"__name__": module, "torch": torch}
    exec(
        "def masked(x):\n"
        "    return x * 2 if torch.compiler.is_compiling() else x * 3\n"
        "class PaliGemmaModel:\n"
        "    def forward(self, x):\n"
        "        return masked(x)\n"
        "    def other(self, x):\n"
        "        return masked(x)\n",
        namespace,
    )
    model, x = namespace["PaliGemmaModel"](), torch.randn(3)
    with CaptureCounter() as counter:
        messages = [
            tracer_core.compile(f, backend="eager")(x) for f in (model.forward, model.other)
        ]
    assert len(counter.graphs) == 2
    torch.testing.assert_close(messages, [x * 3, x * 2])
