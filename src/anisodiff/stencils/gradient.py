"""The unhalved central difference u_{i+1} − u_{i−1}, zero on the two ends (no flux through the boundary)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from anisodiff.tensors import check_state


def difference_x(u: Tensor) -> Tensor:
    """Central difference along the last axis (columns) of ``u`` [..., H, W]; zero on the left and right edge."""
    return F.pad(u[..., 2:] - u[..., :-2], (1, 1))


def difference_y(u: Tensor) -> Tensor:
    """Central difference along rows of ``u`` [..., H, W]; zero on the top and bottom edge."""
    return F.pad(u[..., 2:, :] - u[..., :-2, :], (0, 0, 1, 1))


def damping(along: Tensor, across: Tensor, inv_lambda: Tensor) -> Tensor:
    """1/√(1 + |p/λ|²), p = (along, across): the factor of α in g (paper, Eq. of the anisotropy coefficients)."""
    return torch.rsqrt(1.0 + (along**2 + across**2) * inv_lambda**2)


def per_sample(value: Tensor | float, u: Tensor) -> Tensor:
    """A coefficient (a number, or one value a sample [B]) shaped to multiply ``u`` [B, C, H, W]."""
    value = torch.as_tensor(value, dtype=u.dtype, device=u.device)
    return value.reshape(value.shape + (1,) * (u.dim() - 1)) if value.dim() else value


def noise_scale(u: Tensor, intensity: Tensor | float, inv_lambda: Tensor | float) -> Tensor:
    """g2 = α2/√(1 + |∇u/λ2|²) at every pixel, [B, C, H, W] (paper, Eq. of the discretized diffusion coefficient).

    The gradient is the pixel's own unhalved central difference, its normal component zero on an edge. It does
    not see the pixel itself: ∂g2_i/∂u_i = 0, so tr DΣ vanishes for white noise.
    """
    check_state(u)
    slope = damping(difference_x(u), difference_y(u), per_sample(inv_lambda, u))
    return per_sample(intensity, u) * slope
