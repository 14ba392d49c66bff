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

from anisodiff.estimation import measure
from anisodiff.models.base import Model
from anisodiff.models.conditional import ConditionalModel, measure_conditional
from anisodiff.models.deblurring import DeblurringModel
from anisodiff.models.scaled_noise import ScaledNoiseModel
from anisodiff.models.score import Reverse, ScoreModel, Weighting
from anisodiff.models.song_network import VENetwork
from anisodiff.models.time_density import Times
from anisodiff.models.velocity import VelocityModel
from anisodiff.objectives import Deblurring, Objective, OfImage, Regression, ScaledNoise, Velocity, objective_for
from anisodiff.processes import Conditional, EdgePreserving, FlowMatching, HeatDissipation, Process
from anisodiff.statistics import Moments
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
    def measure(self, images: Tensor, *, seed: int, progress: Progress | None = None) -> Moments:
        """Tables of the process on ``images`` [N, C, H, W] in [0, 1]."""

    @abstractmethod
    def model(self, network: nn.Module, moments: Moments) -> Model:
        """The model around a network."""


@dataclass(frozen=True, kw_only=True)
class ScoreMatching(Method):
    """The score, preconditioned per frequency."""

    score: Objective
    weighting: Weighting
    gamma: float
    parametrisation: str
    times: Times
    reverse: Reverse
    colours: bool

    @property
    def objective(self) -> Objective:
        """States with the score's target."""
        return self.score

    @property
    def outputs(self) -> int:
        """The score, and the drift where it is not known and learned by itself."""
        return 2 if self.score.learns_drift and self.reverse == "split" else 1

    def measure(self, images: Tensor, *, seed: int, progress: Progress | None = None) -> Moments:
        """See `measuring.measure`."""
        return measure(self.score, images, seed=seed, colours=self.colours, progress=progress)

    def model(self, network: nn.Module, moments: Moments) -> ScoreModel:
        """Around a network of ours, or around one as published."""
        score = self.score
        model = ScoreModel(
            network, score.equation, moments, drift=score.learns_drift, weighting=self.weighting, gamma=self.gamma,
            scalar=self.parametrisation == "scalar", times=self.times, reverse=self.reverse,
            plain_noise=score.plain_noise,
        )  # fmt: skip
        if self.parametrisation == "ve":
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

    def measure(self, images: Tensor, *, seed: int, progress: Progress | None = None) -> Moments:
        """Exact for the images; no seed is needed."""
        return measure_conditional(self.process, images, progress)

    def model(self, network: nn.Module, moments: Moments) -> ConditionalModel[Any]:
        """The network as it is."""
        return self.kind(network, self.process, moments)


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
        if config.colours and config.parametrisation == "ve":
            raise ValueError(
                "colours: the network of parametrisation=ve sees images as they are; set colours=false, "
                "or another parametrisation"
            )
        score = objective_for(process, config.objective)
        if config.reverse != "split" and not score.learns_drift:
            raise ValueError(f"reverse: got {config.reverse!r}, but the drift is known; leave it at 'split'")
        if config.reverse == "score" and score.plain_noise:
            raise ValueError("reverse: got 'score', but only a model can know the drift of step=signal; take 'joint'")
        if config.reverse == "joint" and config.parametrisation == "scalar":
            raise ValueError("reverse: got 'joint', but scalar coefficients are for two outputs; take 'split'")
        return ScoreMatching(
            score=score, weighting=config.weighting, gamma=config.gamma, parametrisation=config.parametrisation,
            times=config.times, reverse=config.reverse, colours=config.colours,
        )  # fmt: skip
    usual = {"objective": "auto", "parametrisation": "residual", "reverse": "split", "colours": False}
    for name, own in usual.items():
        if getattr(config, name) != own:
            raise ValueError(
                f"{name}: {process.word} has its own, got {getattr(config, name)!r}; leave it at {own!r}"
            )
    draws, kind = _BASELINES[type(process)]
    return Baseline(process=process, draws=draws(process), kind=kind)
