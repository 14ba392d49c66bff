"""The linear reference of one reverse step, dû = −α1 w_k z_k û dt + α2 √q_k dŴ between t' < t.

    B = e^{−w z ∫α1},     Q = q ∫ α2² e^{−2 w z ∫_r^t α1} dr,     m = ∫ α2² dr

A moment X of the state that obeys it (noise N, power V, N + θS between them) has X = B²X' + Q, the signal S = B²S'.
In reverse, X' = (X − Q)/B² integrates the model's own reverse equation, whatever the statistics say at t'; but where
a step is stiff (Q ≈ X, B ≪ 1) it is a difference of estimates blown up by B⁻², and the statistics' own X' is taken.
Only V obeys it exactly. Where a process smooths image and noise unequally (frozen weights, `signal`) N and S do so to
first order in the step, which is all that consistency asks of them. Where the image alone is smoothed
(``plain_noise``) and a step takes most of it (B² < ¼), nothing of B is used: the noise gained is q m, moments at t'
are the statistics', and the linear predictor of û' is that of an image that is scaled by √(S'/S):

    Cov(û', û)/V = (√(S S') + N')/V
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.dct import frequencies
from anisodiff.gaussian_kernel import colored, quadrature
from anisodiff.models.score import ScoreModel
from anisodiff.statistics import Coefficients, Powers


@dataclass(frozen=True)
class Reference:
    """One step of the linear reference."""

    decay: Tensor
    """B, [1, H, W], or [C, H, W] with channel PCA."""
    gained: Tensor
    """Q, alike."""
    mass: Tensor
    """m, a number."""
    taken: Tensor | None = None
    """Modes of which most of the image is smoothed away, where the noise is not smoothed; like B. None: nowhere."""

    def linear(self, c: Coefficients, below: Coefficients) -> Tensor:
        """The factor of û in E[û' | û] of the linear reference, B V'/V."""
        known = self.decay * self.back(c.power, below.power)
        if self.taken is None:
            return known
        return torch.where(self.taken, ((c.signal * below.signal).sqrt() + below.noise) / c.power, known)

    def _trusted(self, limit: Tensor) -> Tensor:
        """Where little noise is gained, and little of the image is lost."""
        small = self.gained < 0.5 * limit
        return small if self.taken is None else small & ~self.taken

    def back(self, now: Tensor, then: Tensor) -> Tensor:
        """X'/X of a moment with X = B²X' + Q: from Q where it is small, else from the statistics."""
        return torch.where(self._trusted(now), (1 - self.gained / now) / self.decay.square(), then / now)

    def upward(self) -> "Reference":
        """The same step from t' up to t: X = (X' − Q_up)/B_up² with B_up = 1/B and Q_up = −Q/B²."""
        return Reference(self.decay.reciprocal(), -self.gained / self.decay.square(), -self.mass)

    def signal(self, c: Coefficients, below: Coefficients) -> Tensor:
        """S'/S: B⁻², from the statistics where the step is stiff."""
        return torch.where(self._trusted(c.power), self.decay.square().reciprocal(), below.signal / c.signal)


def reference(model: ScoreModel, c: Coefficients, t_next: Tensor, t: Tensor) -> Reference:
    """B, Q and m of the step from ``t`` (where ``c`` stands) down to ``t_next`` (both [1]).

    w is the mean of its values at the two ends; at an edge of the drift that of the interval above it.
    """
    statistics = model.statistics
    here, phase = statistics.locate(t_next)
    own = torch.where(t_next == statistics.edges.to(t_next)[c.interval], c.interval, here)
    low = Powers.at(statistics, own, torch.where(own == here, phase, 0.0), plain_noise=model.plain_noise)
    weight = 0.5 * (low.weight + c.weight)[0]
    rate = weight * frequencies(weight.shape[-2], weight.shape[-1], weight.dtype, weight.device)
    decay = torch.exp(-model.equation.smoothing(t_next, t).to(rate.dtype) * rate)
    mass, speed = (x[0].to(rate.dtype) for x in quadrature(model.equation, t_next, t))
    left = torch.exp(-speed[:, None, None, None] * rate)
    gained = colored(model.equation, torch.einsum("q,qchw->chw", mass, left))
    if not model.plain_noise:
        return Reference(decay, gained, mass.sum())
    taken = decay.square() < 0.25
    plain = colored(model.equation, mass.sum().expand_as(gained))
    return Reference(decay, torch.where(taken, plain, gained), mass.sum(), taken)


def growth(x: Tensor) -> Tensor:
    """(eˣ − 1)/x, 1 at 0: the mean of e^{xs}, 0 ≤ s ≤ 1; what a constant gains in a step of total rate x."""
    return torch.where(x == 0, 1.0, torch.expm1(x) / torch.where(x == 0, 1.0, x))


def predictions(model: ScoreModel, z: Tensor, c: Coefficients) -> tuple[Tensor, Tensor | None]:
    """F̂ and d̂ = d Ĝ of centered DCT states: one evaluation of the network; None where the drift is known."""
    f, g = model.residuals(z, c)
    return f, None if g is None else c.residual * g
