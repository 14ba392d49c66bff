"""The paper's predictor: tamed Euler–Maruyama on the reverse equation (paper, supplement; its Δt restored).

    u' = u + Δt·f/(1 + Δt‖f‖^γ) + √Δt·g2 Q^{1/2} ξ,      f = −b + Σ s + tr DΣ,      Σ = g2 Q g2

b is the process's stencil at u itself (the paper), or the drift that the model has learned as a projection on u. The
norm is that of the forward step (`integrators.tamed_euler`). Untamed (``norm=none``) it converges to the law at first
order where α1·Δt < ¼ and diverges above; tamed it stays bounded, but as long as Δt‖f‖ is not small against 1 its law
is another one.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.integrators import TamedEuler
from anisodiff.integrators.tamed_euler import NORMS, tame
from anisodiff.networks.precondition import ScoreModel
from anisodiff.noise import Randomness, correlate, white
from anisodiff.processes import SPDE, ClosedForm, Process
from anisodiff.samplers.contract import Sampler, Step, option
from anisodiff.samplers.divergence import divergence
from anisodiff.stencils import STENCILS, noise_scale
from anisodiff.transforms import frequencies

PROJECTED = "projected"
DRIFTS = ("stencil", *STENCILS, PROJECTED)


def reverse_drift(model: ScoreModel, z: Tensor, t: Tensor, stencil: str) -> tuple[Tensor, Tensor]:
    """f and g2 [B, C, H, W] of centred DCT states at ``t`` [1]; one evaluation."""
    equation, c = model.equation, model.coefficients(t)
    f, g = model.residuals(z, c)
    score, u = -z / c.power + c.scale * f, model.uncentred(z)
    alpha2, inv_lambda2 = equation.alpha2(t), equation.inv_lambda2(t)
    scale, length = noise_scale(u, alpha2, inv_lambda2), equation.correlation_length
    pull = scale * correlate(correlate(scale * model.field(score), length), length)  # Q = Q^{1/2} Q^{1/2}
    if not equation.additive:
        pull = pull + divergence(u, alpha2, inv_lambda2, length)
    if stencil != PROJECTED:
        return pull - STENCILS[stencil](u, equation.alpha1(t), equation.inv_lambda1(t)), scale
    drift = -c.alpha1 * c.weight * frequencies(z.shape[-2], z.shape[-1], z.dtype, z.device) * z
    if g is not None:
        drift = drift + c.alpha2.square() * c.residual * g
    return pull - model.field(drift), scale


def euler_step(
    model: ScoreModel,
    z: Tensor,
    t: Tensor,
    after: Tensor,
    source: Randomness,
    *,
    stencil: str,
    gamma: float,
    norm: str,
) -> Tensor:
    """û' at ``after`` from û at ``t`` (both [1]); one evaluation."""
    f, scale = reverse_drift(model, z, t, stencil)
    dt = (t - after).to(z.dtype)
    noise = scale * correlate(model.field(white(z, source)), model.equation.correlation_length)
    return z + model.modes(dt * tame(f, float(dt), gamma, norm) + dt.sqrt() * noise)


def taming(process: Process) -> TamedEuler:
    """The process's own; else the paper's where fifty explicit steps would be unstable, and none elsewhere.

    The norm ``image`` caps what a step moves: without need it would keep the process from removing its noise. A drift
    that acts on the image alone is not stiff in the state.
    """
    if isinstance(process, SPDE) and process.step.plain_noise:
        return TamedEuler(norm="none")
    if isinstance(process, SPDE) and isinstance(process.step, TamedEuler):
        return process.step
    if not isinstance(process, SPDE | ClosedForm):
        return TamedEuler()
    t = torch.linspace(0.0, process.T, 101, dtype=torch.float64)
    stiff = float(process.equation.alpha1(t).max()) * process.T / 50 > 0.25
    return TamedEuler(norm="image" if stiff else "none")


@dataclass(frozen=True, kw_only=True)
class Euler(Sampler):
    """``euler(drift=stencil, norm=process)``: one evaluation a step; the paper's with ``corrector`` > 0."""

    word: ClassVar[str] = "euler"
    cost: ClassVar[int] = 1

    grid: str = "uniform"
    drift: str = "stencil"
    """``stencil``: that of the process, ``flux`` or ``paper``; ``projected``: the model's, always with ``signal``."""
    norm: str = "process"
    """The norm that tames; ``process``: with γ that of the process's own step, else see `taming`."""
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "gamma", option(self.gamma, "gamma", 1e-3, 10.0))
        if self.drift not in DRIFTS:
            raise ValueError(f"unknown drift {self.drift!r}; {notation.nearest(str(self.drift), DRIFTS)}")
        if self.norm not in ("process", *NORMS):
            raise ValueError(f"unknown taming norm {self.norm!r}; {notation.nearest(str(self.norm), NORMS)}")

    @property
    def uses_score(self) -> bool:
        """Beside a drift that is not the model's."""
        return self.drift != PROJECTED or super().uses_score

    @property
    def uses_drift(self) -> bool:
        """Where it is projected."""
        return self.drift == PROJECTED

    def prepared(self, process: Process) -> Self:
        """With stencil and taming of ``process``; the drift of an image's own path can only be projected."""
        found = self
        if isinstance(process, SPDE) and process.step.plain_noise:
            if found.drift in STENCILS:
                raise ValueError(
                    f"the sampler 'euler' knows the drift of step='{process.step}' from the model alone, got "
                    f"drift={found.drift}; take drift=projected"
                )
            found = dataclasses.replace(found, drift=PROJECTED)
        elif found.drift == "stencil":
            found = dataclasses.replace(found, drift=process.stencil if isinstance(process, SPDE) else "flux")
        if found.norm == "process":
            tamed = taming(process)
            found = dataclasses.replace(found, norm=tamed.norm, gamma=tamed.gamma)
        return found

    def stepper(self, model: ScoreModel, source: Randomness) -> Step:
        """Explicit steps."""
        if self.drift == "stencil" or self.norm == "process":
            raise ValueError(
                "euler takes its stencil and norm from a process: make it with sampler('euler', process)"
            )

        def step(z: Tensor, t: Tensor, after: Tensor) -> Tensor:
            return euler_step(model, z, t, after, source, stencil=self.drift, gamma=self.gamma, norm=self.norm)

        return step
