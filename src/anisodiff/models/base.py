"""What training, sampling and editing need of a model, whatever it learns.

A model is a network with the spectral statistics of its process on the data: its noise level, and what its
preconditioning is made of. `ScoreModel` learns a score; the models of the baselines learn what their papers say.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn

from anisodiff.models.guidance import Guidance
from anisodiff.processes.base import Process, TrainingPair
from anisodiff.statistics import SpectralStatistics
from anisodiff.tensors import to_float64, to_highest_precision

Weighting = Literal["state", "noise"]
Learns = Literal["score_and_drift", "reverse_drift", "score"]
TimeDensity = Literal["level", "uniform", "log_uniform"]
Parameterization = Literal["residual", "scalar", "ve"]
CHOICES: dict[str, tuple[str, ...]] = {
    "weighting": get_args(Weighting),
    "learns": get_args(Learns),
    "times": get_args(TimeDensity),
    "parameterization": get_args(Parameterization),
}
"""The values that each option of a model may have."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What a run chooses about its model; keys of `TrainConfig`. A model refuses those it does not have."""

    parameterization: Parameterization = "residual"
    """residual: what the Wiener filter leaves. scalar: EDM's coefficients, one number for all frequencies.
    ve: the input and output of a network as Song et al. 2021 publish it."""
    learns: Learns = "score_and_drift"
    """Where the drift is unknown: two outputs, or the one that sampling needs, or the score alone (the paper)."""
    channel_pca: bool = False
    """Statistics and network in decorrelated channels."""
    weighting: Weighting = "state"
    """The loss is the squared error of the noise-free state (EDM), or half the sum of that of √N·score (Song)."""
    times: TimeDensity = "level"
    """Density of the training times: normal in the noise level, uniform in t, or uniform in the noise level."""


def noise_level(statistics: SpectralStatistics) -> Tensor:
    """ln(σ/σ_d) on (interval, phase), [K, P]: σ is the white noise that alone would leave as much of an image as the
    process does, in the sense of information, Σ_k ln(1 + D_k/σ²) = Σ_k ln(1 + S_k/N_k); σ_d² is a pixel's variance.

    For `ve` this is its own noise level. Processes that smooth as well are compared by what they have destroyed.
    """
    known = torch.log1p(to_float64(statistics.log_signal - statistics.log_noise).exp()).sum((-2, -1))
    return equivalent_level(known, to_float64(statistics.data).flatten()).float().to(statistics.data.device)


def equivalent_level(known: Tensor, data: Tensor, modes: Tensor | None = None) -> Tensor:
    """ln(σ/σ_d) of the white noise with Σ_k ln(1 + D_k/σ²) = ``known``, any shape; ``data``: D_k [M], float64.

    ``modes`` [M]: how many modes have each of these powers, where it is not one each.
    """
    level = torch.linspace(-9.0, 9.0, 721, dtype=torch.float64, device=data.device)
    mean = data.mean() if modes is None else (modes * data).sum() / modes.sum()
    terms = torch.log1p(data / mean * torch.exp(-2 * level)[:, None])
    white = (terms if modes is None else modes * terms).sum(1)
    right = torch.searchsorted(-white, -known.contiguous()).clamp(1, len(level) - 1)
    weight = ((white[right - 1] - known) / (white[right - 1] - white[right])).clamp(0, 1)
    return torch.lerp(level[right - 1], level[right], weight)


