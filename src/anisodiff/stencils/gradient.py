"""The unhalved central difference u_{i+1} − u_{i−1}, zero at both ends (zero-flux boundary), and g (paper, Eq. 6)."""

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
    """g/α = 1/√(1 + |p/λ|²), p = (along, across) (paper, Eq. 6)."""
    return torch.rsqrt(1.0 + (along**2 + across**2) * inv_lambda**2)


def per_sample(value: Tensor | float, u: Tensor) -> Tensor:
    """A coefficient (a number, or one value per sample [B]) shaped to multiply ``u`` [B, C, H, W]."""
    value = torch.as_tensor(value, dtype=u.dtype, device=u.device)
    return value.reshape(value.shape + (1,) * (u.dim() - 1)) if value.dim() else value


def noise_scale(u: Tensor, intensity: Tensor | float, inv_lambda: Tensor | float) -> Tensor:
    """g2 = α2/√(1 + |∇u/λ2|²) at every pixel, [B, C, H, W] (paper, supplement, discretized diffusion coefficient).

    ∇u is the unhalved central difference at the pixel, its normal component zero on the boundary. It does not depend
    on u_i itself: ∂g2_i/∂u_i = 0, so tr DΣ vanishes for white noise.
    """
    check_state(u)
    return per_sample(intensity, u) * damping(difference_x(u), difference_y(u), per_sample(inv_lambda, u))
