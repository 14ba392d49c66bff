"""Functions of the frozen operator Z = −L(w), whose spectrum lies in [0, 8], as Chebyshev polynomials.

    f(Z) v ≈ Σ_{j≤n} c_j T_j(X) v,      X = Z/4 − 1,      T_{j+1} = 2X T_j − T_{j−1}

Each term is one stencil product. c_j interpolates f at the n+1 extrema of T_n, so the error in the operator norm
is at most 2 Σ_{j>n} |c_j|; `degree_for` chooses n from this bound.
"""

import math

import torch
from torch import Tensor

from anisodiff.stencils.flux import EdgeWeights, apply_edges
from anisodiff.tensors import cached, highest_precision, to_device

SPECTRUM = 8.0
FINE = 1024
"""Nodes of the series from which the degree is chosen."""


def nodes(degree: int, device: torch.device) -> Tensor:
    """The extrema of T_n as eigenvalues z ∈ [0, 8], descending, [n+1]; z = 0 is one, so the channel mean is exact."""
    j = torch.arange(degree + 1, dtype=highest_precision(device), device=device)
    return SPECTRUM * torch.cos(0.5 * math.pi * j / degree) ** 2


@cached
def _interpolation(degree: int, device: torch.device) -> Tensor:
    """The matrix [n+1, n+1] from values at the nodes to coefficients (a DCT-I)."""
    j = torch.arange(degree + 1, dtype=torch.float64)
    matrix = 2.0 / degree * torch.cos(math.pi * j[:, None] * j[None, :] / degree)
    for end in (0, degree):
        matrix[end] *= 0.5
        matrix[:, end] *= 0.5
    return to_device(matrix, device)


def coefficients(values: Tensor) -> Tensor:
    """c [..., n+1] from ``values`` [..., n+1] of a function at the `nodes`."""
    return values @ _interpolation(values.shape[-1] - 1, values.device).mT


def degree_for(values: Tensor, tolerance: float) -> int:
    """The smallest degree n with 2 Σ_{j>n} |c_j| ≤ tolerance·max|f| for all rows of ``values`` [M, FINE].

    A ValueError if n > FINE/2, where the series is not resolved.
    """
    assert values.shape[-1] == FINE
    c = coefficients(values).abs()
    tail = 2.0 * (c.sum(-1, keepdim=True) - c.cumsum(-1)).clamp(min=0)
    small = (tail <= tolerance * values.abs().amax(-1, keepdim=True).clamp(min=1e-300)).all(0)
    degree = int(small.to(torch.int8).argmax()) if bool(small.any()) else FINE
    if degree > FINE // 2:
        raise ValueError("a window of the exponential step is too stiff for its polynomials; use more windows")
    return max(degree, 1)


def start(w: EdgeWeights, v: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T_0 v, T_1 v and the sum of these two terms."""
    first = -(2.0 / SPECTRUM) * apply_edges(w, v) - v
    return v, first, c[0] * v + c[1] * first


BUNCH = 6
"""Terms of one compiled call of `recur_bunch`: the call takes longer to launch than the kernels to run."""


def recur_bunch(
    w: EdgeWeights, before: Tensor, now: Tensor, total: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`recur` for BUNCH terms, c [BUNCH, …]: the last two T_j v and the sum."""
    for j in range(BUNCH):
        following, total = recur(w, before, now, total, c[j])
        before, now = now, following
    return before, now, total


def recur(w: EdgeWeights, before: Tensor, now: Tensor, total: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """T_{j+1} v and the sum with this term."""
    following = -(4.0 / SPECTRUM) * apply_edges(w, now) - 2.0 * now - before
    return following, total + c * following
