"""The models of the issue's rows that no library has, as people write them in plain torch.

In: sizes. Out: modules and functions of `issue_rows`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# GPT, in the way of nanogpt --------------------------------------------------------------------


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))


def rotary_tables(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of (length, width / 2) positions and frequencies."""
    frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the halves of the last dimension of (batch, length, heads, width) by position."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


class _GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(_norm(x), cos, sin)
        return x + self.down(F.relu(self.up(_norm(x))).square())

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, width = x.shape
        shape = (rows, length, self.heads, width // self.heads)
        q, k, v = (layer(x).view(shape) for layer in (self.query, self.key, self.value))
        q, k = _norm(rotate(q, cos, sin)), _norm(rotate(k, cos, sin))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(rows, length, width))


class Gpt(nn.Module):
    """Norms without weights, rotary positions, norms of queries and keys, relu², capped logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, layers: int, width: int, heads: int, classes: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(_GptBlock(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, classes, bias=False)
        cos, sin = rotary_tables(length, width // heads)
        self.register_buffer("cos", cos[:, None], persistent=False)
        self.register_buffer("sin", sin[:, None], persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        length = tokens.size(1)
        cos, sin = self.cos[:length], self.sin[:length]
        x = _norm(self.embed(tokens))
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.head(_norm(x))
        logits = 30 * torch.tanh(logits / 30)
        return F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.view(-1))


# The decoder of stable diffusion's autoencoder ---------------------------------------------------


class _ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs, eps=1e-6)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(32, outputs, eps=1e-6)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return self.shortcut(x) + h


class _PixelAttention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        rows, channels, height, width = x.shape
        tokens = self.norm(x).view(rows, channels, height * width).transpose(1, 2)
        q, k, v = self.qkv(tokens).unsqueeze(1).chunk(3, dim=-1)
        out = self.proj(F.scaled_dot_product_attention(q, k, v).squeeze(1))
        return x + out.transpose(1, 2).reshape(rows, channels, height, width)


class _Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class VaeDecoder(nn.Module):
    """Latents of 4 channels to images of 8 times the height and width."""

    def __init__(self, widths: tuple[int, ...] = (512, 512, 256, 128)) -> None:
        super().__init__()
        first = widths[0]
        self.conv_in = nn.Conv2d(4, first, 3, padding=1)
        self.middle = nn.Sequential(
            _ResidualBlock(first, first), _PixelAttention(first), _ResidualBlock(first, first)
        )
        layers: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(zip((first, *widths), widths, strict=False)):
            layers.append(_ResidualBlock(inputs, outputs))
            layers += [_ResidualBlock(outputs, outputs) for _ in range(2)]
            if number < len(widths) - 1:
                layers.append(_Upsample(outputs))
        self.up = nn.Sequential(*layers)
        self.norm_out = nn.GroupNorm(32, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        x = self.up(self.middle(self.conv_in(latents)))
        return self.conv_out(F.silu(self.norm_out(x)))


# DiT ---------------------------------------------------------------------------------------------


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scales and shifts (batch, tokens, width) by rows of (batch, width)."""
    return x * (1 + scale[:, None]) + shift[:, None]


def timestep_embedding(steps: Tensor, width: int) -> Tensor:
    """Cosines and sines of integer diffusion steps, in float32."""
    half = width // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=steps.device) / half)
    angles = steps[:, None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class _DitBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        chunks = self.modulation(condition).chunk(6, dim=1)
        shift1, scale1, gate1, shift2, scale2, gate2 = chunks
        x = x + gate1[:, None] * self.attend(modulate(self.norm1(x), shift1, scale1))
        return x + gate2[:, None] * self.mlp(modulate(self.norm2(x), shift2, scale2))

    def attend(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(rows, length, width))


class Dit(nn.Module):
    """A diffusion transformer on patches of 2×2 latents of 4 channels, conditioned on a class."""

    def __init__(self, layers: int, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.width = width
        self.patches = nn.Conv2d(4, width, 2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // 2) ** 2, width))
        self.steps = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(_DitBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.out = nn.Linear(width, 2 * 2 * 4)

    def forward(self, latents: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(latents).flatten(2).transpose(1, 2) + self.positions
        embedded = timestep_embedding(steps, 256).to(x.dtype)
        condition = self.steps(embedded) + self.classes(labels)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition).chunk(2, dim=1)
        x = self.out(modulate(self.norm(x), shift, scale))
        rows, _, height, width = latents.shape
        x = x.view(rows, height // 2, width // 2, 2, 2, 4)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(rows, 4, height, width)


# Message passing ---------------------------------------------------------------------------------


class _MessagePassingLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, nodes: Tensor, source: Tensor, destination: Tensor) -> Tensor:
        messages = self.message(torch.cat([nodes[source], nodes[destination]], dim=-1))
        sums = torch.zeros_like(nodes).index_add(0, destination, messages)
        return nodes + self.update(torch.cat([nodes, sums], dim=-1))


class MessagePassing(nn.Module):
    """Layers that gather both ends of each edge, and sum messages at the edge's destination."""

    def __init__(self, features: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.encode = nn.Linear(features, width)
        self.layers = nn.ModuleList(_MessagePassingLayer(width) for _ in range(layers))
        self.decode = nn.Linear(width, classes)

    def forward(self, features: Tensor, source: Tensor, destination: Tensor) -> Tensor:
        nodes = self.encode(features)
        for layer in self.layers:
            nodes = layer(nodes, source, destination)
        return self.decode(nodes)


# Others ------------------------------------------------------------------------------------------


class LstmLanguageModel(nn.Module):
    """An embedding, two layers of LSTM and a linear layer over the vocabulary."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(tokens))
        return self.head(hidden)


class GaussianProcess(nn.Module):
    """The negative log-likelihood of values at points under an RBF kernel with noise."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.log_length = nn.Parameter(torch.zeros(dimensions))
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(-2.0))

    def forward(self, points: Tensor, values: Tensor) -> Tensor:
        scaled = points / self.log_length.exp()
        squares = (scaled[:, None] - scaled[None]).square().sum(-1)
        kernel = self.log_scale.exp() * torch.exp(-0.5 * squares)
        identity = torch.eye(len(points), dtype=points.dtype, device=points.device)
        noise = (self.log_noise.exp() + 1e-4) * identity
        factor = torch.linalg.cholesky(kernel + noise)
        solved = torch.cholesky_solve(values[:, None], factor)
        fit = 0.5 * (values[:, None] * solved).sum()
        volume = factor.diagonal().log().sum()
        return fit + volume + 0.5 * len(points) * math.log(2 * math.pi)


def heat_equation(temperature: Tensor, steps: int = 50) -> Tensor:
    """Explicit steps of the heat equation over a field with fixed edges, written by slices."""
    u = temperature.clone()
    for _ in range(steps):
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u[1:-1, 1:-1] += 0.2 * (around - 4 * u[1:-1, 1:-1])
    return u
