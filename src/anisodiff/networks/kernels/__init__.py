"""Fused Triton kernels for everything between the convolutions of NCSN++; tests compare them with the plain form.

    normalize    y = D swish GN(x + s)       GroupNorm, shift by the noise embedding, swish and keyed dropout
    add_scaled   y = (x + h + b)·r           the end of a residual block, with the bias of its last convolution
    resample     the filter [1,3,3,1]        at twice, half or the same rate

Activations are read and written once, in channels_last and in their own precision; sums are in float32. Each kernel
has an explicit backward pass that stores only its input.
"""

import math

import torch
from torch import Tensor, nn

from anisodiff.tensors import has_triton

devices = {"cuda"}
"""Device types of the kernels; tests add the CPU for Triton's interpreter."""


def fits(x: Tensor) -> bool:
    """Whether the kernels can run on features ``x`` [B, C, H, W]; not under torch.compile, which has its own."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type in devices
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() > 0
        and math.prod(x.shape[1:]) < 2**29  # of one image, also after doubling its sides
        and has_triton()
    )


def normalize(
    x: Tensor, norm: nn.GroupNorm, *, shift: Tensor | None = None, swish: bool = True,
    key: Tensor | None = None, rate: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """D swish GN(x + shift), and x itself: [B,C,H,W], ``shift`` [B,C] → twice [B,C,H,W].

    The first is in the precision of autocast, if enabled. The second is for the path around the kernel, whose
    gradient is then added inside the kernel. ``key`` int64 [B] enables dropout by `dropout.keyed_mask`.
    """
    from anisodiff.networks.kernels import normalization

    return normalization.normalize(x, norm, shift, swish, key if rate else None, rate)


def add_scaled(x: Tensor, h: Tensor, bias: Tensor, scale: float) -> Tensor:
    """(x + h + bias)·scale: [B,C,H,W] twice, ``bias`` [C] → [B,C,H,W]."""
    from anisodiff.networks.kernels import sums

    return sums.add_scaled(x, h, bias, scale)


def resample(x: Tensor, gain: float, *, pad: tuple[int, int], up: int = 1, down: int = 1) -> Tensor:
    """gain·[1,3,3,1] on both axes of x̃, which is x with up − 1 zeros after each pixel: [B,C,H,W] → [B,C,H',W'].

    y_i = gain Σ_a taps_a x̃_{down·i + a − pad₀},   H' = (up·H + pad₀ + pad₁ − 4)//down + 1,   zeros outside.
    """
    from anisodiff.networks.kernels import filters

    return filters.resample(x, gain, pad, up, down)
