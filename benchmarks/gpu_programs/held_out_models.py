"""Models of the half that is looked at only at the end and that are no diffusion models.

In: sizes. Out: modules.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Graphs ------------------------------------------------------------------------------------------


class _EquivariantLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.attention = nn.Linear(width, 1)
        self.move = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(
        self, h: Tensor, places: Tensor, source: Tensor, destination: Tensor
    ) -> tuple[Tensor, Tensor]:
        offsets = places[destination] - places[source]
        squares = offsets.square().sum(-1, keepdim=True)
        messages = self.message(torch.cat([h[destination], h[source], squares], dim=-1))
        messages = messages * self.attention(messages).sigmoid()
        moves = offsets / (squares.sqrt() + 1) * self.move(messages)
        sums = torch.zeros_like(h).index_add(0, destination, messages)
        places = places + torch.zeros_like(places).index_add(0, destination, moves) / 8
        return h + self.update(torch.cat([h, sums], dim=-1)), places


class EquivariantNetwork(nn.Module):
    """Layers that move points along their edges and update their features (EGNN)."""

    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.layers = nn.ModuleList(_EquivariantLayer(width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(
        self, features: Tensor, places: Tensor, source: Tensor, destination: Tensor
    ) -> tuple[Tensor, Tensor]:
        h = self.embed(features)
        for layer in self.layers:
            h, places = layer(h, places, source, destination)
        return self.head(h), places


def graph_transformer(features: int, edge_features: int, width: int, classes: int) -> nn.Module:
    """PyG's TransformerConv with features of edges, layer norms and residuals."""
    from torch_geometric.nn import TransformerConv

    class GraphTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(features, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
            self.convs = nn.ModuleList(
                TransformerConv(width, width // 4, heads=4, edge_dim=edge_features, beta=True)
                for _ in range(3)
            )
            self.head = nn.Linear(width, classes)

        def forward(self, x: Tensor, edges: Tensor, edge_features: Tensor) -> Tensor:
            x = self.embed(x)
            for norm, conv in zip(self.norms, self.convs, strict=True):
                x = x + F.relu(conv(norm(x), edges, edge_features))
            return self.head(x)

    return GraphTransformer()


# A step of a generator ---------------------------------------------------------------------------


class _StyledConv(nn.Module):
    """A convolution whose inputs and outputs are scaled by an image's style."""

    def __init__(self, inputs: int, outputs: int, style: int) -> None:
        super().__init__()
        self.style = nn.Linear(style, inputs)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3) / math.sqrt(9 * inputs))
        self.strength = nn.Parameter(torch.full((), 0.1))
        self.bias = nn.Parameter(torch.zeros(outputs, 1, 1))

    def forward(self, x: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        scale = self.style(style) + 1
        energy = self.weight.square().sum((2, 3)) @ scale.square().T
        x = F.conv2d(x * scale[:, :, None, None], self.weight, padding=1)
        x = x * (energy.T + 1e-6).rsqrt()[:, :, None, None]
        noise = noise[:, :, : x.size(2), : x.size(3)]
        return F.leaky_relu(x + self.strength * noise + self.bias, 0.2) * math.sqrt(2)


class _Discriminator(nn.Module):
    def __init__(self, widths: tuple[int, ...], size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip((3, *widths), widths, strict=False):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1), nn.LeakyReLU(0.2),
                nn.Conv2d(outputs, outputs, 3, padding=1), nn.LeakyReLU(0.2), nn.AvgPool2d(2),
            ]  # fmt: skip
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear((widths[-1] + 1) * (size >> len(widths)) ** 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layers(images)
        groups = x.unflatten(0, (4, -1))
        spread = (groups.var(0, unbiased=False) + 1e-8).sqrt().mean((1, 2, 3))
        spread = spread.repeat(4)[:, None, None, None].expand(-1, 1, *x.shape[2:])
        return self.head(torch.cat([x, spread.to(x.dtype)], dim=1).flatten(1))


class GeneratorStep(nn.Module):
    """The loss of a style-based generator against a frozen discriminator."""

    def __init__(self, widths: tuple[int, ...], style: int) -> None:
        super().__init__()
        self.mapping = nn.Sequential(
            nn.Linear(style, style), nn.LeakyReLU(0.2), nn.Linear(style, style), nn.LeakyReLU(0.2)
        )
        self.constant = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        self.convs = nn.ModuleList(
            _StyledConv(inputs, outputs, style)
            for inputs, outputs in zip((widths[0], *widths), widths, strict=False)
        )
        self.to_image = nn.ModuleList(nn.Conv2d(width, 3, 1) for width in widths)
        size = 4 << (len(widths) - 1)
        self.discriminator = _Discriminator(widths[:0:-1], size).requires_grad_(False)

    def forward(self, latents: Tensor, noise: Tensor) -> Tensor:
        style = self.mapping(F.normalize(latents, dim=1) * math.sqrt(latents.size(1)))
        x = self.constant.expand(latents.size(0), -1, -1, -1)
        images: Any = 0.0
        for level, (conv, to_image) in enumerate(zip(self.convs, self.to_image, strict=True)):
            if level:
                x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
                images = F.interpolate(
                    images, scale_factor=2.0, mode="bilinear", align_corners=False
                )
            x = conv(x, style, noise)
            images = images + to_image(x)
        return F.softplus(-self.discriminator(images)).mean()


# A differential equation in the loss -------------------------------------------------------------


class BurgersNetwork(nn.Module):
    """A network u(x, t), and the mean square of the residual of Burgers' equation at points.

    The points must require gradients: the derivatives are those of `torch.autograd.grad`.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), *hidden, nn.Linear(width, 1))

    def forward(self, points: Tensor, boundary: Tensor, values: Tensor) -> Tensor:
        u = self.layers(points)
        (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        u_x, u_t = first[:, :1], first[:, 1:]
        (second,) = torch.autograd.grad(u_x.sum(), points, create_graph=True)
        residual = u_t + u * u_x - 0.01 / math.pi * second[:, :1]
        return residual.square().mean() + F.mse_loss(self.layers(boundary), values)


# Retention ---------------------------------------------------------------------------------------


class _RetentionBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, width, bias=False)
        self.norm = nn.GroupNorm(heads, width, eps=1e-5)
        self.proj = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, decay: Tensor) -> Tensor:
        rows, length, width = x.shape
        y = self.norm1(x)
        q, k, v = self.qkv(y).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(2, 3)) * (width // self.heads) ** -0.5 * decay
        scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp_min(1)
        retained = (scores @ v).transpose(1, 2).reshape(rows * length, width)
        x = x + self.proj(F.silu(self.gate(y)) * self.norm(retained).view_as(x))
        return x + self.mlp(self.norm2(x))


class RetentionLanguageModel(nn.Module):
    """Attention without softmax, with a decay of its own for each head (RetNet's parallel form)."""

    decay: Tensor

    def __init__(self, layers: int, width: int, heads: int, classes: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(_RetentionBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)
        rates = 1 - 2.0 ** (-5 - torch.arange(heads))
        distance = torch.arange(length)[:, None] - torch.arange(length)
        decay = rates[:, None, None] ** distance.clamp_min(0) * (distance >= 0)
        decay = decay / decay.sum(-1, keepdim=True).sqrt()
        self.register_buffer("decay", decay, persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.decay)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# Volumes -----------------------------------------------------------------------------------------


class _VolumeBlock(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True),
            nn.LeakyReLU(0.01),
            nn.Conv3d(outputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True),
            nn.LeakyReLU(0.01),
        )  # fmt: skip


class VolumeUNet(nn.Module):
    """A U-Net over volumes of one channel, with instance norms, after nnU-Net."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        pairs = list(zip((1, *widths), widths, strict=False))
        self.down = nn.ModuleList(_VolumeBlock(*pair) for pair in pairs)
        self.widen = nn.ModuleList(
            nn.ConvTranspose3d(outputs, inputs, 2, stride=2) for inputs, outputs in pairs[:0:-1]
        )
        self.up = nn.ModuleList(_VolumeBlock(2 * inputs, inputs) for inputs, _ in pairs[:0:-1])
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([widen(x), skips.pop()], dim=1))
        return self.head(x).softmax(dim=1)


# Recommendation ----------------------------------------------------------------------------------


class _CrossLayer(nn.Module):
    """x0 times a low-rank linear function of x, plus x (DCN v2)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        return first * self.up(self.down(x)) + x


class Recommender(nn.Module):
    """Crossed features beside attention of a candidate over a user's history; the loss of clicks."""

    def __init__(self, fields: int, rows: int, items: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.Embedding(fields * rows, width)
        self.items = nn.Embedding(items, 4 * width, padding_idx=0)
        self.register_buffer("offsets", torch.arange(fields) * rows, persistent=False)
        self.attention = nn.Sequential(
            nn.Linear(16 * width, hidden // 4), nn.PReLU(), nn.Linear(hidden // 4, 1)
        )
        total = fields * width + 8 * width + 13
        self.crosses = nn.ModuleList(_CrossLayer(total, hidden // 4) for _ in range(3))
        self.deep = nn.Sequential(
            nn.Linear(total, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.head = nn.Linear(total + hidden, 1)

    def forward(
        self, dense: Tensor, sparse: Tensor, candidate: Tensor, history: Tensor, clicks: Tensor
    ) -> Tensor:
        crossed = self.tables(sparse + self.offsets).flatten(1)
        item, past = self.items(candidate), self.items(history)
        own = item[:, None].expand_as(past)
        scores = self.attention(torch.cat([own, past, own - past, own * past], dim=-1))
        scores = scores.masked_fill((history == 0)[:, :, None], 0.0)
        interest = (scores * past).sum(1)
        first = torch.cat([dense.abs().log1p(), crossed, item, interest], dim=1)
        x = first
        for cross in self.crosses:
            x = cross(first, x)
        logits = self.head(torch.cat([x, self.deep(first)], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, clicks)
