"""Time series and recurrent nets: pytorch-forecasting, ncps, and forecasters of transformers."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()


@FAMILY.inference("ncps")
def liquid_time_constants() -> Any:
    from ncps.torch import LTC
    from ncps.wirings import AutoNCP

    net = LTC(4, AutoNCP(12, 2), batch_first=True).eval()
    return net, lambda: (torch.randn(2, 6, 4),)


@FAMILY.training("ncps")
def closed_form_continuous_time() -> Any:
    from ncps.torch import CfC

    net = CfC(4, 16, proj_size=2, batch_first=True).train()
    return net, lambda: (torch.randn(2, 8, 4),)


@FAMILY.training("pytorch-forecasting")
def gated_residual_networks() -> Any:
    from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import (
        GatedResidualNetwork,
        InterpretableMultiHeadAttention,
    )

    gate = GatedResidualNetwork(8, 16, 8)
    attention = InterpretableMultiHeadAttention(n_head=2, d_model=8, dropout=0.0)
    net = torch.nn.ModuleList([gate, attention]).train()

    def run(x: torch.Tensor) -> Any:
        x = gate(x)
        return attention(x, x, x)

    return run, lambda: (torch.randn(2, 6, 8),), (net,)


@FAMILY.inference("pytorch-forecasting")
def forecast_metrics() -> Any:
    from pytorch_forecasting.metrics import MAE, SMAPE, QuantileLoss

    quantile, smape, mae = QuantileLoss([0.1, 0.5, 0.9]), SMAPE(), MAE()

    def run(predicted: torch.Tensor, target: torch.Tensor) -> Any:
        middle = predicted[..., 1]
        return (
            quantile.loss(predicted, target).mean(),
            smape.loss(middle, target).mean(),
            mae.loss(middle, target).mean(),
        )

    return run, lambda: (torch.randn(4, 6, 3), torch.randn(4, 6))


@FAMILY.training("pytorch-forecasting")
def neural_basis_expansion_blocks() -> Any:
    from pytorch_forecasting.models.nbeats.sub_modules import (
        NBEATSGenericBlock,
        NBEATSSeasonalBlock,
        NBEATSTrendBlock,
    )

    sizes = dict(units=16, backcast_length=12, forecast_length=4)
    blocks = torch.nn.ModuleList(
        [
            NBEATSTrendBlock(**sizes, thetas_dim=3, num_block_layers=2),
            NBEATSSeasonalBlock(**sizes, num_block_layers=2),
            NBEATSGenericBlock(**sizes, thetas_dim=4, num_block_layers=2),
        ]
    ).train()

    def forecast(x: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(x.shape[0], 4)
        for block in blocks:
            back, ahead = block(x)
            x, total = x - back, total + ahead
        return total

    return forecast, lambda: (torch.randn(3, 12),), (blocks,)


@FAMILY.training("transformers")
def patches_of_a_time_series() -> Any:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, d_model=16,
        num_attention_heads=2, num_hidden_layers=2, ffn_dim=32, prediction_length=8,
    )  # fmt: skip
    model = PatchTSTForPrediction(config).train()
    return (
        lambda past, ahead: model(past_values=past, future_values=ahead).loss,
        lambda: (
            torch.randn(2, 32, 2),
            torch.randn(2, 8, 2),
        ),
        (model,),
    )


@FAMILY.inference("transformers")
def autoformer_decomposes_series() -> Any:
    from transformers import AutoformerConfig
    from transformers.models.autoformer.modeling_autoformer import (
        AutoformerAttention,
        AutoformerSeriesDecompositionLayer,
    )

    config = AutoformerConfig(d_model=16, prediction_length=8, moving_average=5)
    split = AutoformerSeriesDecompositionLayer(config)
    attention = AutoformerAttention(16, 2).eval()

    def run(x: torch.Tensor) -> Any:
        seasonal, trend = split(x)
        return attention(seasonal)[0], trend

    return run, lambda: (torch.randn(2, 24, 16),)


@FAMILY.inference("torch")
def exponential_smoothing_in_a_loop() -> Any:
    def smooth(x: torch.Tensor, alpha: float = 0.3) -> torch.Tensor:
        level = x[:, 0]
        levels = [level]
        for t in range(1, x.shape[1]):
            level = alpha * x[:, t] + (1 - alpha) * level
            levels.append(level)
        return torch.stack(levels, dim=1)

    return smooth, lambda: (torch.randn(4, 40),)


@FAMILY.training("torch")
def recurrent_cells_with_teacher_forcing() -> Any:
    cell, head = torch.nn.LSTMCell(4, 16), torch.nn.Linear(16, 4)
    net = torch.nn.ModuleList([cell, head])

    def decode(x: torch.Tensor, teach: torch.Tensor) -> torch.Tensor:
        state, step, out = None, x[:, 0], []
        for t in range(x.shape[1]):
            state = cell(step, state)
            predicted = head(state[0])
            out.append(predicted)
            step = torch.where(teach[t], x[:, t], predicted)
        return torch.stack(out, dim=1)

    return decode, lambda: (torch.randn(2, 8, 4), torch.rand(8) > 0.5), (net,)


@FAMILY.inference("torch")
def connectionist_temporal_classification() -> Any:
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> Any:
        scores = logits.log_softmax(-1)
        lengths = torch.full((2,), 20), torch.full((2,), 5)
        best = scores.argmax(-1).T
        decoded = [torch.unique_consecutive(row) for row in best]
        value = torch.nn.functional.ctc_loss(scores, targets, *lengths)
        return value, [row[row != 0] for row in decoded]

    return loss, lambda: (torch.randn(20, 2, 8), torch.randint(1, 8, (2, 5)))
