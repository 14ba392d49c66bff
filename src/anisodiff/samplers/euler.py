"""The predictor of the paper: tamed Euler–Maruyama for the reverse SDE (paper, supplement, with the missing Δt).

    u' = u + Δt·f/(1 + Δt‖f‖^γ) + √Δt·g2 Q^{1/2} ξ,      f = −b + Σ s + tr DΣ,      Σ = g2 Q g2

b is the stencil at u (the paper), or the projected drift of the model. The norm is that of the forward step
(`integrators.tamed_euler`). Untamed (``norm=none``), the distribution converges at first order if α1·Δt < ¼, and the
step is unstable above. Tamed, it is bounded, but its distribution differs unless Δt‖f‖ ≪ 1.

This formula does not reverse a tamed chain. With the norm of a whole image a step moves a state by at most 1; at the
parameters of the paper and 32² the noise of one forward step has ten times that norm, and is never removed. The
simulated chain has the drift b̃ = b/(1 + Δt‖b‖^γ), so its reverse tames b alone (``tames=drift``), with the Δt of the
forward step; a learned drift of such a chain is b̃ already:

    u' = u + Δt·(−b̃ + Σ s + tr DΣ) + √Δt·g2 Q^{1/2} ξ

This step is not bounded and needs a Δt similar to that of the forward step.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.integrators import TamedEuler
from anisodiff.integrators.tamed_euler import NORMS, tame
from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness, correlate, white
from anisodiff.processes.base import EquationProcess, Process
from anisodiff.samplers.base import Memory, Sampler
from anisodiff.samplers.divergence import divergence
from anisodiff.stencils import STENCILS
from anisodiff.stencils.gradient import noise_scale

PROJECTED = "projected"
DRIFTS = ("stencil", *STENCILS, PROJECTED)
TAMES = ("process", "drift", "all")


@dataclass(frozen=True, kw_only=True)
class Taming:
    """The taming of a reverse step."""

    norm: str
    gamma: float = 1.0
    dt: float | None = None
    """Δt of the forward step, to tame b alone; None: tame f, with the Δt of the sampler."""

    def of(self, pull: Tensor, drift: Tensor, dt: float) -> Tensor:
        """f of Σ s + tr DΣ and b [B, C, H, W]."""
        if self.dt is None:
            return tame(pull - drift, dt, self.gamma, self.norm)
        return pull - tame(drift, self.dt, self.gamma, self.norm)


def reverse_drift(model: ScoreModel, z: Tensor, t: Tensor, stencil: str) -> tuple[Tensor, Tensor, Tensor]:
    """Σ s + tr DΣ, b and g2 [B, C, H, W] of states ``z`` at ``t`` [1]; NFE 1."""
    equation, u = model.equation, model.from_coordinates(z)
    score, projected = model.score_and_drift(z, t)
    alpha2, inv_lambda2 = equation.alpha2(t), equation.inv_lambda2(t)
    scale, length = noise_scale(u, alpha2, inv_lambda2), equation.correlation_length
    pull = scale * correlate(correlate(scale * model.field(score), length), length)  # Q = Q^{1/2} Q^{1/2}
    if not equation.additive:
        pull = pull + divergence(u, alpha2, inv_lambda2, length)
    if stencil == PROJECTED:
        return pull, model.field(projected), scale
    return pull, STENCILS[stencil](u, equation.alpha1(t), equation.inv_lambda1(t)), scale


def euler_step(
    model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, *, stencil: str, taming: Taming
) -> Tensor:
    """û' at ``t_next`` from û at ``t`` (both [1]); NFE 1."""
    pull, drift, scale = reverse_drift(model, z, t, stencil)
    dt = (t - t_next).to(z.dtype)
    noise = scale * correlate(model.field(white(z, rng)), model.equation.correlation_length)
    return z + model.modes(dt * taming.of(pull, drift, float(dt)) + dt.sqrt() * noise)


