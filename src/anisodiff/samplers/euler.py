"""The paper's predictor: tamed Euler–Maruyama on the reverse equation (paper, supplement; its Δt restored).

    u' = u + Δt·f/(1 + Δt‖f‖^γ) + √Δt·g2 Q^{1/2} ξ,      f = −b + Σ s + tr DΣ,      Σ = g2 Q g2

b is the process's stencil at u itself (the paper), or the drift that the model has learned as a projection on u. The
norm is that of the forward step (`integrators.tamed_euler`). Untamed (``norm=none``) it converges to the law at first
order where α1·Δt < ¼ and diverges above; tamed it stays bounded, but as long as Δt‖f‖ is not small against 1 its law
is another one.

That formula does not reverse a chain that was tamed itself. With the norm of a whole image a step moves a state
by a length of 1 at most; at the paper's parameters the noise of one forward step is ten times as long at 32², and is
never removed. What was simulated is a chain with the drift b̃ = b/(1 + Δt‖b‖^γ), and its reverse tames b alone
(``tames=drift``), with the Δt of the forward step whatever that of the sampler is; the drift that a model has learned
of such a chain is b̃. This is not bounded: it wants steps about as short as the forward ones.

    u' = u + Δt·(−b̃ + Σ s + tr DΣ) + √Δt·g2 Q^{1/2} ξ
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
from anisodiff.samplers.base import Memory, Sampler, option
from anisodiff.samplers.divergence import divergence
from anisodiff.stencils import STENCILS
from anisodiff.stencils.gradient import noise_scale

PROJECTED = "projected"
DRIFTS = ("stencil", *STENCILS, PROJECTED)
TAMES = ("process", "drift", "all")


@dataclass(frozen=True, kw_only=True)
class Taming:
    """How a reverse step is kept bounded."""

    norm: str
    gamma: float = 1.0
    dt: float | None = None
    """Of the forward step, where the drift alone is tamed as that step tamed it; None: all is, by the step taken."""

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
    """The process's own; else the paper's where fifty explicit steps would be unstable, and none elsewhere.

    The norm ``image`` caps what a step moves: without need it would keep the process from removing its noise. A drift
    that acts on the image alone is not stiff in the state.
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
    """``euler(drift=stencil, norm=process)``: NFE 1 a step; the paper's with ``corrector`` > 0."""

    name: ClassVar[str] = "euler"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset({"equation"})

    grid: str = "uniform"
    drift: str = "stencil"
    """``stencil``: that of the process, ``flux`` or ``paper``; ``projected``: the model's, always with ``signal``."""
    norm: str = "process"
    """The norm that tames; ``process``: with γ that of the process's own step, else see `default_taming`; none for a
    projected drift of a tamed process, which is tamed already."""
    gamma: float = 1.0
    tames: str = "process"
    """``drift``: b alone, as the process tames it; ``all``: f; ``process``: drift where it can be, else all."""
    dt: float = 0.0
    """Δt of the process's own step, which ``tames=drift`` needs; the process gives it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "gamma", option(self.gamma, "gamma", 1e-3, 10.0))
        object.__setattr__(self, "dt", option(self.dt, "dt", 0.0, 1e3))
        for name, value, known in (("drift", self.drift, DRIFTS), ("tames", self.tames, TAMES)):
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; {notation.nearest(str(value), known)}")
        if self.norm not in ("process", *NORMS):
            raise ValueError(f"unknown taming norm {self.norm!r}; {notation.nearest(str(self.norm), NORMS)}")

    def required(self) -> frozenset[str]:
        """The score beside a drift that is not the model's."""
        return super().required() | {"reverse_drift" if self.drift == PROJECTED else "score"}

    def missing(self, process: Process, provided: frozenset[str]) -> str:
        """The drift of an image's own path can only be projected: what is required follows from the process."""
        if "plain_noise" in process.capabilities and self.drift == "stencil":
            return dataclasses.replace(self, drift=PROJECTED).missing(process, provided)
        return super().missing(process, provided)

    def prepared(self, process: Any) -> Self:
        """With stencil and taming of ``process``; the drift of an image's own path can only be projected."""
        found = self
        if process.plain_noise:
            if found.drift in STENCILS:
                raise ValueError(
                    f"the sampler 'euler' knows the drift of step='signal' from the model alone, got "
                    f"drift={found.drift}; take drift=projected"
                )
            found = dataclasses.replace(found, drift=PROJECTED)
        elif found.drift == "stencil":
            found = dataclasses.replace(found, drift=process.stencil)
        own = process.taming
        stencil = found.drift != PROJECTED
        if found.tames == "process":
            alone = own is not None and stencil and found.norm == "process"
            found = dataclasses.replace(found, tames="drift" if alone else "all")
        if found.norm == "process":
            tamed = default_taming(process) if stencil or own is None else TamedEuler(norm="none")
            found = dataclasses.replace(found, norm=tamed.norm, gamma=tamed.gamma)
        dt = 0.0
        if found.tames == "drift":
            if own is None or not stencil or (found.norm, found.gamma) != (own.norm, own.gamma):
                raise ValueError(
                    "the sampler 'euler' tames a stencil's drift alone as a tamed process does, by its norm, "
                    f"got drift={found.drift}, norm={found.norm} for a process without such a step; take tames=all"
                )
            dt = own.dt
        if found.dt not in (0.0, dt):
            raise ValueError(f"the sampler 'euler' takes dt from the process, here {dt:g}, got {found.dt:g}")
        return dataclasses.replace(found, dt=dt)

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        if "process" in (self.norm, self.tames) or self.drift == "stencil" or (self.tames == "drift" and not self.dt):
            raise ValueError(
                "euler takes its stencil and taming from a process: make it with build_sampler('euler', process)"
            )
        taming = Taming(norm=self.norm, gamma=self.gamma, dt=self.dt if self.tames == "drift" else None)
        return euler_step(model, z, t, t_next, rng, stencil=self.drift, taming=taming)
