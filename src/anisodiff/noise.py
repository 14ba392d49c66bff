"""Increments of the driving noise: white, or a Q-Wiener process smoothed in space.

Q is diagonal in the DCT-II with eigenvalues q_k ∝ exp(−ℓ² z_k/2), scaled so that the variance of a pixel,
averaged over the image, is 1: Σ_k q_k = H·W. ℓ = 0 is white noise, Q = 1.
"""

import torch
from torch import Tensor

from anisodiff.transforms import dct2, frequencies, idct2


def white(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Independent standard normals in the shape, precision and place of ``like``."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def spectrum(height: int, width: int, length: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """q [H, W], the eigenvalues of Q in DCT order for correlation length ``length`` = ℓ."""
    q = torch.exp(-0.5 * length**2 * frequencies(height, width, torch.float64, device))
    return (q / q.mean()).to(dtype)


def correlate(xi: Tensor, length: float) -> Tensor:
    """Q^{1/2} ξ: white noise ``xi`` [..., H, W] turned into noise of correlation length ℓ."""
    if length == 0.0:
        return xi
    q = spectrum(xi.shape[-2], xi.shape[-1], length, xi.dtype, xi.device)
    return idct2(q.sqrt() * dct2(xi))
