"""The conservative stencil: one weight per edge of the pixel grid.

    ∇·(g1∇u)_i ≈ α1 (L(w) u)_i,      (L(w) v)_i = Σ_n w_{in} (v_n − v_i),      w = 1/√(1 + |p/λ|²)

n runs over the neighbors of pixel i. p is the unhalved gradient on the edge: along it 2(u_n − u_i), across it the
mean of the central differences of the two pixels (zero on a boundary). Since w_{in} = w_{ni}, L is symmetric,
negative semidefinite and conserves the channel mean. Its spectrum lies in [−8, 0]. For λ = ∞ it is the DCT-II
Laplacian.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from anisodiff.stencils.gradient import damping, difference_x, difference_y, per_sample


class EdgeWeights(NamedTuple):
    """Weights of the edges between rows (y) [..., H−1, W] and between columns (x) [..., H, W−1], in (0, 1]."""

    y: Tensor
    x: Tensor


def edge_weights(u: Tensor, inv_lambda: Tensor | float) -> EdgeWeights:
    """w of the state ``u`` [B, C, H, W]; ``inv_lambda`` = 1/λ1, a number or one value per sample."""
    inv_lambda = per_sample(inv_lambda, u)
    dx, dy = difference_x(u), difference_y(u)
    along_y = 2.0 * (u[..., 1:, :] - u[..., :-1, :])
    along_x = 2.0 * (u[..., 1:] - u[..., :-1])
    across_y = 0.5 * (dx[..., 1:, :] + dx[..., :-1, :])
    across_x = 0.5 * (dy[..., 1:] + dy[..., :-1])
    return EdgeWeights(damping(along_y, across_y, inv_lambda), damping(along_x, across_x, inv_lambda))


def apply_edges(w: EdgeWeights, v: Tensor) -> Tensor:
    """L(w) v; ``v`` [..., H, W] broadcasts against the weights."""
    flux_y = w.y * (v[..., 1:, :] - v[..., :-1, :])
    flux_x = w.x * (v[..., 1:] - v[..., :-1])
    return F.pad(flux_y, (0, 0, 0, 1)) - F.pad(flux_y, (0, 0, 1, 0)) + F.pad(flux_x, (0, 1)) - F.pad(flux_x, (1, 0))


def drift(u: Tensor, diffusivity: Tensor | float, inv_lambda: Tensor | float) -> Tensor:
    """α1·L(w(u)) u."""
    return per_sample(diffusivity, u) * apply_edges(edge_weights(u, inv_lambda), u)
