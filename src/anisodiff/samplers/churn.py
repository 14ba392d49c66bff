"""Edge-preserving sampler noise: probability flow with Langevin noise away from edges (NFE 1 per step).

    dU = [−b + ½(α2² + Σ)s + ½∇·Σ] dt̄ + Σ^{1/2} dW̄,      Σ = η α2²/(1 + |∇x̂0|²/λ²)

has the marginals of the process for any Σ: η = 0 is the probability flow, η = 1 with λ = ∞ the reverse SDE. Here the
noise is damped at the edges of the denoised image x̂0 = E[x0|u]. A step of `multistep` is followed by a replacement,
at every pixel, of estimated noise e = −√N s by new noise of variance σ²:

    u' = u'_flow + (√(N' − σ²) − √N') e + σ ξ,      σ² = η m N'/N/(1 + |∇x̂0|²/λ²)

with N the mean over frequencies and m = ∫α2² over the step, N − N' for `ve`. For `ve` this is the family of DDIM
(Song et al. 2021) with one η per pixel; η = 1, λ = ∞ is the ancestral step with a second-order flow. As steps shrink
it converges to the SDE above without ½∇·Σ, which vanishes if the denoiser is symmetric under reflections: x̂0 is that
of the start of the step, and a pixel affects its own gradient only through the denoiser.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anisodiff import notation
from anisodiff.gaussian_kernel import quadrature
from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness, white
from anisodiff.samplers.base import Memory, Sampler
from anisodiff.samplers.multistep import multistep_step
from anisodiff.samplers.ode import Ode
from anisodiff.stencils.gradient import noise_scale


@dataclass(frozen=True, kw_only=True)
class Churn(Sampler):
    """``churn(eta=1, lam=inf)``: NFE 1 per step."""

    name: ClassVar[str] = "churn"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = Ode.requires

    eta: float = 1.0
    """η ∈ [0, 1], the share of the noise of the reverse SDE."""
    lam: float = math.inf
    """λ, in units of the images: no noise where the gradient of x̂0 is far above it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        notation.check_number(self, "eta", 0.0, 1.0)
        notation.check_number(self, "lam", 1e-6, math.inf)

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        there, made = multistep_step(model, z, t, t_next, memory.get("evaluation"))
        memory["evaluation"] = made
        if self.eta == 0:
            return there
        c, below = model.coefficients(t), model.coefficients(t_next)
        noise, left = c.noise.mean(), below.noise.mean()
        e = model.field(-noise.sqrt() * model.from_residual(z, c, made.f))
        edge = noise_scale(model.image(z, c, made.f), 1.0, 1.0 / self.lam).square()
        mass = quadrature(model.equation, t_next, t)[0].sum().to(z.dtype)
        variance = self.eta * left * (mass / noise).clamp(max=1.0) * edge
        change = ((left - variance).sqrt() - left.sqrt()) * e + variance.sqrt() * white(z, rng)
        return there + model.modes(change)
