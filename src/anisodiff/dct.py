"""The orthonormal DCT-II as matrices, and the frequencies of the grid with zero-flux boundary.

The five-point Laplacian with zero-flux (Neumann) boundary is diagonal in the DCT-II, with eigenvalues −z_k,
z_k = (2 − 2 cos(π k1/H)) + (2 − 2 cos(π k2/W)) ∈ [0, 8).
"""

import math

import torch
from torch import Tensor

from anisodiff.tensors import cached


@cached
def dct_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Orthonormal DCT-II matrix D[k, i] = √(2/n)·c_k·cos(π k (i+½)/n), c_0 = 1/√2: D Dᵀ = 1."""
    k = torch.arange(n, dtype=torch.float64)[:, None]
    i = torch.arange(n, dtype=torch.float64)[None, :]
    matrix = math.sqrt(2.0 / n) * torch.cos(math.pi * k * (i + 0.5) / n)
    matrix[0] /= math.sqrt(2.0)
    return matrix.to(device=device, dtype=dtype)


def dct2(u: Tensor) -> Tensor:
    """DCT-II over the last two axes of ``u`` [..., H, W]."""
    rows = dct_matrix(u.shape[-2], u.dtype, u.device)
    columns = dct_matrix(u.shape[-1], u.dtype, u.device)
    return rows @ u @ columns.mT


def idct2(u: Tensor) -> Tensor:
    """Inverse of :func:`dct2`."""
    rows = dct_matrix(u.shape[-2], u.dtype, u.device)
    columns = dct_matrix(u.shape[-1], u.dtype, u.device)
    return rows.mT @ u @ columns


@cached
def axis_frequencies(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One axis' share of z: 2 − 2 cos(πk/n) = 4 sin²(πk/2n), k = 0 … n−1."""
    k = torch.arange(n, dtype=torch.float64)
    return (4.0 * torch.sin(math.pi * k / (2 * n)) ** 2).to(device=device, dtype=dtype)


def frequencies(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """z [H, W]: minus the eigenvalues of the zero-flux Laplacian, in DCT order."""
    rows = axis_frequencies(height, dtype, device)
    return rows[:, None] + axis_frequencies(width, dtype, device)[None, :]


def radial_bands(height: int, width: int, bands: int) -> Tensor:
    """Band number [H, W] (int64) of every DCT mode by |k/n|, equal steps; the constant mode is band 0 alone."""
    k1 = torch.arange(height, dtype=torch.float64)[:, None] / height
    k2 = torch.arange(width, dtype=torch.float64)[None, :] / width
    radius = torch.sqrt(k1**2 + k2**2) / math.sqrt(2.0)
    band = 1 + torch.clamp((radius * (bands - 1)).floor().long(), max=bands - 2)
    band[0, 0] = 0
    return band


def band_sums(x: Tensor, band: Tensor, bands: int) -> Tensor:
    """Sums of a field ``x`` over the modes of every band, [bands]; ``band`` has the field's shape."""
    return x.new_zeros(bands).index_add(0, band.flatten(), x.flatten())
