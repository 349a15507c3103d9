"""Diffusion models of the half that is looked at only at the end, in plain torch.

In: sizes. Out: modules.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_programs.issue_models import modulate, timestep_embedding

# U-Net that preserves magnitudes -----------------------------------------------------------------


def normalize(x: Tensor, dims: Any) -> Tensor:
    """Scales `x` so that its root mean square over `dims` is one."""
    wide = torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x, dim=dims, keepdim=True, dtype=wide)
    norm = 1e-4 + norm * math.sqrt(norm.numel() / x.numel())
    return x / norm.to(x.dtype)


def _silu(x: Tensor) -> Tensor:
    return F.silu(x) / 0.596


def _mixed(a: Tensor, b: Tensor, share: float) -> Tensor:
    return a.lerp(b, share) / math.sqrt((1 - share) ** 2 + share**2)


class _NormalizedConv(nn.Module):
    """A convolution, or a linear layer, whose weights are normalized in each forward."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 0) -> None:
        super().__init__()
        self.kernel = kernel
        shape = (outputs, inputs, kernel, kernel) if kernel else (outputs, inputs)
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        weight = normalize(self.weight, tuple(range(1, self.weight.dim())))
        weight = weight / math.sqrt(weight[0].numel())
        if not self.kernel:
            return x @ weight.to(x.dtype).T
        return F.conv2d(x, weight.to(x.dtype), padding=self.kernel // 2)


class _MagnitudeBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, condition: int, head_width: int) -> None:
        super().__init__()
        self.heads = outputs // head_width if head_width else 0
        self.shortcut = _NormalizedConv(inputs, outputs, 1)
        self.conv1 = _NormalizedConv(outputs, outputs, 3)
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.condition = _NormalizedConv(condition, outputs)
        self.conv2 = _NormalizedConv(outputs, outputs, 3)
        self.qkv = _NormalizedConv(outputs, 3 * outputs, 1) if head_width else None
        self.proj = _NormalizedConv(outputs, outputs, 1) if head_width else None

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        x = normalize(self.shortcut(x), 1)
        y = self.conv1(_silu(x))
        scale = self.condition(condition) * self.gain + 1
        y = self.conv2(_silu(y * scale[:, :, None, None].to(y.dtype)))
        x = _mixed(x, y, 0.3)
        if self.qkv is not None and self.proj is not None:
            x = _mixed(x, self.proj(self.attend(self.qkv(x))), 0.3)
        return x.clamp(-256, 256)

    def attend(self, qkv: Tensor) -> Tensor:
        rows, _, height, width = qkv.shape
        parts = qkv.reshape(rows, self.heads, -1, 3, height * width)
        q, k, v = normalize(parts, 2).transpose(2, 4).unbind(3)
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(2, 3).reshape(rows, -1, height, width)


class MagnitudeUNet(nn.Module):
    """A noise predictor after EDM2; its forward returns the loss of images and noise levels."""

    def __init__(self, widths: tuple[int, ...], head_width: int) -> None:
        super().__init__()
        condition = 4 * widths[0]
        self.noise = _NormalizedConv(widths[0], condition)
        self.register_buffer("frequencies", 2 * math.pi * torch.randn(widths[0]))
        self.register_buffer("phases", 2 * math.pi * torch.rand(widths[0]))
        self.conv_in = _NormalizedConv(4, widths[0], 3)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        last = len(widths) - 1
        for level, (inputs, outputs) in enumerate(zip((widths[0], *widths), widths, strict=False)):
            attention = head_width if level == last else 0
            self.down.append(_MagnitudeBlock(inputs, outputs, condition, attention))
            self.up.insert(0, _MagnitudeBlock(2 * outputs, inputs, condition, attention))
        self.conv_out = _NormalizedConv(widths[0], 4, 3)

    def forward(self, images: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        sigma = levels.exp()[:, None, None, None]
        noisy = (images + sigma * noise) / (1 + sigma.square()).sqrt()
        waves = torch.outer(levels / 4, self.frequencies) + self.phases
        condition = _silu(self.noise(waves.cos() * math.sqrt(2)))
        x = self.conv_in(noisy)
        skips = []
        for level, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if level else x, condition)
            skips.append(x)
        for level, block in enumerate(self.up):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest") if level else x
            x = block(torch.cat([x, skips.pop()], dim=1), condition)
        weight = (1 + sigma.square()) / sigma.square()
        return (weight * (self.conv_out(x) - noise).square()).mean()


# One stream of text and image tokens -------------------------------------------------------------


