"""Sampler noise that respects edges: probability flow, and Langevin noise where the image has no edge (NFE 1 a step).

    dU = [−b + ½(α2² + Σ)s + ½∇·Σ] dt̄ + Σ^{1/2} dW̄,      Σ = η α2²/(1 + |∇x̂0|²/λ²)

has the law of the process for any Σ: η = 0 is the probability flow, η = 1 with λ = ∞ the reverse SDE. Here the noise
stays away from the edges of the image x̂0 = E[x0|u] that is expected. A step is that of `multistep`; then, at every
pixel, noise of variance σ² takes the place of as much of the noise that the state is thought to have, e = −√N s:

    u' = u'_flow + (√(N' − σ²) − √N') e + σ ξ,      σ² = η m N'/N/(1 + |∇x̂0|²/λ²)

with N the mean over the frequencies and m = ∫α2² of the step, N − N' for `ve`. For `ve` this is DDIM's family (Song
et al. 2021) with an η for every pixel, and for η = 1, λ = ∞ the ancestral step, but for the flow's second order. For
all processes it tends to the equation above as steps shrink, without ½∇·Σ: x̂0 is computed from the state at the
start of the step, and a pixel changes its own gradient only by way of the denoiser. The term is zero where the
denoiser treats left and right, up and down alike.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anisodiff.gaussian_kernel import quadrature
from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness, white
from anisodiff.samplers.base import Memory, Sampler, option
from anisodiff.samplers.multistep import multistep_step
from anisodiff.samplers.ode import Ode
from anisodiff.stencils.gradient import noise_scale


@dataclass(frozen=True, kw_only=True)
class Churn(Sampler):
    """``churn(eta=1, lam=inf)``: NFE 1 a step; ``lam`` in units of the images, ``inf``: no edges."""

    name: ClassVar[str] = "churn"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = Ode.requires

    eta: float = 1.0
    """Share of the noise of the reverse SDE, 0 to 1."""
    lam: float = math.inf
    """λ: gradients of the expected image far above it get no noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eta", option(self.eta, "eta", 0.0, 1.0))
        object.__setattr__(self, "lam", option(self.lam, "lam", 1e-6, math.inf))

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
