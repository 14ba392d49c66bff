"""Resampling by two with the filter [1,3,3,1], and the progressive paths (Song et al. 2021, Karras et al. 2020).

    down: y_i = (x_{2i−1} + 3x_{2i} + 3x_{2i+1} + x_{2i+2})/8          per axis, x = 0 outside the image
    up:   y_{2i} = (x_{i−1} + 3x_i)/4,   y_{2i+1} = (3x_i + x_{i+1})/4

The filter is separable and applied as weighted sums of shifted views, which preserve channels_last. On CUDA it is one
kernel (`kernels.resample`). Without FIR the filter is the box [1,1]: average pooling and nearest neighbor.

A progressive path adds a downsampled image to each level of the encoder, or sums the output over the levels of the
decoder:

    input_skip:   p ← ↓p,            h ← W p + h  (or both side by side)
    residual in:  p ← (Conv↓ p + h)/√2,   h ← p
    output_skip:  p ← ↑p + Conv swish GN h,                     output p
    residual out: p ← (Conv↑ p + h)/√2,   h ← p,                output Conv swish GN h

Each is a module (pyramid, h) → (pyramid, h): inputs (feeds) follow each downsampling, outputs (collectors) each level
of the decoder; the deepest collector has no pyramid yet.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anisodiff.networks import kernels
from anisodiff.networks.layers import Conv2d, group_norm, unbiased

TAPS = (1.0, 3.0, 3.0, 1.0)


def fir2d(x: Tensor, taps: tuple[float, ...], *, pad: tuple[int, int], stride: int = 1) -> Tensor:
    """y_i = Σ_a taps_a x_{stride·i + a − pad₀} on both axes, zeros outside: [B,C,H,W] → [B,C,H',W'].

    H' = (H + pad₀ + pad₁ − len(taps))//stride + 1.
    """
    x = F.pad(x, (pad[0], pad[1], pad[0], pad[1]))
    for axis in (2, 3):
        last = x.shape[axis] - len(taps)  # where the last window begins
        if last < 0:
            raise ValueError(f"got {x.shape[axis]} padded pixels, expected at least {len(taps)}")
        window = [slice(None)] * 4
        total: Tensor | None = None
        for a, tap in enumerate(taps):
            window[axis] = slice(a, a + last + 1, stride)
            term = x[tuple(window)] * tap
            total = term if total is None else total + term
        assert total is not None
        x = total
    return x


def downsample(x: Tensor, *, fir: bool) -> Tensor:
    """Halve the resolution: [B,C,H,W] → [B,C,H/2,W/2]."""
    if not fir:
        return F.avg_pool2d(x, 2)
    if kernels.fits(x):
        return kernels.resample(x, 1 / 8, pad=(1, 1), down=2)
    return fir2d(x, tuple(tap / 8 for tap in TAPS), pad=(1, 1), stride=2)


def upsample(x: Tensor, *, fir: bool) -> Tensor:
    """Double the resolution: [B,C,H,W] → [B,C,2H,2W]."""
    if fir and kernels.fits(x):
        return kernels.resample(x, 1 / 4, pad=(2, 1), up=2)
    x = F.interpolate(x, scale_factor=2.0, mode="nearest")
    # [1,3,3,1] = [1,1] ∗ [1,2,1], and nearest neighbor is the [1,1]: no zeros need to be interleaved
    return fir2d(x, (0.25, 0.5, 0.25), pad=(1, 1)) if fir else x


class DownConv(Conv2d):
    """3×3 convolution and halving in one: [B,in,H,W] → [B,out,H/2,W/2].

    With FIR the filter runs at full resolution before a strided convolution; without, the image is padded by one row
    and one column of zeros at the bottom and right, as in DDPM.
    """

    def __init__(self, in_channels: int, out_channels: int, *, fir: bool) -> None:
        super().__init__(in_channels, out_channels, stride=2, padding=0)
        self.fir = fir

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.padded(x))

    def padded(self, x: Tensor) -> Tensor:
        """The input of the strided convolution: [B,in,H,W] → [B,in,H+1,W+1]."""
        if not self.fir:
            return F.pad(x, (0, 1, 0, 1))
        if kernels.fits(x):
            return kernels.resample(x, 1 / 8, pad=(2, 2))
        return fir2d(x, tuple(tap / 8 for tap in TAPS), pad=(2, 2))


class UpConv(Conv2d):
    """Doubling and 3×3 convolution in one: [B,in,H,W] → [B,out,2H,2W].

    With FIR a transposed convolution with the rotated kernel is followed by the filter; without, nearest neighbor by
    the convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, *, fir: bool) -> None:
        super().__init__(in_channels, out_channels)
        self.fir = fir

    def forward(self, x: Tensor) -> Tensor:
        if not self.fir:
            return super().forward(upsample(x, fir=False))
        rotated = torch.flip(self.weight, (2, 3)).transpose(0, 1)
        x = F.conv_transpose2d(x, rotated, stride=2)
        fused = kernels.fits(x)
        x = kernels.resample(x, 1 / 4, pad=(1, 1)) if fused else fir2d(x, tuple(t / 4 for t in TAPS), pad=(1, 1))
        assert self.bias is not None
        return x + self.bias[:, None, None].to(x.dtype)


