"""The stencil of the paper's supplement (spatial discretization), its misprints removed.

For each of the four neighbors n of pixel i:  flux = g1(G(n; i))·(u_n − u_i), where G(n; i) is the *unhalved*
central difference at n: along i→n the pixel beyond n (clamped to the grid) minus u_i, across it u's central
difference at n. Where the neighbor does not exist, the opposite neighbor's flux is taken again with the
component along the axis set to zero.

The two ends of an edge see different weights, so the channel mean is not conserved, and the isotropic limit has
the boundary of a DCT-I. The list of misprints stands in docs/notation.md.
"""

import torch
from torch import Tensor

from anisodiff.stencils.gradient import damping, difference_x, difference_y, per_sample


def _towards_right(u: Tensor, across: Tensor, inv_lambda: Tensor) -> Tensor:
    """The flux from the right neighbor into every pixel of ``u`` [..., W].

    In the last column the neighbor is mirrored (column W−2 stands in) and clamping puts the pixel beyond onto
    u_i itself, so the component along the axis is zero there, as the paper's edge cases ask.
    """
    neighbor = torch.cat([u[..., 1:], u[..., -2:-1]], dim=-1)
    beyond = torch.cat([u[..., 2:], u[..., -1:], u[..., -1:]], dim=-1)
    across = torch.cat([across[..., 1:], across[..., -2:-1]], dim=-1)
    return damping(beyond - u, across, inv_lambda) * (neighbor - u)


def _both_ways(u: Tensor, across: Tensor, inv_lambda: Tensor) -> Tensor:
    left = _towards_right(u.flip(-1), across.flip(-1), inv_lambda).flip(-1)
    return _towards_right(u, across, inv_lambda) + left


def drift(u: Tensor, diffusivity: Tensor | float, inv_lambda: Tensor | float) -> Tensor:
    """The discretized drift of the paper's supplement, [B, C, H, W]."""
    inv_lambda = per_sample(inv_lambda, u)
    along_x = _both_ways(u, difference_y(u), inv_lambda)
    along_y = _both_ways(u.mT, difference_x(u).mT, inv_lambda).mT
    return per_sample(diffusivity, u) * (along_x + along_y)
