"""The stencil of the paper (supplement, spatial discretization), without its misprints (docs/notation.md).

    b_i = Σ_n g1(G(n; i))·(u_n − u_i)

n runs over the four neighbors of pixel i. G(n; i) is the *unhalved* central difference at n: along i→n the pixel
beyond n (clamped to the grid) minus u_i, across it the central difference of u at n. For a neighbor outside the grid,
the flux of the opposite neighbor is used again, with the component of G along the axis set to zero.

G(n; i) ≠ G(i; n), so the channel mean is not conserved. The isotropic limit has the boundary of a DCT-I.
"""

import torch
from torch import Tensor

from anisodiff.stencils.gradient import damping, difference_x, difference_y, per_sample


def _towards_right(u: Tensor, across: Tensor, inv_lambda: Tensor) -> Tensor:
    """The term of the right neighbor for every pixel of ``u`` [..., W].

    In the last column the neighbor is column W−2 (mirrored). The clamped pixel beyond it is u_i itself, so the
    component of G along the axis is zero there, as in the boundary cases of the paper.
    """
    neighbor = torch.cat([u[..., 1:], u[..., -2:-1]], dim=-1)
    beyond = torch.cat([u[..., 2:], u[..., -1:], u[..., -1:]], dim=-1)
    across = torch.cat([across[..., 1:], across[..., -2:-1]], dim=-1)
    return damping(beyond - u, across, inv_lambda) * (neighbor - u)


def _both_ways(u: Tensor, across: Tensor, inv_lambda: Tensor) -> Tensor:
    left = _towards_right(u.flip(-1), across.flip(-1), inv_lambda).flip(-1)
    return _towards_right(u, across, inv_lambda) + left


def drift(u: Tensor, diffusivity: Tensor | float, inv_lambda: Tensor | float) -> Tensor:
    """b, [B, C, H, W]."""
    inv_lambda = per_sample(inv_lambda, u)
    along_x = _both_ways(u, difference_y(u), inv_lambda)
    along_y = _both_ways(u.mT, difference_x(u).mT, inv_lambda).mT
    return per_sample(diffusivity, u) * (along_x + along_y)