class Model(nn.Module, ABC):
    """A network and the statistics of its process. The statistics are buffers: they go where the weights go."""

    default_sampler: ClassVar[str]

    level: Tensor
    """`noise_level` of the statistics, [K, P]."""
    statistics_mean: Tensor
    statistics_edges: Tensor

    provided: frozenset[str]
    """What samplers may ask of this model; as `provides` has it."""
    labels: Tensor | None = None
    """Classes that every answer is for, int64 [B]; None, but in a view made by `given`: the null label."""
    guidance: Guidance = Guidance()
    conditional: bool = False
    """Whether the network sees an image beside the state; see `conditioned`."""
    image_condition: Tensor | None = None
    """That image for each state, [B, C, H, W]; None, but in a view made by `conditioned`."""

    def __init__(self, network: nn.Module, statistics: SpectralStatistics) -> None:
        super().__init__()
        self.network = network
        for f in fields(statistics):
            self.register_buffer(f"statistics_{f.name}", getattr(statistics, f.name))
        self.register_buffer("level", noise_level(statistics))

    # -- what a process and the options of a run decide, before there is a network

    @classmethod
    def check(cls, process: Process, options: ModelOptions) -> None:
        """Refuse options that this model of ``process`` does not have, naming what to change."""

    @classmethod
    def inputs(cls, process: Process, options: ModelOptions) -> int:
        """Network inputs for every channel of an image."""
        return 1

    @classmethod
    def outputs(cls, process: Process, options: ModelOptions) -> int:
        """Network outputs for every channel of an image."""
        return 1

    @classmethod
    @abstractmethod
    def provides(cls, process: Process, options: ModelOptions) -> frozenset[str]:
        """What a sampler may ask of the trained model, see `samplers.base.CAPABILITIES`."""

    @classmethod
    @abstractmethod
    def build(cls, network: nn.Module, process: Any, statistics: SpectralStatistics, options: ModelOptions) -> Self:
        """The model around ``network``."""

    # -- classes

    def given(self, labels: Tensor | None, guidance: Guidance = Guidance()) -> Self:
        """A view of the model, with the same weights, for a batch of samples of the classes ``labels``, int64 [B].

        Samplers and editing call it as they call the model. ``guidance`` without labels has nothing to act on.
        """
        view = copy(self)
        view.labels, view.guidance = labels, guidance
        return view

    def evaluate_network(
        self, x: Tensor, noise_level: Tensor, t: Tensor, labels: Tensor | None = None,
        dropout_key: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The network's output; every evaluation of the network is made here.

        ``t``: times, float64 [1] or [B]. ``labels``: those of a training pair; otherwise the view's, guided.
        """
        out: Tensor
        if labels is None and self.labels is None:
            out = self.network(x, noise_level, dropout_key=dropout_key)
            return out
        inside = None  # everywhere
        if labels is None and self.guidance.acts and self.guidance.interval is not None:
            inside = self.guidance.inside(self.level_at(t))
        if labels is not None or not self.guidance.acts or (inside is not None and not bool(inside.any())):
            out = self.network(x, noise_level, self.labels if labels is None else labels, dropout_key)
            return out
        null: Tensor = self.network(x, noise_level).clone()  # a replayed network writes its next answer over it
        weight = self.guidance.weight
        if weight == 0.0 and (inside is None or bool(inside.all())):
            return null
        out = self.network(x, noise_level, self.labels)
        if inside is None:
            return null + weight * (out - null)
        return null + torch.where(inside, weight, 1.0).to(x.dtype)[:, None, None, None] * (out - null)

    def evaluations(self, t: Tensor) -> Tensor:
        """Network evaluations that an answer at times ``t`` (float64 [M]) takes, int64 [M]: 1, or 2 where guided."""
        if self.labels is None or not self.guidance.acts:
            return torch.ones_like(t, dtype=torch.int64)
        return self.guidance.evaluations(self.level_at(t))

    # -- what training, samplers and editing call

    def conditioned(self, condition: Tensor | None) -> Self:
        """A view of the model, with the same weights, that sees ``condition`` [B, C, H, W] beside every state."""
        if self.conditional != (condition is not None):
            wrong = "got none" if condition is None else "got some, and it was trained without"
            raise ValueError(f"condition: {wrong}; a model trained with process.condition needs one for every image")
        if condition is None:
            return self
        view = copy(self)
        view.image_condition = condition
        return view

    @property
    @abstractmethod
    def T(self) -> float: ...

    @abstractmethod
    def time_density(self, *, mean: float, std: float, t_min: float) -> tuple[Tensor, Tensor]:
        """Ascending times [M] and the cumulative distribution that t is drawn from in training; on the CPU, float64.

        ``mean`` and ``std`` of the noise level and ``t_min`` are the run's; a method with a rule of its own has that.
        """

    @abstractmethod
    def loss(self, pair: TrainingPair, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """The error per sample, [B], of states and targets at times ``t`` (float64 [B])."""

    @abstractmethod
    def to_coordinates(self, u: Tensor) -> Tensor:
        """States ``u`` [B, C, H, W] in the coordinates that the model's samplers step in."""

    @abstractmethod
    def from_coordinates(self, z: Tensor) -> Tensor:
        """The inverse of `to_coordinates`."""

    @abstractmethod
    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | z], the image [B, C, H, W], from states ``z`` of `to_coordinates` at ``t`` [1]; NFE 1."""

    @property
    def path_obstacle(self) -> str:
        """Why the model has no reverse equation of its own (see `path_bound`); empty where it has one."""
        return "the model learns no score"

    def path_rate(self, pair: TrainingPair, t: Tensor) -> Tensor:
        """½‖r − r_θ‖²/(noise of a path) at states of one path each, float64 [B], in nats for a unit of time.

        r, the reverse drift given the image, is that of the ``pair``; r_θ, the model's, takes NFE 1.
        """
        raise ValueError(f"no bound of a path: {self.path_obstacle}")

    @property
    def statistics(self) -> SpectralStatistics:
        """On the model's device."""
        return SpectralStatistics(
            **{f.name: getattr(self, f"statistics_{f.name}") for f in fields(SpectralStatistics)}
        )

    def level_at(self, t: Tensor) -> Tensor:
        """The noise level at times ``t`` (float64 [M]), float64 [M], where they are."""
        here = self.statistics.to(t.device)
        return to_highest_precision(here.at(self.level.to(t.device), *here.locate(t)))

    def network_state(self) -> dict[str, Tensor]:
        """Weights and buffers of the network alone, as a checkpoint stores them."""
        return self.network.state_dict()

    def wrap_network(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        """Replace the network by ``wrap``(network): compiled, in half precision, as a CUDA graph."""
        self.network = wrap(self.network)
