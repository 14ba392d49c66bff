"""A score with Wiener preconditioning: the network sees a unit-scale input and predicts a unit-scale residual.

In the DCT, with the statistics V = S + N of `statistics` (û about the channel means):

    input      û_k / √(N_k + σ_d² S_k/D_k)                      EDM's c_in when nothing is smoothed
    score      −û_k/V_k + c_k F̂_k,      c_k² = S_k/(N_k V_k)     the Wiener filter and a residual (c_skip, c_out)
    drift      (b̂_k + α1 w_k z_k û_k)/α2² = d_k G_k            the second output, where the drift is not known

so that the reverse drift −b_ref + α2² s̃ has s̃ = score − d. `ScoreModel.from_residual` adds the Wiener filter to
the network's output, and `loss` takes it out of the target; samplers that step with the residual F itself
(`exponential`, `ode`, `ancestral`) use V of the same `Coefficients`. The loss is the error of score and d in units
of the residual, weighted ω_k(t) over the modes:

    state      ω_k ∝ S_k N_k/V_k, normalized over k      ‖error of the noise-free state‖², EDM's
    noise      ω_k = N_k c_k²                            ½‖√N·error of the score‖², Song's, as it stands: the sum

With ``state`` the loss is divided by the power of the targets: 1 where the score of a whole kernel with isotropic
noise is regressed, more where an operator shapes the noise (one window) or where only the last piece's noise is seen
(several). Modes without any signal would then be most of the loss: it is divided mode by mode, but with several
windows, where ω gives such modes next to no weight, as a whole.

**One output.** The reverse equation asks for s̃ = score − d alone. With ``reverse_drift`` one output E is both,

    F = E,   G = −E,      s̃ = −û_k/V_k + (c_k + d_k) Ê_k

and the loss is the error of s̃. Where the image alone is smoothed, and isotropically, its parts are right as well: the
drift −λ_k(û_k − noise) has G = −F, and two outputs learn one thing twice. Elsewhere s̃ is as free as with two, and its
parts are guesses: samplers that need the score alone (`ode`, correctors) refuse. `denoised` is right where little is
smoothed yet, as at t_min, where sampling ends. With ``score`` the drift is not learned: the paper takes the stencil
at the state itself (`euler`).

**A condition** (`process.condition`) is C more inputs of the network, about the channel means in units of a pixel's
standard deviation; everything else is as without one.

With channel PCA (see `statistics`) S, V, D, c and d have an index for the axis, and so has w where the drift does not
move the noise (``plain_noise``); the network then sees and answers in these axes.

With ``scalar`` the network is given and asked for what EDM's is: V, S, N and d² are replaced by their means over all
frequencies in what surrounds the network, and nowhere else. The network has to learn the Wiener filter then.
"""

from collections.abc import Callable
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.equation import Equation
from anisodiff.gaussian_kernel import colored
from anisodiff.models.base import Model, ModelOptions
from anisodiff.models.song_network import SongNetwork
from anisodiff.models.time_density import level_density
from anisodiff.processes.base import EquationProcess, Process, TrainingPair
from anisodiff.statistics import Coefficients, SpectralStatistics, rotate_channels
from anisodiff.tensors import to_device, to_highest_precision


def _provided(drift: bool, options: ModelOptions) -> frozenset[str]:
    both = not drift or options.learns == "score_and_drift"
    return frozenset({"score", "reverse_drift"} if both else {options.learns})


