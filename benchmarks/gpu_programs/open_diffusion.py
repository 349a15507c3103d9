"""Diffusion models of the open half, as diffusers writes them, in plain torch.

In: sizes. Out: modules.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_programs.issue_models import modulate, timestep_embedding

# U-Net with cross-attention ----------------------------------------------------------------------


class _TimeResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return self.shortcut(x) + h


class _Attention(nn.Module):
    """Attention of tokens over themselves or over a context."""

    def __init__(self, width: int, context_width: int, head_width: int) -> None:
        super().__init__()
        self.heads = width // head_width
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(context_width, width, bias=False)
        self.value = nn.Linear(context_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for y in (self.query(x), self.key(context), self.value(context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _SpatialTransformer(nn.Module):
    """Self-attention, cross-attention and a GEGLU layer over the pixels of an image."""

    def __init__(self, channels: int, context_width: int, head_width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.proj_in = nn.Conv2d(channels, channels, 1)
        self.norm1 = nn.LayerNorm(channels)
        self.attention1 = _Attention(channels, channels, head_width)
        self.norm2 = nn.LayerNorm(channels)
        self.attention2 = _Attention(channels, context_width, head_width)
        self.norm3 = nn.LayerNorm(channels)
        self.up = nn.Linear(channels, 8 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, image: Tensor, context: Tensor) -> Tensor:
        rows, channels, height, width = image.shape
        x = self.proj_in(self.norm(image))
        x = x.permute(0, 2, 3, 1).reshape(rows, height * width, channels)
        y = self.norm1(x)
        x = x + self.attention1(y, y)
        x = x + self.attention2(self.norm2(x), context)
        value, gate = self.up(self.norm3(x)).chunk(2, dim=-1)
        x = x + self.down(value * F.gelu(gate))
        x = x.reshape(rows, height, width, channels).permute(0, 3, 1, 2)
        return image + self.proj_out(x)


class CrossAttentionUNet(nn.Module):
    """A noise predictor with one residual block and one transformer a level, conditioned on text."""

    def __init__(self, widths: tuple[int, ...], context_width: int, head_width: int) -> None:
        super().__init__()
        self.width, time_width = widths[0], 4 * widths[0]
        self.time = nn.Sequential(
            nn.Linear(self.width, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.conv_in = nn.Conv2d(4, self.width, 3, padding=1)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        for inputs, outputs in zip((self.width, *widths), widths, strict=False):
            down = (
                _TimeResidualBlock(inputs, outputs, time_width),
                _SpatialTransformer(outputs, context_width, head_width),
                nn.Conv2d(outputs, outputs, 3, stride=2, padding=1),
            )
            up = (
                nn.Conv2d(outputs, outputs, 3, padding=1),
                _TimeResidualBlock(2 * outputs, inputs, time_width),
                _SpatialTransformer(inputs, context_width, head_width),
            )
            self.down.append(nn.ModuleList(down))
            self.up.insert(0, nn.ModuleList(up))
        self.middle = _TimeResidualBlock(widths[-1], widths[-1], time_width)
        self.norm_out = nn.GroupNorm(32, self.width)
        self.conv_out = nn.Conv2d(self.width, 4, 3, padding=1)

    def forward(self, latents: Tensor, steps: Tensor, context: Tensor) -> Tensor:
        time = self.time(timestep_embedding(steps, self.width).to(latents.dtype))
        x = self.conv_in(latents)
        skips = []
        for residual, transformer, downsample in self.down:
            x = transformer(residual(x, time), context)
            skips.append(x)
            x = downsample(x)
        x = self.middle(x, time)
        for conv, residual, transformer in self.up:
            x = conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = residual(torch.cat([x, skips.pop()], dim=1), time)
            x = transformer(x, context)
        return self.conv_out(F.silu(self.norm_out(x)))


# Multimodal diffusion transformer ----------------------------------------------------------------


class _JointStream(nn.Module):
    """The weights of one of the two streams of a block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm_query = nn.RMSNorm(width // heads, eps=1e-6)
        self.norm_key = nn.RMSNorm(width // heads, eps=1e-6)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of (batch, heads, tokens, head width)."""
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        return self.norm_query(query), self.norm_key(key), value


class _JointBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.image = _JointStream(width, heads)
        self.text = _JointStream(width, heads)

    def forward(self, image: Tensor, text: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        active = F.silu(condition)
        chunks = [s.modulation(active).chunk(6, dim=-1) for s in (self.image, self.text)]
        streams = list(zip((self.image, self.text), (image, text), chunks, strict=True))
        heads = [s.heads_of(modulate(s.norm1(x), c[0], c[1])) for s, x, c in streams]
        q, k, v = (torch.cat(pair, dim=2) for pair in zip(*heads, strict=True))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        parts = attended.split([image.size(1), text.size(1)], dim=1)
        results = []
        for (stream, x, c), part in zip(streams, parts, strict=True):
            x = x + c[2][:, None] * stream.proj(part)
            x = x + c[5][:, None] * stream.mlp(modulate(stream.norm2(x), c[3], c[4]))
            results.append(x)
        return results[0], results[1]


class MultimodalDit(nn.Module):
    """Patches of latents and text tokens attend to each other with weights of their own."""

    def __init__(self, layers: int, width: int, heads: int, size: int, text_width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(16, width, 2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // 2) ** 2, width))
        self.text = nn.Linear(text_width, width)
        self.steps = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.pooled = nn.Sequential(
            nn.Linear(text_width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.blocks = nn.ModuleList(_JointBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, 2 * 2 * 16)

    def forward(self, latents: Tensor, steps: Tensor, text: Tensor) -> Tensor:
        image = self.patches(latents).flatten(2).transpose(1, 2) + self.positions
        condition = self.steps(timestep_embedding(steps, 256).to(text.dtype))
        condition = condition + self.pooled(text.mean(1))
        tokens = self.text(text)
        for block in self.blocks:
            image, tokens = block(image, tokens, condition)
        shift, scale = self.modulation(F.silu(condition)).chunk(2, dim=-1)
        return self.out(modulate(self.norm(image), shift, scale))


# Decoder of a video autoencoder ------------------------------------------------------------------


class _CausalConv3d(nn.Conv3d):
    """A convolution whose frames see themselves and earlier ones."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1, 2, 0)))


class _ChannelNorm(nn.Module):
    """Scales the channels of each voxel to a norm of one, times a weight."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = channels**0.5
        self.weight = nn.Parameter(torch.ones(channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1) * self.scale * self.weight


class _VideoResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _ChannelNorm(inputs), nn.SiLU(), _CausalConv3d(inputs, outputs),
            _ChannelNorm(outputs), nn.SiLU(), _CausalConv3d(outputs, outputs),
        )  # fmt: skip
        self.shortcut = nn.Conv3d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.layers(x)


class _VideoUpsample(nn.Module):
    def __init__(self, channels: int, frames: float) -> None:
        super().__init__()
        self.factors = (frames, 2.0, 2.0)
        self.conv = nn.Conv3d(channels, channels, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=self.factors, mode="nearest"))


class VideoDecoder(nn.Module):
    """Latents of 16 channels to four times the frames and eight times the height and width."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = [_CausalConv3d(16, widths[0])]
        for number, (inputs, outputs) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            layers += [_VideoResidualBlock(inputs, outputs), _VideoResidualBlock(outputs, outputs)]
            if number < len(widths) - 1:
                layers.append(_VideoUpsample(outputs, 2.0 if number < 2 else 1.0))
        layers += [_ChannelNorm(widths[-1]), nn.SiLU(), _CausalConv3d(widths[-1], 3)]
        self.layers = nn.Sequential(*layers)

    def forward(self, latents: Tensor) -> Tensor:
        return self.layers(latents).clamp(-1, 1)
