"""A score model with Wiener preconditioning: a network with unit-scale input that predicts a unit-scale residual.

In the DCT, with V = S + N of `statistics` and û about the channel means:

    input      û_k / √(N_k + σ_d² S_k/D_k)                      c_in of EDM if nothing is smoothed
    score      −û_k/V_k + c_k F̂_k,      c_k² = S_k/(N_k V_k)     Wiener filter and residual (c_skip, c_out)
    drift      (b̂_k + α1 w_k z_k û_k)/α2² = d_k Ĝ_k             second output, if the drift is not a function of u

The reverse drift is −b_ref + α2² s̃ with s̃ = score − d G. `ScoreModel.from_residual` adds the Wiener filter to the
output of the network, and `loss` subtracts it from the target. The samplers `exponential`, `ode` and `ancestral` use
F directly, with V of the same `Coefficients`.

**Loss.** The squared error of F and G in units of c, with weights ω_k(t) over the modes:

    state      ω_k ∝ S_k N_k/V_k, normalized over k      squared error of the noise-free state (EDM)
    noise      ω_k = N_k c_k², sum over k times ½        ½‖√N·error of the score‖² (Song et al. 2021)

With ``state`` the loss is divided by the power of the target in units of c. It is 1 for the score of a full kernel
with isotropic noise, and larger if an operator shapes the noise (one window) or the kernel covers the last window
only (several). The division is per mode for one window, where modes without signal would dominate otherwise, and by
the mean over modes for several.

**One output** (``reverse_drift``). The reverse SDE needs s̃ only. One output E is both residuals,

    F = E,   G = −E,      s̃ = −û_k/V_k + (c_k + d_k) Ê_k

and the loss is the error of s̃. If the image alone is smoothed, and isotropically, then G = −F exactly. Otherwise s̃
is as general as with two outputs, but F alone is not the score: samplers that need it (`ode`, correctors) are
refused. `denoised` is accurate at times with little smoothing, such as t_min. With ``score`` the drift is not
learned: the sampler `euler` computes it from the state by the stencil, as the paper does.

**Condition** (`process.condition`): C further input channels, about the channel means in units of the standard
deviation of a pixel.

**Channel PCA** (`statistics`): S, V, D, c and d depend on the axis, and so does w with ``plain_noise``; the network
works in these axes.

**Scalar coefficients** (``scalar``): V, S, N and d² around the network are replaced by their means over all
frequencies, as in EDM. The network then has to learn the Wiener filter.
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
    """The score of a process of the SPDE, and its drift where it has to be learned."""

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
        assert self.learns == "score_and_drift" or drift, "the drift is a function of the state"
        assert self.learns != "reverse_drift" or not self.scalar, "scalar coefficients need two outputs"
        self.rotates_channels = not torch.equal(statistics.axes, torch.eye(len(statistics.axes)).to(statistics.axes))

    @classmethod
    def check(cls, process: Process, options: ModelOptions) -> None:
        assert isinstance(process, EquationProcess)
        process.check_learnable()
        if process.conditional and options.parameterization == "ve":
            raise ValueError("condition: parameterization=ve has no input for one; set another parameterization")
        if options.channel_pca and options.parameterization == "ve":
            raise ValueError(
                "channel_pca: parameterization=ve works in the channels of the image; set channel_pca=false, or "
                "another parameterization"
            )
        if options.learns != "score_and_drift" and not process.learns_drift:
            raise ValueError(f"learns: got {options.learns!r}, but the drift is known; set learns=score_and_drift")
        if options.learns == "score" and process.plain_noise:
            raise ValueError(
                "learns: got 'score', but the drift of step=signal must be learned; set learns=reverse_drift"
            )
        if options.learns == "reverse_drift" and options.parameterization == "scalar":
            raise ValueError(
                "learns: got 'reverse_drift', but scalar coefficients need two outputs; set learns=score_and_drift"
            )

    @classmethod
    def inputs(cls, process: Process, options: ModelOptions) -> int:
        return 2 if process.conditional else 1

    @classmethod
    def outputs(cls, process: Process, options: ModelOptions) -> int:
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
        """The noise_level input of the network: ¼ of the noise level, discontinuous where the drift jumps."""
        level = self.statistics.at(self.level, interval, phase)
        if not self.learns_drift or len(self.level) == 1:
            return 0.25 * level
        ends = self.level[:, -1]
        below = torch.where(interval > 0, ends[(interval - 1).clamp(min=0)], self.level[0, 0])
        return 0.25 * (level + 0.15 * (ends[interval] - below) * (1 - phase).to(level.dtype))

    def conditions(self) -> Tensor:
        """`condition` at all entries of the statistics, [K·P]."""
        phases = to_device(self.statistics.phases.to(self.statistics_edges), self.level.device)
        intervals = len(self.statistics_edges) - 1
        interval = torch.arange(intervals, device=phases.device).repeat_interleave(len(phases))
        return self.condition(interval, phases.repeat(intervals))

    def network_state(self) -> dict[str, Tensor]:
        network = self.network.network if isinstance(self.network, SongNetwork) else self.network
        return network.state_dict()

    def wrap_network(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        if isinstance(self.network, SongNetwork):  # the maps around the network stay in full precision
            self.network.wrap_network(wrap)
        else:
            super().wrap_network(wrap)

    def residuals(
        self, z: Tensor, c: Coefficients, dropout_key: Tensor | None = None, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """F̂ and Ĝ (None if not learned) of states ``z`` in the DCT; NFE 1, or 2 with guidance."""
        scalars = c.scalars() if self.scalar else None
        x = idct2((c.input if scalars is None else scalars.input) * z)
        level = self.condition(c.interval, c.phase).to(x.dtype).expand(len(z))
        if self.conditional:
            x = torch.cat([x, self._condition_input(z)], dim=1)
        out = self.evaluate_network(x, level, c.t, labels, dropout_key).to(z.dtype)
        channels = z.shape[1]
        score = dct2(out[:, :channels])
        if self.learns == "reverse_drift":
            return score, -score
        two = self.learns_drift and self.learns == "score_and_drift"
        drift = dct2(out[:, channels : 2 * channels]) if two else None
        if scalars is None:
            return score, drift
        # the same score as a residual of the Wiener filter
        score = (scalars.scale * score + (1 / c.power - 1 / scalars.power) * z) / c.scale
        return score, None if drift is None else scalars.residual / c.residual * drift

    def _condition_input(self, z: Tensor) -> Tensor:
        """The condition about the channel means, in units of the standard deviation of a pixel."""
        image = self.image_condition
        if image is None or image.shape != z.shape:
            got = "none" if image is None else f"{list(image.shape)}"
            raise ValueError(f"condition: got {got}, expected {list(z.shape)}: an image for every state")
        return (image.to(z) - self.statistics_mean[:, None, None]) / self.statistics.data.mean().sqrt()

    def coefficients(self, t: Tensor) -> Coefficients:
        """The statistics at times ``t`` (float64 [B])."""
        return Coefficients(self.statistics, self.equation, t, plain_noise=self.plain_noise)

    def modes(self, x: Tensor) -> Tensor:
        """DCT of ``x`` [B, C, H, W], with channel PCA in the principal axes."""
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
        """The score −û/V + c F."""
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
        """E[x0 | u] = (û + N s)/√(S/D): Tweedie's formula, then the mean smoothing inverted, [B, C, H, W]; NFE 1.

        S/D is clamped to at least 1/20.
        """
        c = self.coefficients(t)
        f, _ = self.residuals(z, c)
        return self.image(z, c, f)

    def image(self, z: Tensor, c: Coefficients, f: Tensor) -> Tensor:
        """`denoised` from the residual F."""
        noise_free = z * (1 - c.noise / c.power) + c.noise * c.scale * f
        return self.from_coordinates(noise_free / c.kept.clamp(0.05, 1.0).sqrt())

    def time_density(self, *, mean: float, std: float, t_min: float) -> tuple[Tensor, Tensor]:
        return level_density(self, mean=mean, std=std, t_min=t_min, gaps=self.learns_drift, times=self.times)

    def forward(self, u: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Score s and s̃ = s − d G of states ``u`` at times ``t``, [B, C, H, W].

        With ``reverse_drift`` s is not the score; with ``score`` s̃ is that of the linear drift b_ref.
        """
        z, c = self.to_coordinates(u), self.coefficients(t)
        f, g = self.residuals(z, c)
        score = self.from_residual(z, c, f)
        return self.field(score), self.field(score if g is None else score - c.residual * g)

    @property
    def path_obstacle(self) -> str:
        return "" if "reverse_drift" in self.provided else "a model with learns=score has no drift for a reverse SDE"

    def path_rate(self, pair: TrainingPair, t: Tensor) -> Tensor:
        """With r = −b + α2² q·target and r_θ = −drift + α2² q·score per mode."""
        z, c = self.to_coordinates(pair.state), self.coefficients(t)
        score, drift = self.conditioned(pair.condition).score_and_drift(z, t)
        noise = c.alpha2 * colored(self.equation, torch.ones_like(z[:1, :1])).sqrt()  # α2 √q
        off = noise * (self.modes(pair.target) - score)
        if pair.drift is not None:
            off = off - (self.modes(pair.drift) - drift) / noise
        return 0.5 * to_highest_precision(off).square().sum((-3, -2, -1))

    def loss(self, pair: TrainingPair, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """Weighted squared error per sample, [B]; for F = G = 0 about 1, or ½ ΣS/V with ``noise``."""
        z, c = self.to_coordinates(pair.state), self.coefficients(t)
        f, g = self.conditioned(pair.condition).residuals(z, c, dropout_key, pair.labels)
        off = f - (self.modes(pair.target) + z / c.power) / c.scale
        error = off.square()
        # (Y − 1/V)/c² ≥ 1, without cancellation
        spread = 1.0 + torch.expm1(c.target.log() + c.noise.log()).clamp(min=0.0) * c.power / c.signal
        if g is not None:
            assert pair.drift is not None
            rate = c.alpha1 * c.weight * frequencies(z.shape[-2], z.shape[-1], z.dtype, z.device)
            residual = (self.modes(pair.drift) + rate * z) / c.alpha2.square()
            ratio = c.residual / c.scale
            drift_off = ratio * g - residual / c.scale
            if self.learns == "reverse_drift":  # the two parts of the target may be correlated
                error, spread = (off - drift_off).square(), (spread.sqrt() + ratio).square()
            else:
                error, spread = error + drift_off.square(), spread + ratio.square()
        if self.weighting == "noise":
            return 0.5 * (c.noise * c.scale.square() * error).sum((-3, -2, -1))
        weight = c.signal * c.noise / c.power
        weight = weight / weight.mean((-3, -2, -1), keepdim=True)
        if len(self.level) > 1:
            return (weight * error).mean((-3, -2, -1)) / (weight * spread).mean((-3, -2, -1))
        return (weight * error / spread).mean((-3, -2, -1))
