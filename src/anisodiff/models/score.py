"""Preconditioning per frequency: the network sees a unit-scale input and predicts a unit-scale residual.

In the DCT, with the moments V, S, N of `tables` (û about the channel means):

    input      û_k / √(N_k + σ_d² S_k/D_k)                      EDM's c_in when nothing is smoothed
    score      −û_k/V_k + c_k F̂_k,      c_k² = S_k/(N_k V_k)     Wiener's predictor and a residual (c_skip, c_out)
    drift      (b̂_k + α1 w_k z_k û_k)/α2² = d_k G_k            the second output, where the drift is not known

so that the reverse drift −b_ref + α2² s̃ has s̃ = score − d. The loss is the error of score and d in units of the
residual, divided by the power of the targets themselves and weighted ω_k(t)^γ, normalized over k:

    state      ω_k ∝ S_k N_k/V_k               with γ = 1 ‖error of the noise-free state‖², EDM's
    score      ω_k ∝ c_k² = S_k/(N_k V_k)      with γ = 1 ‖error of the score‖², which is what path laws diverge by
    noise      ω_k = N_k c_k²                  with γ = 1 ‖√N·error of the score‖², Song's, as it stands

The first two are one where all modes have the same noise (`ve`); the third, neither divided nor normalized, is then
that times what Wiener's predictor leaves at t. Where smoothing leaves fine modes less noise than coarse ones, `state`
looks at what is known already, `score` at what is being made at that time.

The power of a target is 1 where the score of a whole kernel with isotropic noise is regressed. It is more where an
operator shapes the noise (one window) or where only the last piece's noise is seen (several). Modes without any
signal would then be most of the loss: it is divided mode by mode, but for `state` with several windows, which gives
such modes next to no weight.

**One output.** The reverse equation asks for s̃ = score − d alone. With ``reverse_drift`` one output E is both,

    F = E,   G = −E,      s̃ = −û_k/V_k + (c_k + d_k) Ê_k

and the loss is the error of s̃ (``score``: ω_k ∝ (c_k + d_k)²). Where the image alone is smoothed, and isotropically,
its parts are right as well: the drift −λ_k(û_k − noise) has G = −F, and two outputs learn one thing twice. Elsewhere
s̃ is as free as with two, and its parts are guesses: samplers that need the score alone (`ode`, correctors) refuse.
`denoised` is right where little is smoothed yet, as at t_min, where sampling ends. With ``score`` the drift is not
learned: the paper takes the stencil at the state itself (`euler`).

In the principal axes of the colors (see `tables`) S, V, D, c and d have an index for the axis, and so has w where
the drift does not move the noise (``plain_noise``); the network then sees and answers in these axes.

With ``scalar`` the network is given and asked for what EDM's is: V, S, N and d² are replaced by their means over all
frequencies in what surrounds the network, and nowhere else. What Wiener's predictor knows it has to learn then.
"""

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.equation import Equation
from anisodiff.models.base import Model
from anisodiff.models.coefficients import Coefficients
from anisodiff.models.time_density import Times, level_density
from anisodiff.objectives.contract import Draw
from anisodiff.statistics import SpectralStatistics, rotate_channels

Weighting = Literal["state", "score", "noise"]
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)
Learns = Literal["score_and_drift", "reverse_drift", "score"]
LEARNS: tuple[Learns, ...] = get_args(Learns)


