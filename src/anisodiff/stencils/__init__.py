"""The drift ∇·(g1∇u) and the noise scale g2 of one state: space only, nothing about time."""

from collections.abc import Callable

from torch import Tensor

from anisodiff import notation
from anisodiff.stencils import flux, gradient, paper
from anisodiff.tensors import check_images

__all__ = ["STENCILS", "Drift", "drift", "noise_scale"]

Drift = Callable[[Tensor, Tensor | float, Tensor | float], Tensor]

STENCILS: dict[str, Drift] = {"flux": flux.drift, "paper": paper.drift}


def drift(u: Tensor, diffusivity: Tensor | float, inv_lambda: Tensor | float, stencil: str = "flux") -> Tensor:
    """∇·(g1(t, ∇u)∇u) of a state ``u`` [B, C, H, W]; coefficients are numbers or one value a sample [B].

    ``inv_lambda`` is 1/λ1 (0 = isotropic). ``stencil`` is "flux" (ours, conservative) or "paper".
    """
    check_images(u)
    if stencil not in STENCILS:
        raise ValueError(f"unknown stencil {stencil!r}; {notation.nearest(stencil, STENCILS)}")
    return STENCILS[stencil](u, diffusivity, inv_lambda)


def noise_scale(u: Tensor, intensity: Tensor | float, inv_lambda: Tensor | float) -> Tensor:
    """As `gradient.noise_scale`, which is what steps call; NaN and infinity in ``u`` are refused."""
    return gradient.noise_scale(check_images(u), intensity, inv_lambda)
