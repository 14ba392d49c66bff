"""Discretization in space: the drift ∇·(g1∇u) and the noise scale g2 (paper, Eq. 4 and 5)."""

from collections.abc import Callable

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.stencils import flux, gradient, paper
from anisodiff.tensors import check_images

__all__ = ["STENCILS", "Drift", "drift", "noise_scale"]

Drift = Callable[[Tensor, Tensor | float, Tensor | float], Tensor]

STENCILS: dict[str, Drift] = {"flux": flux.drift, "paper": paper.drift}


def drift(u: Tensor, diffusivity: Tensor | float, inv_lambda: Tensor | float, stencil: str = "flux") -> Tensor:
    """∇·(g1(t, ∇u)∇u) of a state ``u`` [B, C, H, W].

    ``diffusivity`` α1 and ``inv_lambda`` 1/λ1 (0 = isotropic) are numbers, or one value per sample [B]. ``stencil``
    is "flux" (conservative) or "paper".
    """
    check_images(u)
    _check_finite(diffusivity=diffusivity, inv_lambda=inv_lambda)
    notation.check_choice(stencil, STENCILS, "stencil")
    return STENCILS[stencil](u, diffusivity, inv_lambda)


def noise_scale(u: Tensor, intensity: Tensor | float, inv_lambda: Tensor | float) -> Tensor:
    """g2 = α2/√(1 + |∇u/λ2|²) of a state ``u`` [B, C, H, W]; coefficients as in `drift`."""
    _check_finite(intensity=intensity, inv_lambda=inv_lambda)
    return gradient.noise_scale(check_images(u), intensity, inv_lambda)


def _check_finite(**coefficients: Tensor | float) -> None:
    for name, value in coefficients.items():
        if not bool(torch.isfinite(torch.as_tensor(value)).all()):
            raise ValueError(f"{name}: got NaN or infinity, expected numbers (inv_lambda = 0 means λ = ∞)")
