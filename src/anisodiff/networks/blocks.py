"""Residual block and self-attention, the building blocks of NCSN++.

    block:      h = Conv₁ D swish GN ( Conv₀ R swish GN x + W e ),     y = (S R x + h)/√2
    attention:  y = (x + W₃ softmax(QKᵀ/√C) V)/√2,     (Q,K,V) = (W₀,W₁,W₂) GN x, one head over the pixels

R resamples (up, down, or nothing), D is keyed dropout, S a 1×1 convolution where the shape changes
(Song et al. 2021, after Brock et al. 2019 and Ho et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from anisodiff.networks.dropout import keyed_dropout
from anisodiff.networks.layers import Conv2d, Linear, group_norm

# 1×1 maps that Song et al. inherit from DDPM's "network in network" layers start smaller
NIN_SCALE = 0.1


class ResidualBlock(nn.Module):
    """x[B,in,H,W], e[B,units] → [B,out,H',W'], H' = H unless `resample` changes it.

    resample        R, applied to both branches; it forces S
    shortcut_scale  initial variance scale of S
    layer           number of this dropout in the network
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        units: int,
        dropout: float,
        layer: int,
        skip_rescale: bool,
        init_scale: float,
        shortcut_scale: float = 1.0,
        resample: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.norm0 = group_norm(in_channels)
        self.conv0 = Conv2d(in_channels, out_channels)
        self.affine = Linear(units, out_channels)
        self.norm1 = group_norm(out_channels)
        self.conv1 = Conv2d(out_channels, out_channels, scale=init_scale)
        self.shortcut: Conv2d | None = None
        if resample is not None or in_channels != out_channels:
            self.shortcut = Conv2d(in_channels, out_channels, 1, scale=shortcut_scale)
        self.resample = resample
        self.dropout, self.layer = dropout, layer
        self.rescale = math.sqrt(0.5) if skip_rescale else 1.0

    def forward(self, x: Tensor, e: Tensor, key: Tensor | None = None) -> Tensor:
        """One residual step; key[B] (int64) turns the dropout on."""
        h = F.silu(self.norm0(x))
        if self.resample is not None:
            h, x = self.resample(h), self.resample(x)
        h = self.conv0(h) + self.affine(e)[:, :, None, None]
        h = F.silu(self.norm1(h))
        h = self.conv1(keyed_dropout(h, key, layer=self.layer, rate=self.dropout))
        if self.shortcut is not None:
            x = self.shortcut(x)
        out: Tensor = (x + h) * self.rescale
        return out


class Attention(nn.Module):
    """Single-head self-attention over the H·W pixels: [B,C,H,W] → [B,C,H,W]."""

    def __init__(self, channels: int, *, skip_rescale: bool, init_scale: float) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.qkv = Conv2d(channels, 3 * channels, 1, scale=NIN_SCALE, stacked=3)
        self.out = Conv2d(channels, channels, 1, scale=init_scale)
        self.rescale = math.sqrt(0.5) if skip_rescale else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every pixel to every pixel."""
        # [B,1,H·W,3C]: a view when the memory is channels_last
        qkv = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).unsqueeze(1)
        q, k, v = qkv.chunk(3, dim=-1)
        h = F.scaled_dot_product_attention(q, k, v)
        h = self.out(h.squeeze(1).transpose(1, 2).reshape(x.shape))
        out: Tensor = (x + h) * self.rescale
        return out
