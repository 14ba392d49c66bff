"""Layers of NCSN++: convolutions, noise embedding, residual block, attention.

    initialization:  W ~ U(−r, r),   r² = 3·scale / ((fan_in + fan_out)/2),   biases 0
    block:           h = Conv₁ D swish GN ( Conv₀ R swish GN x + W e ),     y = (S R x + h)/√2
    attention:       y = (x + W₃ softmax(QKᵀ/√C) V)/√2,     (Q,K,V) = (W₀,W₁,W₂) GN x, one head over the pixels

R resamples (up, down, or not at all), D is keyed dropout, S a 1×1 convolution where the shape changes (Song et al.
2021, after Brock et al. 2019 and Ho et al. 2020).

On CUDA everything between two convolutions is one kernel (`kernels`): the bias of Conv₀ is added with W e, that of
Conv₁ with the final sum. Elsewhere the plain form runs, with which the kernels are tested.

Weights are drawn by `draw(generator)` on the CPU, so that a seed gives the same network on every device and torch's
global random state is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anisodiff.networks import kernels
from anisodiff.networks.dropout import check_key, keyed_dropout

# initialization of the 1×1 maps ("network in network" layers of DDPM)
NIN_SCALE = 0.1


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with min(channels/4, 32) groups and ε = 1e-6; autocast computes it in float32."""
    return nn.GroupNorm(min(channels // 4, 32), channels, eps=1e-6)


def _draw_uniform(weight: Tensor, scale: float, fan_in: int, fan_out: int, generator: torch.Generator) -> None:
    radius = math.sqrt(3 * max(scale, 1e-10) / ((fan_in + fan_out) / 2))
    values = torch.empty(weight.shape).uniform_(-radius, radius, generator=generator)
    with torch.no_grad():
        weight.copy_(values)


class Conv2d(nn.Conv2d):
    """Convolution with odd square kernel and same padding: [B,in,H,W] → [B,out,H/stride,W/stride].

    stacked: number of convolutions stacked along the output channels (3 for q, k, v), each with its own fan_out.
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
        """Nothing: weights are drawn by `draw`."""

    def draw(self, generator: torch.Generator) -> None:
        taps = self.kernel_size[0] * self.kernel_size[1]
        fan_out = self.out_channels * taps // self.stacked
        _draw_uniform(self.weight, self.scale, self.in_channels * taps, fan_out, generator)
        assert self.bias is not None
        nn.init.zeros_(self.bias)


class Linear(nn.Linear):
    """y = Wx + b with the same initialization: [B,in] → [B,out]."""

    def reset_parameters(self) -> None:
        """Nothing: weights are drawn by `draw`."""

    def draw(self, generator: torch.Generator) -> None:
        _draw_uniform(self.weight, 1.0, self.in_features, self.out_features, generator)
        nn.init.zeros_(self.bias)


def unbiased(conv: nn.Conv2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """The convolution without its bias, and the bias."""
    assert conv.bias is not None
    return F.conv2d(x, conv.weight, None, conv.stride, conv.padding), conv.bias


class FourierFeatures(nn.Module):
    """(sin 2πcw, cos 2πcw), w ~ N(0, scale²) frozen: c[B] → [B, 2·count] (Tancik et al. 2020)."""

    w: Tensor

    def __init__(self, count: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("w", torch.empty(count))

    def draw(self, generator: torch.Generator) -> None:
        self.w.copy_(torch.randn(self.w.shape, generator=generator) * self.scale)

    def forward(self, c: Tensor) -> Tensor:
        """In float32 at least: phases reach thousands of radians."""
        dtype = torch.promote_types(torch.promote_types(c.dtype, self.w.dtype), torch.float32)
        phase = 2 * math.pi * c.to(dtype)[:, None] * self.w.to(dtype)
        return torch.cat([phase.sin(), phase.cos()], dim=1)


class SinusoidalFeatures(nn.Module):
    """(sin cω_i, cos cω_i), ω_i = 10^(−4i/(n−1)), i = 0 … n−1: c[B] → [B, 2n] (Vaswani et al. 2017)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, c: Tensor) -> Tensor:
        dtype = torch.promote_types(c.dtype, torch.float32)
        steps = torch.arange(self.count, device=c.device, dtype=dtype)
        phase = c.to(dtype)[:, None] * torch.exp(steps * (-math.log(1e4) / (self.count - 1)))
        return torch.cat([phase.sin(), phase.cos()], dim=1)


class NoiseEmbedding(nn.Module):
    """e = swish(W₁ swish(W₀ γ(c) + b₀) + b₁ + a): c[B] → [B, units], γ the features of the noise condition.

    a [B, units] is a further embedding, such as that of the class. The outer swish is the first operation of every
    block and computed once here.
    """

    def __init__(self, features: nn.Module, count: int, units: int) -> None:
        super().__init__()
        self.features = features
        self.linear0 = Linear(count, units)
        self.linear1 = Linear(units, units)

    def forward(self, c: Tensor, also: Tensor | None = None) -> Tensor:
        features = self.features(c).to(self.linear0.weight.dtype)
        e = self.linear1(F.silu(self.linear0(features)))
        return F.silu(e if also is None else e + also)


class ClassEmbedding(nn.Module):
    """√K·W[label], [B] → [B, units], for the classes 0 … K − 1 and the null label K.

    W starts at 0. √K is the scale of a one-hot label of unit variance (Karras et al. 2022).
    """

    def __init__(self, classes: int, units: int) -> None:
        super().__init__()
        self.classes, self.scale = classes, classes**0.5
        self.weight = nn.Parameter(torch.zeros(classes + 1, units))

    def forward(self, labels: Tensor | None, count: int) -> Tensor:
        """``labels`` None: the null label, ``count`` times."""
        if labels is None:
            labels = torch.full((count,), self.classes, dtype=torch.int64, device=self.weight.device)
        embedding: Tensor = self.scale * F.embedding(labels, self.weight)
        return embedding


class ResidualBlock(nn.Module):
    """x[B,in,H,W], e[B,units] → [B,out,H',W'], H' = H unless `resample` changes it.

    resample        R, applied to both branches; it forces S
    shortcut_scale  initial variance scale of S
    layer           index of this block in the network, for its dropout key (`dropout.layer_key`)
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
        """``key`` int64 [B], of this layer, enables dropout."""
        if kernels.fits(x):
            return self._fused(x, e, key)
        h = F.silu(self.norm0(x))
        if self.resample is not None:
            h, x = self.resample(h), self.resample(x)
        h = self.conv0(h) + self.affine(e)[:, :, None, None]
        h = F.silu(self.norm1(h))
        h = self.conv1(keyed_dropout(h, key, rate=self.dropout))
        if self.shortcut is not None:
            x = self.shortcut(x)
        out: Tensor = (x + h) * self.rescale
        return out

    def _fused(self, x: Tensor, e: Tensor, key: Tensor | None) -> Tensor:
        if key is not None:
            check_key(key, len(x))
        h, x = kernels.normalize(x, self.norm0)
        if self.resample is not None:
            h, x = self.resample(h), self.resample(x)
        h, bias = unbiased(self.conv0, h)
        h, _ = kernels.normalize(h, self.norm1, shift=self.affine(e) + bias, key=key, rate=self.dropout)
        h, bias = unbiased(self.conv1, h)
        if self.shortcut is not None:
            x, more = unbiased(self.shortcut, x)
            bias = bias + more
        return kernels.add_scaled(x, h, bias, self.rescale)


class Attention(nn.Module):
    """Single-head self-attention over the H·W pixels: [B,C,H,W] → [B,C,H,W].

    qk_norm   divide q and k by their root mean square, so that |qᵀk|/√C ≤ √C (Henry et al. 2020). Without it logits
              exceeded 1000 in long runs at a high learning rate (docs/results, run 27).
    """

    def __init__(self, channels: int, *, skip_rescale: bool, init_scale: float, qk_norm: bool = False) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.qkv = Conv2d(channels, 3 * channels, 1, scale=NIN_SCALE, stacked=3)
        self.out = Conv2d(channels, channels, 1, scale=init_scale)
        self.qk_norm = qk_norm
        self.rescale = math.sqrt(0.5) if skip_rescale else 1.0

    def forward(self, x: Tensor) -> Tensor:
        if kernels.fits(x):
            return self._fused(x)
        # [B,1,H·W,3C]: a view when the memory is channels_last
        qkv = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).unsqueeze(1)
        h = self.attend(qkv)
        h = self.out(h.squeeze(1).transpose(1, 2).reshape(x.shape))
        out: Tensor = (x + h) * self.rescale
        return out

    def attend(self, qkv: Tensor) -> Tensor:
        """softmax(QKᵀ/√C) V: [B,1,H·W,3C] → [B,1,H·W,C]."""
        q, k, v = qkv.chunk(3, dim=-1)
        if self.qk_norm:
            q, k = (F.rms_norm(x, x.shape[-1:], eps=1e-6).to(v.dtype) for x in (q, k))
        return F.scaled_dot_product_attention(q, k, v)

    def _fused(self, x: Tensor) -> Tensor:
        """The 1×1 convolutions as matrix products over the pixels [B,1,H·W,C]."""
        batch, channels, height, width = x.shape
        h, x = kernels.normalize(x, self.norm, swish=False)
        pixels = h.permute(0, 2, 3, 1).reshape(batch, 1, -1, channels)
        h = self.attend(F.linear(pixels, self.qkv.weight.flatten(1), self.qkv.bias))
        h = F.linear(h, self.out.weight.flatten(1))
        h = h.view(batch, height, width, channels).permute(0, 3, 1, 2)
        assert self.out.bias is not None
        return kernels.add_scaled(x, h, self.out.bias, self.rescale)