class ScoreModel(Model):
    """A network with its preconditioning; everything that sampling needs but the process."""

    default_sampler: ClassVar[str] = "exponential"

    statistics_axes: Tensor

    def __init__(
        self,
        network: nn.Module,
        equation: Equation,
        statistics: SpectralStatistics,
        *,
        drift: bool,
        plain_noise: bool = False,
        options: ModelOptions = ModelOptions(),
    ) -> None:
        super().__init__(network, statistics)
        self.equation, self.learns_drift, self.plain_noise = equation, drift, plain_noise
        self.learns, self.weighting, self.times = options.learns, options.weighting, options.times
        self.scalar = options.parameterization == "scalar"
        self.provided = _provided(drift, options)
        assert self.learns == "score_and_drift" or drift, "the drift is known"
        assert self.learns != "reverse_drift" or not self.scalar, "scalar coefficients are for two outputs"
        self.rotates_channels = not torch.equal(statistics.axes, torch.eye(len(statistics.axes)).to(statistics.axes))

    @classmethod
    def check(cls, process: Process, options: ModelOptions) -> None:
        assert isinstance(process, EquationProcess)
        process.check_learnable()
        if process.conditional and options.parameterization == "ve":
            raise ValueError("condition: the network of parameterization=ve sees states alone; take another one")
        if options.channel_pca and options.parameterization == "ve":
            raise ValueError(
                "channel_pca: the network of parameterization=ve sees images as they are; set channel_pca=false, "
                "or another parameterization"
            )
        if options.learns != "score_and_drift" and not process.learns_drift:
            raise ValueError(f"learns: got {options.learns!r}, but the drift is known; set learns=score_and_drift")
        if options.learns == "score" and process.plain_noise:
            raise ValueError(
                "learns: got 'score', but only a model knows the drift of step=signal; set reverse_drift"
            )
        if options.learns == "reverse_drift" and options.parameterization == "scalar":
            raise ValueError(
                "learns: got 'reverse_drift', but scalar coefficients need two outputs; set learns=score_and_drift"
            )

    @classmethod
    def inputs(cls, process: Process, options: ModelOptions) -> int:
        """The state, and the condition where there is one."""
        return 2 if process.conditional else 1

    @classmethod
    def outputs(cls, process: Process, options: ModelOptions) -> int:
        """The score, and the drift where it is not known and learned by itself."""
        return 2 if process.learns_drift and options.learns == "score_and_drift" else 1

    @classmethod
    def provides(cls, process: Process, options: ModelOptions) -> frozenset[str]:
        return _provided(process.learns_drift, options)

    @classmethod
    def build(
        cls, network: nn.Module, process: EquationProcess, statistics: SpectralStatistics, options: ModelOptions
    ) -> Self:
        model = cls(
            network, process.equation, statistics, drift=process.learns_drift, plain_noise=process.plain_noise,
            options=options,
        )  # fmt: skip
        model.conditional = process.conditional
        if options.parameterization == "ve":
            model.network = SongNetwork(network, model.statistics, model.conditions())
        return model

    @property
    def T(self) -> float:
        return self.equation.T

    def condition(self, interval: Tensor, phase: Tensor) -> Tensor:
        """The network's noise_level input: ¼ of the noise level, with a gap at every edge the drift jumps at."""
        level = self.statistics.at(self.level, interval, phase)
        if not self.learns_drift or len(self.level) == 1:
            return 0.25 * level
        ends = self.level[:, -1]
        below = torch.where(interval > 0, ends[(interval - 1).clamp(min=0)], self.level[0, 0])
        return 0.25 * (level + 0.15 * (ends[interval] - below) * (1 - phase).to(level.dtype))

    def conditions(self) -> Tensor:
        """`condition` on the whole grid of the statistics, [K·P]."""
        phases = to_device(self.statistics.phases.to(self.statistics_edges), self.level.device)
        intervals = len(self.statistics_edges) - 1
        interval = torch.arange(intervals, device=phases.device).repeat_interleave(len(phases))
        return self.condition(interval, phases.repeat(intervals))

    def network_state(self) -> dict[str, Tensor]:
        network = self.network.network if isinstance(self.network, SongNetwork) else self.network
        return network.state_dict()

    def wrap_network(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        if isinstance(self.network, SongNetwork):  # the translation around it needs full precision
            self.network.wrap_network(wrap)
        else:
            super().wrap_network(wrap)

    def residuals(
        self, z: Tensor, c: Coefficients, dropout_key: Tensor | None = None, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """F̂ and Ĝ of centered DCT states ``z``, unit scale; one evaluation of the network, two where guided."""
        around = c.scalars() if self.scalar else None
        seen = idct2((c.input if around is None else around.input) * z)
        level = self.condition(c.interval, c.phase).to(seen.dtype).expand(len(z))
        if self.conditional:
            seen = torch.cat([seen, self._condition_input(z)], dim=1)
        out = self.evaluate_network(seen, level, c.t, labels, dropout_key).to(z.dtype)
        channels = z.shape[1]
        score = dct2(out[:, :channels])
        if self.learns == "reverse_drift":
            return score, -score
        two = self.learns_drift and self.learns == "score_and_drift"
        drift = dct2(out[:, channels : 2 * channels]) if two else None
        if around is None:
            return score, drift
        # the same score, as a residual of the Wiener filter
        score = (around.scale * score + (1 / c.power - 1 / around.power) * z) / c.scale
        return score, None if drift is None else around.residual / c.residual * drift

    def _condition_input(self, z: Tensor) -> Tensor:
        """The condition of states ``z`` about the channel means, in units of a pixel's standard deviation."""
        seen = self.image_condition
        if seen is None or seen.shape != z.shape:
            got = "none" if seen is None else f"{list(seen.shape)}"
            raise ValueError(f"condition: got {got}, expected {list(z.shape)}: an image for every state")
        spread = self.statistics.data.mean().sqrt()
        return (seen.to(z) - self.statistics_mean[:, None, None]) / spread

    def coefficients(self, t: Tensor) -> Coefficients:
        """The statistics at times ``t`` (float64 [B])."""
        return Coefficients(self.statistics, self.equation, t, plain_noise=self.plain_noise)

    def modes(self, x: Tensor) -> Tensor:
        """DCT of ``x`` [B, C, H, W], in decorrelated channels with channel PCA."""
        return rotate_channels(dct2(x), self.statistics_axes) if self.rotates_channels else dct2(x)

    def field(self, z: Tensor) -> Tensor:
        """The inverse of `modes`."""
        return idct2(rotate_channels(z, self.statistics_axes.mT) if self.rotates_channels else z)

    def to_coordinates(self, u: Tensor) -> Tensor:
        """DCT modes of the state about the channel means."""
        return self.modes(u - self.statistics_mean[:, None, None])

    def from_coordinates(self, z: Tensor) -> Tensor:
        return self.field(z) + self.statistics_mean[:, None, None]

    def from_residual(self, z: Tensor, c: Coefficients, f: Tensor) -> Tensor:
        """The score −û/V + c F: the Wiener filter and the residual that the network predicts."""
        return -z / c.power + c.scale * f

    def score(self, z: Tensor, t: Tensor) -> Tensor:
        """∇ log p_t in the model's coordinates, of states ``z`` at ``t`` [1]; NFE 1."""
        return self.score_and_drift(z, t)[0]

    def score_and_drift(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The score, and the projected drift −α1 w z û + α2² d G, of states ``z`` at ``t`` [1]; NFE 1."""
        c = self.coefficients(t)
        f, g = self.residuals(z, c)
        drift = -c.alpha1 * c.weight * frequencies(z.shape[-2], z.shape[-1], z.dtype, z.device) * z
        if g is not None:
            drift = drift + c.alpha2.square() * c.residual * g
        return self.from_residual(z, c, f), drift

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | u] = (û + N s)/√(S/D): Tweedie, then the linear smoothing undone, [B, C, H, W]; NFE 1.

        What smoothing has left less than a twentieth of in power is not raised further.
        """
        c = self.coefficients(t)
        f, _ = self.residuals(z, c)
        return self.image(z, c, f)

    def image(self, z: Tensor, c: Coefficients, f: Tensor) -> Tensor:
        """E[x0 | u] from the residual F."""
        noise_free = z * (1 - c.noise / c.power) + c.noise * c.scale * f
        return self.from_coordinates(noise_free / c.kept.clamp(0.05, 1.0).sqrt())

    def time_density(self, *, mean: float, std: float, t_min: float) -> tuple[Tensor, Tensor]:
        return level_density(self, mean=mean, std=std, t_min=t_min, gaps=self.learns_drift, times=self.times)

    def forward(self, u: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Score s and s̃ = s − d of states ``u`` at times ``t``, [B, C, H, W]; equal where the drift is known.

        With ``reverse_drift`` s is a guess, with ``score`` s̃ is that of a linear drift.
        """
        z, c = self.to_coordinates(u), self.coefficients(t)
        f, g = self.residuals(z, c)
        score = self.from_residual(z, c, f)
        return self.field(score), self.field(score if g is None else score - c.residual * g)

    @property
    def path_obstacle(self) -> str:
        known = "reverse_drift" in self.provided
        return "" if known else "a model that learns=score has no drift, and so no reverse equation of its own"

    def path_rate(self, pair: TrainingPair, t: Tensor) -> Tensor:
        """r = −b + α2² q·target, r_θ = −drift + α2² q·score, per mode; q is the spectrum of the noise."""
        z, c = self.to_coordinates(pair.state), self.coefficients(t)
        score, drift = self.conditioned(pair.condition).score_and_drift(z, t)
        noise = c.alpha2 * colored(self.equation, torch.ones_like(z[:1, :1])).sqrt()  # α2 √q
        off = noise * (self.modes(pair.target) - score)
        if pair.drift is not None:
            off = off - (self.modes(pair.drift) - drift) / noise
        return 0.5 * to_highest_precision(off).square().sum((-3, -2, -1))

    def loss(self, pair: TrainingPair, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """Weighted squared error per sample, [B].

        The Wiener filter alone has about 1; with ``noise``, half the sum of S/V over the frequencies.
        """
        z, c = self.to_coordinates(pair.state), self.coefficients(t)
        f, g = self.conditioned(pair.condition).residuals(z, c, dropout_key, pair.labels)
        off = f - (self.modes(pair.target) + z / c.power) / c.scale
        error = off.square()
        # (Y − 1/V)/c², without the cancellation; Y ≥ 1/N
        spread = 1.0 + torch.expm1(c.target.log() + c.noise.log()).clamp(min=0.0) * c.power / c.signal
        if g is not None:
            assert pair.drift is not None
            rate = c.alpha1 * c.weight * frequencies(z.shape[-2], z.shape[-1], z.dtype, z.device)
            residual = (self.modes(pair.drift) + rate * z) / c.alpha2.square()
            ratio = c.residual / c.scale
            aside = ratio * g - residual / c.scale
            if self.learns == "reverse_drift":  # the parts of the target may add up
                error, spread = (off - aside).square(), (spread.sqrt() + ratio).square()
            else:
                error, spread = error + aside.square(), spread + ratio.square()
        if self.weighting == "noise":
            return 0.5 * (c.noise * c.scale.square() * error).sum((-3, -2, -1))
        weight = c.signal * c.noise / c.power
        weight = weight / weight.mean((-3, -2, -1), keepdim=True)
        if len(self.level) > 1:
            return (weight * error).mean((-3, -2, -1)) / (weight * spread).mean((-3, -2, -1))
        return (weight * error / spread).mean((-3, -2, -1))
