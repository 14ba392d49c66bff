"""Which method learns a process: what is drawn, what is measured before, which model learns it.

    process ──▶ Method = Regression (draws) + tables + Model

Processes of the general equation are learned by their score. Each baseline has its own draws and its own model; the
table below is the one place that brings them together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from anisodiff.estimation import estimate_statistics
from anisodiff.models.base import Model
from anisodiff.models.conditional import ConditionalModel, estimate_conditional_statistics
from anisodiff.models.deblurring import DeblurringModel
from anisodiff.models.scaled_noise import ScaledNoiseModel
from anisodiff.models.score import Learns, ScoreModel, Weighting
from anisodiff.models.song_network import VENetwork
from anisodiff.models.time_density import Times
from anisodiff.models.velocity import VelocityModel
from anisodiff.objectives import Deblurring, Objective, OfImage, Regression, ScaledNoise, Velocity, objective_for
from anisodiff.processes import Conditional, EdgePreserving, FlowMatching, HeatDissipation, Process
from anisodiff.statistics import SpectralStatistics
from anisodiff.training.config import TrainConfig

Progress = Callable[[int, int], None]


class Method(ABC):
    """How a process is learned."""

    @property
    @abstractmethod
    def objective(self) -> Regression:
        """The draws."""

    @property
    def outputs(self) -> int:
        """What the network gives for every channel of an image."""
        return 1

    @abstractmethod
    def estimate_statistics(
        self, images: Tensor, *, seed: int, progress: Progress | None = None
    ) -> SpectralStatistics:
        """Tables of the process on ``images`` [N, C, H, W] in [0, 1]."""

    @abstractmethod
    def model(self, network: nn.Module, statistics: SpectralStatistics) -> Model:
        """The model around a network."""


@dataclass(frozen=True, kw_only=True)
class ScoreMatching(Method):
    """The score, preconditioned per frequency."""

    score: Objective
    weighting: Weighting
    gamma: float
    parameterization: str
    times: Times
    learns: Learns
    channel_pca: bool

    @property
    def objective(self) -> Objective:
        """States with the score's target."""
        return self.score

    @property
    def outputs(self) -> int:
        """The score, and the drift where it is not known and learned by itself."""
        return 2 if self.score.learns_drift and self.learns == "score_and_drift" else 1

    def estimate_statistics(
        self, images: Tensor, *, seed: int, progress: Progress | None = None
    ) -> SpectralStatistics:
        """See `measuring.measure`."""
        return estimate_statistics(self.score, images, seed=seed, channel_pca=self.channel_pca, progress=progress)

    def model(self, network: nn.Module, statistics: SpectralStatistics) -> ScoreModel:
        """Around a network of ours, or around one as published."""
        score = self.score
        model = ScoreModel(
            network, score.equation, statistics, drift=score.learns_drift, weighting=self.weighting, gamma=self.gamma,
            scalar=self.parameterization == "scalar", times=self.times, learns=self.learns,
            plain_noise=score.plain_noise,
        )  # fmt: skip
        if self.parameterization == "ve":
            model.network = VENetwork(network, model)
        return model


@dataclass(frozen=True, kw_only=True)
class Baseline(Method):
    """What a baseline's paper regresses on."""

    process: Conditional
    draws: OfImage[Any]
    kind: type[ConditionalModel[Any]]

    @property
    def objective(self) -> Regression:
        """States with the method's own target."""
        return self.draws

    def estimate_statistics(
        self, images: Tensor, *, seed: int, progress: Progress | None = None
    ) -> SpectralStatistics:
        """Exact for the images; no seed is needed."""
        return estimate_conditional_statistics(self.process, images, progress)

    def model(self, network: nn.Module, statistics: SpectralStatistics) -> ConditionalModel[Any]:
        """The network as it is."""
        return self.kind(network, self.process, statistics)


_BASELINES: Mapping[type[Process], tuple[Callable[[Any], OfImage[Any]], type[ConditionalModel[Any]]]] = (
    MappingProxyType(
        {
            FlowMatching: (Velocity, VelocityModel),
            HeatDissipation: (Deblurring, DeblurringModel),
            EdgePreserving: (ScaledNoise, ScaledNoiseModel),
        }
    )
)


def method_for(process: Process, config: TrainConfig) -> Method:
    """The method for ``process``; settings that it does not have are refused."""
    if not isinstance(process, Conditional):
        if config.channel_pca and config.parameterization == "ve":
            raise ValueError(
                "channel_pca: the network of parameterization=ve sees images as they are; set channel_pca=false, "
                "or another parameterization"
            )
        score = objective_for(process, config.objective)
        if config.learns != "score_and_drift" and not score.learns_drift:
            raise ValueError(f"learns: got {config.learns!r}, but the drift is known; leave it at 'score_and_drift'")
        if config.learns == "score" and score.plain_noise:
            raise ValueError(
                "learns: got 'score', but only a model knows the drift of step=signal; take 'reverse_drift'"
            )
        if config.learns == "reverse_drift" and config.parameterization == "scalar":
            raise ValueError(
                "learns: got 'reverse_drift', but scalar coefficients need two outputs; set learns=score_and_drift"
            )
        return ScoreMatching(
            score=score, weighting=config.weighting, gamma=config.gamma, parameterization=config.parameterization,
            times=config.times, learns=config.learns, channel_pca=config.channel_pca,
        )  # fmt: skip
    usual = {"objective": "auto", "parameterization": "residual", "learns": "score_and_drift", "channel_pca": False}
    for name, own in usual.items():
        if getattr(config, name) != own:
            raise ValueError(
                f"{name}: {process.name} has its own, got {getattr(config, name)!r}; leave it at {own!r}"
            )
    draws, kind = _BASELINES[type(process)]
    return Baseline(process=process, draws=draws(process), kind=kind)
