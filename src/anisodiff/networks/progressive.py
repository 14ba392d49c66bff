"""Progressive paths (Song et al. 2021, Karras et al. 2020): the image fed to and collected from each level.

    input_skip:   p ← ↓p,            h ← W p + h  (or both side by side)
    residual in:  p ← (Conv↓ p + h)/√2,   h ← p
    output_skip:  p ← ↑p + Conv swish GN h,                     output p
    residual out: p ← (Conv↑ p + h)/√2,   h ← p,                output Conv swish GN h

Every feed and every collector maps (pyramid, h) → (pyramid, h), so the network needs no cases. Feeds stand
after each halving, the collectors after each level on the way up; the deepest collector has no pyramid yet.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anisodiff.networks.layers import Conv2d, group_norm
from anisodiff.networks.resample import DownConv, UpConv, downsample, upsample


class Head(nn.Module):
    """Conv swish GN h: [B,in,H,W] → [B,out,H,W]."""

    def __init__(self, in_channels: int, out_channels: int, *, scale: float) -> None:
        super().__init__()
        self.norm = group_norm(in_channels)
        self.conv = Conv2d(in_channels, out_channels, scale=scale)

    def forward(self, h: Tensor) -> Tensor:
        """Normalize, activate, convolve."""
        out: Tensor = self.conv(F.silu(self.norm(h)))
        return out


class Through(nn.Module):
    """No progressive path: (p, h) → (p, h)."""

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Change nothing."""
        return pyramid, h


class SkipFeed(nn.Module):
    """p ← ↓p, h ← W p + h or (W p, h): p[B,in,2H,2W], h[B,C,H,W] → p[B,in,H,W], h[B,C or 2C,H,W]."""

    def __init__(self, in_channels: int, channels: int, *, concatenate: bool, fir: bool) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, channels, 1)
        self.concatenate, self.fir = concatenate, fir

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Halve the image and join it to the features."""
        pyramid = downsample(pyramid, fir=self.fir)
        image = self.conv(pyramid)
        return pyramid, torch.cat([image, h], dim=1) if self.concatenate else image + h


class ResidualFeed(nn.Module):
    """p ← (Conv↓ p + h)/√2, h ← p: p[B,in,2H,2W], h[B,C,H,W] → both [B,C,H,W]."""

    def __init__(self, in_channels: int, channels: int, *, skip_rescale: bool, fir: bool) -> None:
        super().__init__()
        self.conv = DownConv(in_channels, channels, fir=fir)
        self.rescale = math.sqrt(0.5) if skip_rescale else 1.0

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Halve the pyramid and add the features."""
        pyramid = (self.conv(pyramid) + h) * self.rescale
        return pyramid, pyramid


class Start(nn.Module):
    """p ← Conv swish GN h: where either way of collecting begins, at the deepest level."""

    def __init__(self, channels: int, out_channels: int, *, scale: float) -> None:
        super().__init__()
        self.head = Head(channels, out_channels, scale=scale)

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Begin the pyramid; what is given as pyramid is not read."""
        return self.head(h), h


class SkipCollect(nn.Module):
    """p ← ↑p + Conv swish GN h: p[B,out,H/2,W/2], h[B,C,H,W] → p[B,out,H,W], h."""

    def __init__(self, channels: int, out_channels: int, *, scale: float, fir: bool) -> None:
        super().__init__()
        self.head = Head(channels, out_channels, scale=scale)
        self.fir = fir

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Double the image and add this level's part."""
        return upsample(pyramid, fir=self.fir) + self.head(h), h


class ResidualCollect(nn.Module):
    """p ← (Conv↑ p + h)/√2, h ← p: p[B,in,H/2,W/2], h[B,C,H,W] → both [B,C,H,W]."""

    def __init__(self, in_channels: int, channels: int, *, skip_rescale: bool, fir: bool) -> None:
        super().__init__()
        self.conv = UpConv(in_channels, channels, fir=fir)
        self.rescale = math.sqrt(0.5) if skip_rescale else 1.0

    def forward(self, pyramid: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Double the pyramid and add the features."""
        pyramid = (self.conv(pyramid) + h) * self.rescale
        return pyramid, pyramid
