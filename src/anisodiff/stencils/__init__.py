"""The drift ∇·(g1∇u) and the noise scale g2 of one state: space only, nothing about time."""

from collections.abc import Callable

from torch import Tensor

from anisodiff import notation
from anisodiff.stencils import flux, paper
from anisodiff.stencils.gradient import noise_scale
from anisodiff.tensors import check_state

__all__ = ["STENCILS", "Drift", "drift", "noise_scale"]

Drift = Callable[[Tensor, Tensor | float, Tensor | float], Tensor]

STENCILS: dict[str, Drift] = {"flux": flux.drift, "paper": paper.drift}


def drift(u: Tensor, diffusivity: Tensor | float, inv_lambda: Tensor | float, stencil: str = "flux") -> Tensor:
    """∇·(g1(t, ∇u)∇u) of a state ``u`` [B, C, H, W]; coefficients are numbers or one value a sample [B].

    ``inv_lambda`` is 1/λ1 (0 = isotropic). ``stencil`` is "flux" (ours, conservative) or "paper".
    """
    check_state(u)
    if stencil not in STENCILS:
        raise ValueError(f"unknown stencil {stencil!r}; {notation.nearest(stencil, STENCILS)}")
    return STENCILS[stencil](u, diffusivity, inv_lambda)