class ScoreModel(Model):
    """A network with its preconditioning; everything that sampling needs but the process."""

    usual: ClassVar[str] = "exponential"

    statistics_axes: Tensor

    def __init__(
        self,
        network: nn.Module,
        equation: Equation,
        statistics: SpectralStatistics,
        *,
        drift: bool,
        weighting: Weighting = "state",
        gamma: float = 1.0,
        scalar: bool = False,
        times: Times = "level",
        learns: Learns = "score_and_drift",
        plain_noise: bool = False,
    ) -> None:
        super().__init__(network, statistics)
        self.equation, self.learns_drift, self.weighting, self.gamma = equation, drift, weighting, gamma
        self.scalar, self.times, self.learns, self.plain_noise = scalar, times, learns, plain_noise
        assert learns == "score_and_drift" or drift, "the drift is known"
        assert learns != "reverse_drift" or not scalar, "scalar coefficients are for two outputs"
        self.rotates_channels = not torch.equal(statistics.axes, torch.eye(len(statistics.axes)).to(statistics.axes))

    @property
    def T(self) -> float:
        """The horizon."""
        return self.equation.T

    def condition(self, cell: Tensor, phase: Tensor) -> Tensor:
        """What the network is told of the time: ¼ of the noise level, with a gap at every edge the drift jumps at."""
        level = self.statistics.at(self.level, cell, phase)
        if not self.learns_drift or len(self.level) == 1:
            return 0.25 * level
        ends = self.level[:, -1]
        below = torch.where(cell > 0, ends[(cell - 1).clamp(min=0)], self.level[0, 0])
        return 0.25 * (level + 0.15 * (ends[cell] - below) * (1 - phase).to(level.dtype))

    def residuals(
        self, z: Tensor, c: Coefficients, dropout_key: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """F̂ and Ĝ of centered DCT states ``z``, unit scale; one evaluation of the network."""
        around = c.scalars() if self.scalar else None
        seen = idct2((c.input if around is None else around.input) * z)
        condition = self.condition(c.cell, c.phase).to(seen.dtype).expand(len(z))
        out = self.network(seen, condition, dropout_key).to(z.dtype)
        channels = z.shape[1]
        score = dct2(out[:, :channels])
        if self.learns == "reverse_drift":
            return score, -score
        two = self.learns_drift and self.learns == "score_and_drift"
        drift = dct2(out[:, channels : 2 * channels]) if two else None
        if around is None:
            return score, drift
        # the same score, as a residual of Wiener's predictor
        score = (around.scale * score + (1 / c.power - 1 / around.power) * z) / c.scale
        return score, None if drift is None else around.residual / c.residual * drift

    def coefficients(self, t: Tensor) -> Coefficients:
        """The moments at times ``t`` (float64 [B])."""
        return Coefficients(self.statistics, self.equation, t, plain_noise=self.plain_noise)

    def modes(self, x: Tensor) -> Tensor:
        """DCT of ``x`` [B, C, H, W] in the axes of the colors."""
        return rotate_channels(dct2(x), self.statistics_axes) if self.rotates_channels else dct2(x)

    def field(self, z: Tensor) -> Tensor:
        """The way back."""
        return idct2(rotate_channels(z, self.statistics_axes.mT) if self.rotates_channels else z)

    def to_coordinates(self, u: Tensor) -> Tensor:
        """Modes of the state about the channel means."""
        return self.modes(u - self.statistics_mean[:, None, None])

    def from_coordinates(self, z: Tensor) -> Tensor:
        """The state of centered modes."""
        return self.field(z) + self.statistics_mean[:, None, None]

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | u] = (û + N s)/√(S/D): Tweedie, then the linear smoothing undone, [B, C, H, W]; one evaluation.

        What smoothing has left less than a twentieth of in power is not raised further.
        """
        c = self.coefficients(t)
        f, _ = self.residuals(z, c)
        noise_free = z * (1 - c.noise / c.power) + c.noise * c.scale * f
        return self.from_coordinates(noise_free / c.known.clamp(0.05, 1.0).sqrt())

    def density(self, *, mean: float, std: float, t_min: float) -> tuple[Tensor, Tensor]:
        """See `level_density`; with ``times`` uniform even in t."""
        even = self.times == "uniform"
        return level_density(self, mean=mean, std=std, t_min=t_min, gaps=self.learns_drift, even=even)

    def forward(self, u: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Score s and s̃ = s − d of states ``u`` at times ``t``, [B, C, H, W]; equal where the drift is known.

        With ``reverse_drift`` s is a guess, with ``score`` s̃ is that of a linear drift.
        """
        z, c = self.to_coordinates(u), self.coefficients(t)
        f, g = self.residuals(z, c)
        score = -z / c.power + c.scale * f
        return self.field(score), self.field(score if g is None else score - c.residual * g)

    def _weight(self, c: Coefficients) -> Tensor:
        """ω_k^γ, [B, 1, H, W]."""
        if self.weighting == "state":
            return (c.signal * c.noise / c.power) ** self.gamma
        if self.weighting == "noise":
            return (c.noise * c.scale.square()) ** self.gamma
        return (c.scale + c.residual if self.learns == "reverse_drift" else c.scale).square() ** self.gamma

    def loss(self, drawn: Draw, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """Weighted squared error per sample, [B].

        Wiener's predictor alone has about 1, with ``noise`` the mean of S/V over the frequencies.
        """
        z, c = self.to_coordinates(drawn.state), self.coefficients(t)
        f, g = self.residuals(z, c, dropout_key)
        weight = self._weight(c)
        off = f - (self.modes(drawn.score) + z / c.power) / c.scale
        error = off.square()
        # (Y − 1/V)/c², without the cancellation; Y ≥ 1/N
        spread = 1.0 + torch.expm1(c.target.log() + c.noise.log()).clamp(min=0.0) * c.power / c.signal
        if g is not None:
            assert drawn.drift is not None
            rate = c.alpha1 * c.weight * frequencies(z.shape[-2], z.shape[-1], z.dtype, z.device)
            residual = (self.modes(drawn.drift) + rate * z) / c.alpha2.square()
            ratio = c.residual / c.scale
            aside = ratio * g - residual / c.scale
            if self.learns == "reverse_drift":  # the parts of the target may add up
                error, spread = (off - aside).square(), (spread.sqrt() + ratio).square()
            else:
                error, spread = error + aside.square(), spread + ratio.square()
        if self.weighting == "noise":
            return (weight * error).mean((-3, -2, -1))
        weight = weight / weight.mean((-3, -2, -1), keepdim=True)
        if len(self.level) > 1 and self.weighting == "state":
            return (weight * error).mean((-3, -2, -1)) / (weight * spread).mean((-3, -2, -1))
        return (weight * error / spread).mean((-3, -2, -1))
