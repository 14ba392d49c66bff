"""The contract of a model: a network with its preconditioning, its loss and its predictions.

A model also holds the spectral statistics of its process on the data, from which its noise level and its
preconditioning are computed. `ScoreModel` learns a score; the models of the baselines learn the targets of their
papers.
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
from anisodiff.tensors import interpolate, to_float64, to_highest_precision

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
"""The valid values of each option."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of a model; keys of `TrainConfig`."""

    parameterization: Parameterization = "residual"
    """residual: the network predicts the residual of the Wiener filter. scalar: coefficients of EDM, one number for
    all frequencies. ve: input and output of the published networks of Song et al. 2021."""
    learns: Learns = "score_and_drift"
    """If the drift is not a function of the state: score and drift as two outputs, their combination in the reverse
    SDE as one output (reverse_drift), or the score alone (the paper)."""
    channel_pca: bool = False
    """Statistics and network in the principal axes of the channels."""
    weighting: Weighting = "state"
    """state: squared error of the noise-free state (EDM). noise: half the squared error of √N·score (Song)."""
    times: TimeDensity = "level"
    """Density of the training times: normal in the noise level, uniform in t, or uniform in the noise level."""


def noise_level(statistics: SpectralStatistics) -> Tensor:
    """ln(σ/σ_d) on (interval, phase), [K, P], of white noise σ with equal mutual information of state and image:

        Σ_k ln(1 + D_k/σ²) = Σ_k ln(1 + S_k/N_k),      σ_d² the variance of a pixel

    For `ve` this is its own noise level. It makes the times of processes with and without smoothing comparable. It is
    clamped to [−9, 9], a mean SNR of e^{±18}.
    """
    information = torch.log1p(to_float64(statistics.log_signal - statistics.log_noise).exp()).sum((-2, -1))
    return equivalent_level(information, to_float64(statistics.data).flatten()).float().to(statistics.data.device)


def equivalent_level(information: Tensor, data: Tensor, modes: Tensor | None = None) -> Tensor:
    """ln(σ/σ_d) of the white noise with Σ_k ln(1 + D_k/σ²) = ``information``, any shape; ``data``: D_k [M], float64.

    ``modes`` [M]: the number of modes with each of these powers; by default 1.
    """
    level = torch.linspace(-9.0, 9.0, 721, dtype=torch.float64, device=data.device)
    mean = data.mean() if modes is None else (modes * data).sum() / modes.sum()
    terms = torch.log1p(data / mean * torch.exp(-2 * level)[:, None])
    white = (terms if modes is None else modes * terms).sum(1)
    return interpolate(-information, -white, level)