def default_taming(process: EquationProcess) -> TamedEuler:
    """That of the process; else norm ``image`` if fifty explicit steps would be unstable, and none otherwise.

    A drift that acts on the image alone is not stiff in the state.
    """
    if process.plain_noise:
        return TamedEuler(norm="none")
    if process.taming is not None:
        return process.taming
    t = torch.linspace(0.0, process.T, 101, dtype=torch.float64)
    stiff = float(process.equation.alpha1(t).max()) * process.T / 50 > 0.25
    return TamedEuler(norm="image" if stiff else "none")


@dataclass(frozen=True, kw_only=True)
class Euler(Sampler):
    """``euler(drift=stencil, norm=process)``: NFE 1 per step; with ``corrector`` > 0 the sampler of the paper."""

    name: ClassVar[str] = "euler"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset({"equation"})

    grid: str = "uniform"
    drift: str = "stencil"
    """``stencil``: of the process; ``flux`` or ``paper``; ``projected``: of the model, always for `signal`."""
    norm: str = "process"
    """The norm of the taming; ``process``: norm and γ of the process (`default_taming`), and none for the projected
    drift of a tamed process, which is tamed already."""
    gamma: float = 1.0
    tames: str = "process"
    """``drift``: tame b alone, as the process does; ``all``: tame f; ``process``: drift if possible, else all."""
    dt: float = 0.0
    """Δt of the forward step for ``tames=drift``, set from the process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        notation.check_number(self, "gamma", 1e-3, 10.0)
        notation.check_number(self, "dt", 0.0, 1e3)
        notation.check_choice(self.drift, DRIFTS, "drift")
        notation.check_choice(self.tames, TAMES, "tames")
        notation.check_choice(self.norm, ("process", *NORMS), "taming norm")

    def required(self) -> frozenset[str]:
        return super().required() | {"reverse_drift" if self.drift == PROJECTED else "score"}

    def missing(self, process: Process, provided: frozenset[str]) -> str:
        """With `signal` the drift is always the projected one, so the requirements depend on the process."""
        if "plain_noise" in process.capabilities and self.drift == "stencil":
            return dataclasses.replace(self, drift=PROJECTED).missing(process, provided)
        return super().missing(process, provided)

    def prepared(self, process: Any) -> Self:
        """With stencil and taming of ``process``."""
        sampler = self
        if process.plain_noise:
            if sampler.drift in STENCILS:
                raise ValueError(
                    f"the sampler 'euler' needs the learned drift for step='signal', got drift={sampler.drift}; "
                    "take drift=projected"
                )
            sampler = dataclasses.replace(sampler, drift=PROJECTED)
        elif sampler.drift == "stencil":
            sampler = dataclasses.replace(sampler, drift=process.stencil)
        own = process.taming
        stencil = sampler.drift != PROJECTED
        if sampler.tames == "process":
            alone = own is not None and stencil and sampler.norm == "process"
            sampler = dataclasses.replace(sampler, tames="drift" if alone else "all")
        if sampler.norm == "process":
            tamed = default_taming(process) if stencil or own is None else TamedEuler(norm="none")
            sampler = dataclasses.replace(sampler, norm=tamed.norm, gamma=tamed.gamma)
        dt = 0.0
        if sampler.tames == "drift":
            if own is None or not stencil or (sampler.norm, sampler.gamma) != (own.norm, own.gamma):
                raise ValueError(
                    "the sampler 'euler' tames a stencil's drift alone as a tamed process does, by its norm, "
                    f"got drift={sampler.drift}, norm={sampler.norm} for a process without such a step; "
                    "take tames=all"
                )
            dt = own.dt
        if sampler.dt not in (0.0, dt):
            raise ValueError(f"the sampler 'euler' takes dt from the process, here {dt:g}, got {sampler.dt:g}")
        return dataclasses.replace(sampler, dt=dt)

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        if "process" in (self.norm, self.tames) or self.drift == "stencil" or (self.tames == "drift" and not self.dt):
            raise ValueError(
                "euler takes its stencil and taming from a process: make it with build_sampler('euler', process)"
            )
        taming = Taming(norm=self.norm, gamma=self.gamma, dt=self.dt if self.tames == "drift" else None)
        return euler_step(model, z, t, t_next, rng, stencil=self.drift, taming=taming)
