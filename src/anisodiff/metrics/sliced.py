"""Sliced Wasserstein distance between two sets of images, on pixels (Rabin et al. 2011), in float64.

    SW₂² = E_θ W₂²(θᵀx, θᵀy),    W₂² = ∫₀¹ (F⁻¹(q) − G⁻¹(q))² dq,    θ uniform on the unit sphere

x are pixels in [0,1] as one vector of D = 3·H·W numbers. For y = x + c it is ‖c‖/√D in expectation. The two
sets may differ in number: the integral runs over the common refinement of both sets' quantile steps, exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor


def directions(dimension: int, count: int, *, generator: torch.Generator) -> Tensor:
    """``count`` random unit vectors as columns ``[D,count]``, float64."""
    if count < 1:
        raise ValueError(f"at least one direction is needed, got {count}")
    theta = torch.randn(dimension, count, dtype=torch.float64, generator=generator)
    unit: Tensor = theta / torch.linalg.vector_norm(theta, dim=0)
    return unit


def project(images: Tensor, theta: Tensor) -> Tensor:
    """uint8 ``[B,C,H,W]`` → projections θᵀx ``[B,P]`` of pixels in [0,1]."""
    return images.flatten(1).double().div_(255) @ theta.to(images.device)


def sliced_wasserstein(x: Tensor, y: Tensor) -> float:
    """SW₂ from projections ``[n,P]`` and ``[m,P]`` on the same P directions."""
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"expected [n,P] and [m,P], got {tuple(x.shape)} and {tuple(y.shape)}")
    n, m = len(x), len(y)
    if not n or not m:
        raise ValueError(f"both sets need images, got {n} and {m}")
    # Quantile levels as whole numbers of 1/(nm), so that i/n = j/m is recognized without rounding.
    steps = torch.cat([torch.arange(1, n + 1) * m, torch.arange(1, m + 1) * n])
    steps = torch.unique(steps)
    widths = torch.diff(steps, prepend=steps.new_zeros(1))
    before = steps - widths  # on (before, step] both quantile functions are constant
    x, y = x.sort(dim=0).values.double(), y.sort(dim=0).values.double()
    total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    weights = (widths.double() / (n * m)).to(x.device)
    for part in torch.split(torch.arange(len(steps)), 1 << 16):
        gap = x[(before[part] // m).to(x.device)] - y[(before[part] // n).to(y.device)]
        total += (gap.square() * weights[part.to(x.device), None]).sum(dim=0)
    return float(total.mean().sqrt())
