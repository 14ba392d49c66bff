"""Layers with DDPM's initialization, and the embedding of the noise condition.

    W ~ U(−r, r),   r² = 3·scale / ((fan_in + fan_out)/2),   biases 0     (Ho et al. 2020, Song et al. 2021)

Weights are drawn by `draw(generator)`, from an explicit generator and on the CPU, so that a seed means the
same network on every device and building one leaves torch's global random state alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class GroupNorm(nn.GroupNorm):
    """y = (x − μ_g)/√(σ_g² + ε)·w + b, mean and variance over the pixels and channels of a group: [B,C,H,W] → same.

    Compiled for CUDA as x·a + c with a, c [B,C] from sums over pixels, in float32: torch's own form regroups the
    channels, which in the channels_last layout means a copy of every activation, forward and backward.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; the answer is in the precision of the weights."""
        if x.is_cuda and torch.compiler.is_compiling():
            return self.affine_form(x)
        return super().forward(x)

    def affine_form(self, x: Tensor) -> Tensor:
        """The same as one multiplication and one addition a pixel."""
        x = x.to(self.weight.dtype)
        batch, channels = x.shape[:2]

        def grouped(per_channel: Tensor) -> Tensor:
            mean = per_channel.reshape(batch, self.num_groups, -1).mean(-1, keepdim=True)
            return mean.expand(-1, -1, channels // self.num_groups).reshape(batch, channels)

        mean = grouped(x.mean((2, 3)))
        variance = (grouped(x.square().mean((2, 3))) - mean.square()).clamp(min=0)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return x * scale[:, :, None, None] + (self.bias - mean * scale)[:, :, None, None]


def group_norm(channels: int) -> GroupNorm:
    """GroupNorm with min(channels/4, 32) groups and ε = 1e-6. Autocast runs it in float32."""
    return GroupNorm(min(channels // 4, 32), channels, eps=1e-6)


def _draw_uniform(weight: Tensor, scale: float, fan_in: int, fan_out: int, generator: torch.Generator) -> None:
    radius = math.sqrt(3 * max(scale, 1e-10) / ((fan_in + fan_out) / 2))
    values = torch.empty(weight.shape).uniform_(-radius, radius, generator=generator)
    with torch.no_grad():
        weight.copy_(values)


class Conv2d(nn.Conv2d):
    """Convolution with odd square kernel, padded to keep the size: [B,in,H,W] → [B,out,H/stride,W/stride].

    stacked: how many equal convolutions lie stacked along the output channels (3 for q, k, v); each is drawn
    with its own fan.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        padding: int | None = None,
        scale: float = 1.0,
        stacked: int = 1,
    ) -> None:
        self.scale, self.stacked = scale, stacked
        pad = kernel // 2 if padding is None else padding
        super().__init__(in_channels, out_channels, kernel, stride=stride, padding=pad)

    def reset_parameters(self) -> None:
        """Nothing: torch's own draw would cost time and consume the global random state."""

    def draw(self, generator: torch.Generator) -> None:
        """Draw the weights."""
        taps = self.kernel_size[0] * self.kernel_size[1]
        fan_out = self.out_channels * taps // self.stacked
        _draw_uniform(self.weight, self.scale, self.in_channels * taps, fan_out, generator)
        assert self.bias is not None
        nn.init.zeros_(self.bias)


class Linear(nn.Linear):
    """y = Wx + b with the same initialization: [B,in] → [B,out]."""

    def reset_parameters(self) -> None:
        """Nothing, as in `Conv2d`."""

    def draw(self, generator: torch.Generator) -> None:
        """Draw the weights."""
        _draw_uniform(self.weight, 1.0, self.in_features, self.out_features, generator)
        nn.init.zeros_(self.bias)


class FourierFeatures(nn.Module):
    """(sin 2πcw, cos 2πcw), w ~ N(0, scale²) frozen: c[B] → [B, 2·count] (Tancik et al. 2020)."""

    w: Tensor

    def __init__(self, count: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("w", torch.empty(count))

    def draw(self, generator: torch.Generator) -> None:
        """Draw the frequencies."""
        self.w.copy_(torch.randn(self.w.shape, generator=generator) * self.scale)

    def forward(self, c: Tensor) -> Tensor:
        """Phases reach thousands of radians: at least float32, whatever the network runs in."""
        dtype = torch.promote_types(torch.promote_types(c.dtype, self.w.dtype), torch.float32)
        phase = 2 * math.pi * c.to(dtype)[:, None] * self.w.to(dtype)
        return torch.cat([phase.sin(), phase.cos()], dim=1)


class SinusoidalFeatures(nn.Module):
    """(sin cω_i, cos cω_i), ω_i = 10^(−4i/(n−1)), i = 0 … n−1: c[B] → [B, 2n] (Vaswani et al. 2017)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, c: Tensor) -> Tensor:
        """Features of c, in at least float32."""
        dtype = torch.promote_types(c.dtype, torch.float32)
        steps = torch.arange(self.count, device=c.device, dtype=dtype)
        phase = c.to(dtype)[:, None] * torch.exp(steps * (-math.log(1e4) / (self.count - 1)))
        return torch.cat([phase.sin(), phase.cos()], dim=1)


class NoiseEmbedding(nn.Module):
    """e = swish(W₁ swish(W₀ γ(c) + b₀) + b₁): c[B] → [B, units], γ the features of the noise condition.

    The outer swish belongs to the blocks, which all begin with it: here it is computed once.
    """

    def __init__(self, features: nn.Module, count: int, units: int) -> None:
        super().__init__()
        self.features = features
        self.linear0 = Linear(count, units)
        self.linear1 = Linear(units, units)

    def forward(self, c: Tensor) -> Tensor:
        """Embed the noise condition."""
        features = self.features(c).to(self.linear0.weight.dtype)
        return nn.functional.silu(self.linear1(nn.functional.silu(self.linear0(features))))