class Head(nn.Module):
    """Conv swish GN h: [B,in,H,W] → [B,out,H,W]."""

    def __init__(self, in_channels: int, out_channels: int, *, scale: float) -> None:
        super().__init__()
        self.norm = group_norm(in_channels)
        self.conv = Conv2d(in_channels, out_channels, scale=scale)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.conv(kernels.normalize(h, self.norm)[0] if kernels.fits(h) else F.silu(self.norm(h)))
        return out


class Through(nn.Module):
    """No progressive path: (p, h) → (p, h)."""

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return pyramid, h


class SkipFeed(nn.Module):
    """p ← ↓p, h ← W p + h or (W p, h): p[B,in,2H,2W], h[B,C,H,W] → p[B,in,H,W], h[B,C or 2C,H,W]."""

    def __init__(self, in_channels: int, channels: int, *, concatenate: bool, fir: bool) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, channels, 1)
        self.concatenate, self.fir = concatenate, fir

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        pyramid = downsample(pyramid, fir=self.fir)
        if kernels.fits(h) and not self.concatenate:
            image, bias = unbiased(self.conv, pyramid)
            return pyramid, kernels.add_scaled(image, h, bias, 1.0)
        image = self.conv(pyramid)
        return pyramid, torch.cat([image, h], dim=1) if self.concatenate else image + h


class ResidualFeed(nn.Module):
    """p ← (Conv↓ p + h)/√2, h ← p: p[B,in,2H,2W], h[B,C,H,W] → both [B,C,H,W]."""

    def __init__(self, in_channels: int, channels: int, *, skip_rescale: bool, fir: bool) -> None:
        super().__init__()
        self.conv = DownConv(in_channels, channels, fir=fir)
        self.rescale = math.sqrt(0.5) if skip_rescale else 1.0

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        if kernels.fits(h):
            image, bias = unbiased(self.conv, self.conv.padded(pyramid))
            pyramid = kernels.add_scaled(image, h, bias, self.rescale)
            return pyramid, pyramid
        pyramid = (self.conv(pyramid) + h) * self.rescale
        return pyramid, pyramid


class Start(nn.Module):
    """p ← Conv swish GN h: the collector of the deepest level, for both kinds; p is not read."""

    def __init__(self, channels: int, out_channels: int, *, scale: float) -> None:
        super().__init__()
        self.head = Head(channels, out_channels, scale=scale)

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(h), h


class SkipCollect(nn.Module):
    """p ← ↑p + Conv swish GN h: p[B,out,H/2,W/2], h[B,C,H,W] → p[B,out,H,W], h."""

    def __init__(self, channels: int, out_channels: int, *, scale: float, fir: bool) -> None:
        super().__init__()
        self.head = Head(channels, out_channels, scale=scale)
        self.fir = fir

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return upsample(pyramid, fir=self.fir) + self.head(h), h


class ResidualCollect(nn.Module):
    """p ← (Conv↑ p + h)/√2, h ← p: p[B,in,H/2,W/2], h[B,C,H,W] → both [B,C,H,W]."""

    def __init__(self, in_channels: int, channels: int, *, skip_rescale: bool, fir: bool) -> None:
        super().__init__()
        self.conv = UpConv(in_channels, channels, fir=fir)
        self.rescale = math.sqrt(0.5) if skip_rescale else 1.0

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        pyramid = (self.conv(pyramid) + h) * self.rescale
        return pyramid, pyramid