class Model(nn.Module, ABC):
    """A network and the statistics of its process, which are buffers of the module."""

    default_sampler: ClassVar[str]

    level: Tensor
    """`noise_level` of the statistics, [K, P]."""
    statistics_mean: Tensor
    statistics_edges: Tensor

    provided: frozenset[str]
    """What this model predicts, see `provides`."""
    labels: Tensor | None = None
    """Classes of the samples, int64 [B], in a view made by `given`; None: the null label."""
    guidance: Guidance = Guidance()
    conditional: bool = False
    """Whether the network has an image as further input, see `conditioned`."""
    image_condition: Tensor | None = None
    """That image for each state, [B, C, H, W], in a view made by `conditioned`."""

    def __init__(self, network: nn.Module, statistics: SpectralStatistics) -> None:
        super().__init__()
        self.network = network
        for f in fields(statistics):
            self.register_buffer(f"statistics_{f.name}", getattr(statistics, f.name))
        self.register_buffer("level", noise_level(statistics))

    # -- from the process and the options, before there is a network

    @classmethod
    def check(cls, process: Process, options: ModelOptions) -> None:
        """Raise a ValueError for options that this model does not have for ``process``."""

    @classmethod
    def inputs(cls, process: Process, options: ModelOptions) -> int:
        """Network inputs per channel of an image."""
        return 1

    @classmethod
    def outputs(cls, process: Process, options: ModelOptions) -> int:
        """Network outputs per channel of an image."""
        return 1

    @classmethod
    @abstractmethod
    def provides(cls, process: Process, options: ModelOptions) -> frozenset[str]:
        """What the trained model predicts: names of `samplers.base.CAPABILITIES`."""

    @classmethod
    @abstractmethod
    def build(cls, network: nn.Module, process: Any, statistics: SpectralStatistics, options: ModelOptions) -> Self:
        """The model around ``network``."""

    # -- classes

    def given(self, labels: Tensor | None, guidance: Guidance = Guidance()) -> Self:
        """A view of the model, with the same weights, for a batch of the classes ``labels``, int64 [B].

        ``guidance`` has no effect without labels.
        """
        view = copy(self)
        view.labels, view.guidance = labels, guidance
        return view

    def evaluate_network(
        self, x: Tensor, noise_level: Tensor, t: Tensor, labels: Tensor | None = None,
        dropout_key: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The output of the network, with guidance. All evaluations of the network go through this method.

        ``t``: times, float64 [1] or [B]. ``labels``: of a training pair; by default those of the view, with guidance.
        """
        out: Tensor
        if labels is None and self.labels is None:
            out = self.network(x, noise_level, dropout_key=dropout_key)
            return out
        inside = None  # at all times
        if labels is None and self.guidance.acts and self.guidance.interval is not None:
            inside = self.guidance.inside(self.level_at(t))
        if labels is not None or not self.guidance.acts or (inside is not None and not bool(inside.any())):
            out = self.network(x, noise_level, self.labels if labels is None else labels, dropout_key)
            return out
        null: Tensor = self.network(x, noise_level).clone()  # a CUDA graph overwrites its output
        weight = self.guidance.weight
        if weight == 0.0 and (inside is None or bool(inside.all())):
            return null
        out = self.network(x, noise_level, self.labels)
        if inside is None:
            return null + weight * (out - null)
        return null + torch.where(inside, weight, 1.0).to(x.dtype)[:, None, None, None] * (out - null)

    def evaluations(self, t: Tensor) -> Tensor:
        """Network evaluations of a prediction at times ``t`` (float64 [M]), int64 [M]: 1, or 2 with guidance."""
        if self.labels is None or not self.guidance.acts:
            return torch.ones_like(t, dtype=torch.int64)
        return self.guidance.evaluations(self.level_at(t))

    # -- for training, samplers and editing

    def conditioned(self, condition: Tensor | None) -> Self:
        """A view of the model, with the same weights, with ``condition`` [B, C, H, W] as further input."""
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
        """Cumulative distribution [M] of the training times at ascending times [M]; float64, on the CPU.

        ``mean`` and ``std`` are those of the noise level; a baseline with its own density ignores them.
        """

    @abstractmethod
    def loss(self, pair: TrainingPair, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """The loss of each sample, [B], at times ``t`` (float64 [B])."""

    @abstractmethod
    def to_coordinates(self, u: Tensor) -> Tensor:
        """States ``u`` [B, C, H, W] in the coordinates of the samplers, z below."""

    @abstractmethod
    def from_coordinates(self, z: Tensor) -> Tensor:
        """The inverse of `to_coordinates`."""

    @abstractmethod
    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """The image E[x0 | z], [B, C, H, W], of states ``z`` at ``t`` [1]; NFE 1."""

    @property
    def path_obstacle(self) -> str:
        """Why the model has no reverse SDE (see `path_bound`); empty if it has one."""
        return "the model learns no score"

    def path_rate(self, pair: TrainingPair, t: Tensor) -> Tensor:
        """½‖r − r_θ‖²/(α2² q) of `path_bound`, float64 [B], in nats per unit of time; r from ``pair``. NFE 1."""
        raise ValueError(f"no bound of a path: {self.path_obstacle}")

    @property
    def statistics(self) -> SpectralStatistics:
        return SpectralStatistics(
            **{f.name: getattr(self, f"statistics_{f.name}") for f in fields(SpectralStatistics)}
        )

    def level_at(self, t: Tensor) -> Tensor:
        """The noise level at times ``t`` (float64 [M]), float64 [M], on their device."""
        here = self.statistics.to(t.device)
        return to_highest_precision(here.at(self.level.to(t.device), *here.locate(t)))

    def network_state(self) -> dict[str, Tensor]:
        """Weights and buffers of the network, for a checkpoint."""
        return self.network.state_dict()

    def wrap_network(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        """Replace the network by ``wrap``(network): compiled, in half precision, as a CUDA graph."""
        self.network = wrap(self.network)
