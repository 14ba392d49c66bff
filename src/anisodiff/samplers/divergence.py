"""tr DΣ, a term of the reverse drift for noise that depends on the state (paper, supplement, reverse SDE).

    Σ(u) = g2 Q g2,      (tr DΣ)_i = Σ_j ∂Σ_ij/∂u_j = Σ_j Q_ij g_j ∂g_i/∂u_j

because g2 of a pixel does not depend on the pixel itself. It depends on the four neighbors through the unhalved
central differences p_x, p_y, with ∂g_i/∂p = −g_i³ p/(α2 λ2)². White noise has Q_ij = 0 between neighbors, so the term
is zero; for ℓ > 0 and λ2 < ∞ it is not. Q is a tensor product over the two axes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from anisodiff.dct import axis_frequencies, dct_matrix
from anisodiff.stencils.gradient import difference_x, difference_y, noise_scale, per_sample
from anisodiff.tensors import highest_precision


def _axis(n: int, length: float, like: Tensor) -> Tensor:
    """The factor of Q for one axis, [n, n], with a mean of 1 over its diagonal."""
    basis = dct_matrix(n, highest_precision(like.device), like.device)
    q = torch.exp(-0.5 * length**2 * axis_frequencies(n, highest_precision(like.device), like.device))
    return (basis.mT * (q / q.mean()) @ basis).to(like.dtype)


def _neighbors(g: Tensor, along: Tensor, beside: Tensor) -> Tensor:
    """Q_{i,i+1} g_{i+1} − Q_{i,i−1} g_{i−1} along the last axis [..., W]; ``beside`` [H]: diagonal of the other.

    The values at the two ends are not used: the central difference is zero there.
    """
    link = beside[:, None] * torch.diagonal(along, 1)  # [H, W−1]: from column x to x+1
    return F.pad(link * g[..., 1:], (0, 1)) - F.pad(link * g[..., :-1], (1, 0))


def divergence(u: Tensor, intensity: Tensor | float, inv_lambda: Tensor | float, length: float) -> Tensor:
    """tr DΣ of states ``u`` [B, C, H, W]; α2 and 1/λ2 are numbers or one value per sample, ``length`` is ℓ."""
    if length == 0.0:
        return torch.zeros_like(u)
    g = noise_scale(u, intensity, inv_lambda)
    rows, columns = _axis(u.shape[-2], length, u), _axis(u.shape[-1], length, u)
    across_x = difference_x(u) * _neighbors(g, columns, rows.diagonal())
    across_y = difference_y(u) * _neighbors(g.mT, rows, columns.diagonal()).mT
    damped = g**3 * (per_sample(inv_lambda, u) / per_sample(intensity, u)) ** 2
    return -damped * (across_x + across_y)
