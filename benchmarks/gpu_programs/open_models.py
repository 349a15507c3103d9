"""Models of the open half that are no diffusion models, in plain torch.

In: sizes. Out: modules.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Graphs ------------------------------------------------------------------------------------------


def scatter_softmax(scores: Tensor, destination: Tensor, nodes: int) -> Tensor:
    """Softmax of (edges, heads) over the edges that share a destination."""
    index = destination[:, None].expand_as(scores)
    empty = scores.new_full((nodes, scores.size(1)), float("-inf"))
    largest = empty.scatter_reduce(0, index, scores.detach(), "amax")
    exponents = (scores - largest[destination]).exp()
    sums = torch.zeros_like(largest).index_add(0, destination, exponents)
    return exponents / sums[destination]


class _GraphAttentionLayer(nn.Module):
    def __init__(self, inputs: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.proj = nn.Linear(inputs, heads * width, bias=False)
        self.source_score = nn.Parameter(0.1 * torch.randn(heads, width))
        self.destination_score = nn.Parameter(0.1 * torch.randn(heads, width))
        self.bias = nn.Parameter(torch.zeros(heads * width))

    def forward(self, x: Tensor, source: Tensor, destination: Tensor) -> Tensor:
        nodes = x.size(0)
        h = self.proj(x).view(nodes, self.heads, self.width)
        scores = (h * self.source_score).sum(-1)[source]
        scores = scores + (h * self.destination_score).sum(-1)[destination]
        weights = scatter_softmax(F.leaky_relu(scores, 0.2), destination, nodes)
        messages = h[source] * weights[:, :, None]
        return torch.zeros_like(h).index_add(0, destination, messages).flatten(1) + self.bias


class GraphAttention(nn.Module):
    """Three layers of graph attention over a graph with self-loops."""

    def __init__(self, features: int, heads: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            _GraphAttentionLayer(inputs, heads, width)
            for inputs in (features, heads * width, heads * width)
        )
        self.head = nn.Linear(heads * width, classes)

    def forward(self, x: Tensor, source: Tensor, destination: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.elu(layer(x, source, destination))
        return self.head(x)


def graph_isomorphism_network(features: int, width: int, classes: int) -> nn.Module:
    """PyG's GIN over a batch of graphs, with sums over each graph's nodes."""
    from torch_geometric.nn import GIN, global_add_pool

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gnn = GIN(features, width, num_layers=4, norm="batch_norm")
            self.head = nn.Linear(width, classes)

        def forward(self, x: Tensor, edges: Tensor, graph: Tensor, graphs: int) -> Tensor:
            return self.head(global_add_pool(self.gnn(x, edges), graph, graphs))

    return Pooled()


# An autoencoder of images ------------------------------------------------------------------------


class ImageVae(nn.Module):
    """Convolutions to a normal distribution of latents and back; the loss of a batch."""

    def __init__(self, widths: tuple[int, ...], size: int, latent: int) -> None:
        super().__init__()
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for inputs, outputs in zip((3, *widths), widths, strict=False):
            conv = nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False)
            down += [conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]
            back = nn.ConvTranspose2d(outputs, inputs, 4, stride=2, padding=1, bias=False)
            up = [back, nn.BatchNorm2d(inputs), nn.ReLU(), *up]
        self.size = size >> len(widths)
        flat = widths[-1] * self.size**2
        self.encode = nn.Sequential(*down, nn.Flatten(), nn.Linear(flat, 2 * latent))
        self.widen = nn.Linear(latent, flat)
        self.decode = nn.Sequential(*up[:-2], nn.Sigmoid())

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = self.encode(images).chunk(2, dim=1)
        latents = mean + noise * torch.exp(0.5 * log_variance)
        decoded = self.decode(self.widen(latents).unflatten(1, (-1, self.size, self.size)))
        fit = F.mse_loss(decoded, images, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return (fit + divergence) / images.size(0)


# Transformer with routed experts -----------------------------------------------------------------


class _Experts(nn.Module):
    """Two experts a token, each with room for a fixed number of tokens; the rest are dropped."""

    def __init__(self, width: int, experts: int, capacity: float) -> None:
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * (4 * width) ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens, width = x.shape
        probabilities = self.router(x).softmax(-1)
        weights, chosen = probabilities.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        onehot = F.one_hot(chosen.flatten(), self.experts)
        position = ((onehot.cumsum(0) - 1) * onehot).sum(-1)
        room = int(2 * self.capacity * tokens / self.experts)
        fits = position < room
        # Tokens that do not fit go to a slot of their own, which is left out.
        slot = torch.where(fits, chosen.flatten() * room + position, self.experts * room)
        inputs = x.new_zeros(self.experts * room + 1, width)
        inputs = inputs.index_copy(0, slot, x.repeat_interleave(2, dim=0))
        inputs = inputs[:-1].view(self.experts, room, width)
        hidden = F.silu(torch.bmm(inputs, self.up))
        outputs = torch.bmm(hidden, self.down).view(self.experts * room, width)
        gathered = F.pad(outputs, (0, 0, 0, 1))[slot] * (weights.flatten() * fits)[:, None]
        share = F.one_hot(chosen[:, 0], self.experts).to(x.dtype).mean(0)
        balance = self.experts * (share * probabilities.mean(0)).sum()
        return gathered.view(tokens, 2, width).sum(1), balance


class _ExpertsBlock(nn.Module):
    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.RMSNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-6)
        self.experts = _Experts(width, experts, capacity=1.25)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        out, balance = self.experts(self.norm2(x).flatten(0, 1))
        return x + out.view_as(x), balance


class MixtureOfExperts(nn.Module):
    """A decoder whose layers route each token to two experts; its loss with a balancing term."""

    def __init__(self, layers: int, width: int, heads: int, experts: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(_ExpertsBlock(width, heads, experts) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        penalty: Any = 0.0
        for block in self.blocks:
            x, balance = block(x)
            penalty = penalty + 0.01 * balance
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + penalty


# Gated linear recurrence -------------------------------------------------------------------------


def doubling_scan(decay: Tensor, x: Tensor) -> Tensor:
    """The states h[t] = decay[t] h[t-1] + x[t] along dimension 1, in log2(length) steps."""
    length, offset = x.size(1), 1
    while offset < length:
        x = x + decay * F.pad(x, (0, 0, offset, 0))[:, :length]
        decay = decay * F.pad(decay, (0, 0, offset, 0))[:, :length]
        offset *= 2
    return x


class _RecurrentBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=1e-6)
        self.inputs = nn.Linear(width, 2 * width, bias=False)
        self.conv = nn.Conv1d(width, width, 4, groups=width, padding=3)
        self.gates = nn.Linear(width, 2 * width)
        self.decay = nn.Parameter(torch.linspace(0.5, 4.0, width))
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y, side = self.inputs(self.norm1(x)).chunk(2, dim=-1)
        y = self.conv(y.transpose(1, 2))[..., : x.size(1)].transpose(1, 2)
        # The recurrence is in float32 at least.
        wide = torch.promote_types(x.dtype, torch.float32)
        gate, strength = self.gates(y).to(wide).sigmoid().chunk(2, dim=-1)
        log_decay = -F.softplus(self.decay.to(wide)) * strength
        scaled = (1 - (2 * log_decay).exp()).clamp_min(1e-6).sqrt() * gate * y.to(wide)
        states = doubling_scan(log_decay.exp(), scaled).to(x.dtype)
        x = x + self.out(states * F.gelu(side))
        value, gate = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * value)


class RecurrentLanguageModel(nn.Module):
    """Blocks with a short convolution and a gated linear recurrence (RG-LRU) over a sequence."""

    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.blocks = nn.Sequential(*(_RecurrentBlock(width) for _ in range(layers)))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens))))


# Point clouds ------------------------------------------------------------------------------------


def neighbours(points: Tensor, count: int) -> Tensor:
    """Indices (batch, points, count) of the nearest points of (batch, channels, points)."""
    squares = points.square().sum(1)
    inner = points.transpose(1, 2) @ points
    distances = squares[:, :, None] + squares[:, None] - 2 * inner
    return distances.topk(count, dim=-1, largest=False).indices


class _EdgeConv(nn.Module):
    def __init__(self, inputs: int, outputs: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.conv = nn.Conv2d(2 * inputs, outputs, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        rows, channels, points = x.shape
        flat = index.reshape(rows, 1, -1).expand(-1, channels, -1)
        near = x.gather(2, flat).view(rows, channels, points, self.count)
        own = x[..., None].expand_as(near)
        edges = torch.cat([near - own, own], dim=1)
        return F.leaky_relu(self.norm(self.conv(edges)), 0.2).amax(dim=-1)


class PointCloudNetwork(nn.Module):
    """Edge convolutions over each point's nearest neighbours (DGCNN), and a class of the cloud."""

    def __init__(self, widths: tuple[int, ...], count: int, classes: int) -> None:
        super().__init__()
        self.count = count
        self.layers = nn.ModuleList(
            _EdgeConv(inputs, outputs, count)
            for inputs, outputs in zip((3, *widths), widths, strict=False)
        )
        self.widen = nn.Conv1d(sum(widths), 8 * widths[-1], 1, bias=False)
        self.norm = nn.BatchNorm1d(8 * widths[-1])
        self.head = nn.Linear(16 * widths[-1], classes)

    def forward(self, points: Tensor) -> Tensor:
        index = neighbours(points, self.count)
        outputs = []
        x = points
        for layer in self.layers:
            x = layer(x, index)
            outputs.append(x)
        x = F.leaky_relu(self.norm(self.widen(torch.cat(outputs, dim=1))), 0.2)
        return self.head(torch.cat([x.amax(-1), x.mean(-1)], dim=1))


# Contrastive training ----------------------------------------------------------------------------


class Contrastive(nn.Module):
    """An encoder with a projection, and the NT-Xent loss of two views of the same images."""

    def __init__(self, encoder: nn.Module, features: int, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.proj = nn.Sequential(
            nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width)
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        rows = first.size(0)
        projected = self.proj(self.encoder(torch.cat([first, second])))
        unit = F.normalize(projected, dim=1)
        similar = unit @ unit.T / 0.1
        same = torch.eye(2 * rows, dtype=torch.bool, device=unit.device)
        partner = torch.arange(2 * rows, device=unit.device).roll(rows)
        return F.cross_entropy(similar.masked_fill(same, float("-inf")), partner)
