"""The linear reference of one reverse step, dû = −α1 w_k z_k û dt + α2 √q_k dŴ between t' < t.

    B = e^{−w z ∫α1},     Q = q ∫ α2² e^{−2 w z ∫_r^t α1} dr,     m = ∫ α2² dr

Under this SDE the noise N, the power V and M = N + θS obey X = B²X' + Q, and the signal S = B²S'. In reverse, X' = (X
− Q)/B². Where a step is stiff (Q ≈ X, B ≪ 1) this difference of estimates is amplified by B⁻², and X' is taken from
the statistics. Only V obeys the reference exactly; if image and noise are smoothed differently (frozen weights,
`signal`), N and S obey it to first order in the step, which suffices for consistency.

If the image alone is smoothed (``plain_noise``) and a step removes most of a mode (B² < ¼), B is not used: the added
noise is q m, the moments at t' are those of the statistics, and the linear predictor of û' is that of a scaled image,

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
    """B, Q and m of one step."""

    decay: Tensor
    """B, [1, H, W], or [C, H, W] with channel PCA."""
    gained: Tensor
    """Q, of the same shape."""
    mass: Tensor
    """m, a number."""
    taken: Tensor | None = None
    """With ``plain_noise``, where B² < ¼; of the same shape."""

    def linear(self, c: Coefficients, below: Coefficients) -> Tensor:
        """The factor of û in E[û' | û] of the reference, B V'/V."""
        factor = self.decay * self.back(c.power, below.power)
        if self.taken is None:
            return factor
        return torch.where(self.taken, ((c.signal * below.signal).sqrt() + below.noise) / c.power, factor)

    def _gentle(self, power: Tensor) -> Tensor:
        """Where the step is not stiff: Q < ½ ``power``, and B² is used."""
        small = self.gained < 0.5 * power
        return small if self.taken is None else small & ~self.taken

    def back(self, now: Tensor, then: Tensor) -> Tensor:
        """X'/X for X = ``now``: (1 − Q/X)/B², or ``then``/``now`` of the statistics where the step is stiff."""
        return torch.where(self._gentle(now), (1 - self.gained / now) / self.decay.square(), then / now)

    def upward(self) -> "Reference":
        """The step from t' up to t: X = (X' − Q_up)/B_up² with B_up = 1/B and Q_up = −Q/B²."""
        return Reference(self.decay.reciprocal(), -self.gained / self.decay.square(), -self.mass)

    def signal(self, c: Coefficients, below: Coefficients) -> Tensor:
        """S'/S: B⁻², or that of the statistics where the step is stiff."""
        return torch.where(self._gentle(c.power), self.decay.square().reciprocal(), below.signal / c.signal)


def reference(model: ScoreModel, c: Coefficients, t_next: Tensor, t: Tensor) -> Reference:
    """B, Q and m of the step from ``t`` down to ``t_next`` (both [1]); ``c`` are the coefficients at ``t``.

    w is the mean of its values at both ends; at an edge of the drift, the value of the interval above it.
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
    """φ(x) = (eˣ − 1)/x, 1 at 0."""
    return torch.where(x == 0, 1.0, torch.expm1(x) / torch.where(x == 0, 1.0, x))


def predictions(model: ScoreModel, z: Tensor, c: Coefficients) -> tuple[Tensor, Tensor | None]:
    """F̂ and D̂ = d Ĝ (None if the drift is known) of states ``z`` in the DCT; NFE 1."""
    f, g = model.residuals(z, c)
    return f, None if g is None else c.residual * g