def axial_angles(height: int, width: int, text: int, head_width: int) -> Tensor:
    """Rotary angles of text tokens (position 0) and an image's patches by row and column."""
    frequencies = 1.0 / 10000 ** (torch.arange(0, head_width // 2, 2) / (head_width // 2))
    rows = torch.arange(height).repeat_interleave(width)
    columns = torch.arange(width).repeat(height)
    angles = torch.cat([torch.outer(rows, frequencies), torch.outer(columns, frequencies)], dim=1)
    return torch.cat([torch.zeros(text, angles.size(1)), angles])


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns neighbouring pairs of the last dimension."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    rotated = (first * cos - second * sin, first * sin + second * cos)
    return torch.stack(rotated, dim=-1).flatten(-2)


class _SingleStreamBlock(nn.Module):
    """Attention and the MLP side by side, from one linear layer into one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 3 * width)
        self.linear1 = nn.Linear(width, 7 * width)
        self.linear2 = nn.Linear(5 * width, width)
        self.norm_query = nn.RMSNorm(width // heads, eps=1e-6)
        self.norm_key = nn.RMSNorm(width // heads, eps=1e-6)

    def forward(self, x: Tensor, condition: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(condition)).chunk(3, dim=-1)
        hidden = self.linear1(modulate(self.norm(x), shift, scale))
        qkv, mlp = hidden.split([3 * self.width, 4 * self.width], dim=-1)
        q, k, v = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q = rotate_pairs(self.norm_query(q), cos, sin)
        k = rotate_pairs(self.norm_key(k), cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out = self.linear2(torch.cat([attended, F.gelu(mlp, approximate="tanh")], dim=2))
        return x + gate[:, None] * out


class SingleStreamDit(nn.Module):
    """A diffusion transformer over text and image tokens together, after Flux."""

    cos: Tensor
    sin: Tensor

    def __init__(self, layers: int, width: int, heads: int, size: int, text: int) -> None:
        super().__init__()
        self.text_in = nn.Linear(1024, width)
        self.image_in = nn.Linear(64, width)
        self.steps = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(_SingleStreamBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, 64)
        angles = axial_angles(size, size, text, width // heads)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, patches: Tensor, text: Tensor, steps: Tensor) -> Tensor:
        condition = self.steps(timestep_embedding(steps, 256).to(text.dtype))
        x = torch.cat([self.text_in(text), self.image_in(patches)], dim=1)
        for block in self.blocks:
            x = block(x, condition, self.cos, self.sin)
        x = x[:, text.size(1) :]
        shift, scale = self.modulation(F.silu(condition)).chunk(2, dim=-1)
        return self.out(modulate(self.norm(x), shift, scale))


# U-Net over frames -------------------------------------------------------------------------------


class _FrameAttention(nn.Module):
    """Attention over (sequences, tokens, width) with a norm before and a residual."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.heads = width // head_width
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unbind(0))
        return x + self.proj(attended.transpose(1, 2).flatten(2))


class _FrameBlock(nn.Module):
    """Convolution and attention in each frame, then along the frames of each pixel."""

    def __init__(self, inputs: int, outputs: int, time_width: int, head_width: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.norm3 = nn.GroupNorm(32, outputs)
        self.frames = nn.Conv3d(outputs, outputs, (3, 1, 1), padding=(1, 0, 0))
        self.mix = nn.Parameter(torch.zeros(()))
        self.in_space = _FrameAttention(outputs, head_width)
        self.in_time = _FrameAttention(outputs, head_width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        rows, frames, _, height, width = x.shape
        images = x.flatten(0, 1)
        y = self.conv1(F.silu(self.norm1(images))).unflatten(0, (rows, frames))
        y = (y + self.time(F.silu(time))[:, None, :, None, None]).flatten(0, 1)
        y = self.shortcut(images) + self.conv2(F.silu(self.norm2(y)))
        video = y.unflatten(0, (rows, frames)).transpose(1, 2)
        moved = video + self.frames(F.silu(self.norm3(video)))
        share = self.mix.sigmoid()
        video = share * video + (1 - share) * moved
        pixels = video.permute(0, 2, 3, 4, 1).reshape(rows * frames, height * width, -1)
        pixels = self.in_space(pixels).unflatten(0, (rows, frames)).transpose(1, 2).flatten(0, 1)
        pixels = self.in_time(pixels).unflatten(0, (rows, height, width))
        return pixels.permute(0, 3, 4, 1, 2)


class VideoUNet(nn.Module):
    """A noise predictor for (batch, frames, 4, height, width)."""

    def __init__(self, widths: tuple[int, ...], head_width: int) -> None:
        super().__init__()
        self.width, time_width = widths[0], 4 * widths[0]
        self.time = nn.Sequential(
            nn.Linear(self.width, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.conv_in = nn.Conv2d(4, self.width, 3, padding=1)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        for inputs, outputs in zip((self.width, *widths), widths, strict=False):
            self.down.append(_FrameBlock(inputs, outputs, time_width, head_width))
            self.up.insert(0, _FrameBlock(2 * outputs, inputs, time_width, head_width))
        self.norm_out = nn.GroupNorm(32, self.width)
        self.conv_out = nn.Conv2d(self.width, 4, 3, padding=1)

    def forward(self, latents: Tensor, steps: Tensor) -> Tensor:
        rows, frames = latents.shape[:2]
        time = self.time(timestep_embedding(steps, self.width).to(latents.dtype))
        x = self.conv_in(latents.flatten(0, 1)).unflatten(0, (rows, frames))
        skips = []
        for level, block in enumerate(self.down):
            if level:
                x = F.avg_pool2d(x.flatten(0, 1), 2).unflatten(0, (rows, frames))
            x = block(x, time)
            skips.append(x)
        for level, block in enumerate(self.up):
            if level:
                x = F.interpolate(x.flatten(0, 1), scale_factor=2.0).unflatten(0, (rows, frames))
            x = block(torch.cat([x, skips.pop()], dim=2), time)
        out = self.conv_out(F.silu(self.norm_out(x.flatten(0, 1))))
        return out.unflatten(0, (rows, frames))
