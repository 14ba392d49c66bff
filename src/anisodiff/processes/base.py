"""What a forward process is: a law of states u_t given an image u_0 for times 0 … T, and what is learned from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from anisodiff import estimation
from anisodiff.equation import Equation
from anisodiff.estimation import EstimationSettings
from anisodiff.integrators.tamed_euler import TamedEuler
from anisodiff.noise import KeyedNoise, Randomness, combine
from anisodiff.priors import GaussianPrior, fit_gaussian
from anisodiff.statistics import SpectralStatistics

LONGEST = 1.8
"""Longest correlation of the noise, in pixels: the finest modes then have e^{−4ℓ²} = 2e-6 of the coarsest's noise."""


@dataclass(frozen=True)
class TrainingPair:
    """States with their regression targets, [B, C, H, W] each."""

    state: Tensor
    """u_t."""
    target: Tensor
    """E[target | state] is what the network learns: the score, a velocity, the noise, …"""
    drift: Tensor | None = None
    """E[drift | state] is the drift of the process; None where the drift is known."""


class Process(ABC):
    """Contract of every forward process. States are [B, C, H, W]; time runs from 0 (data) to T (noise)."""

    @property
    @abstractmethod
    def T(self) -> float: ...

    @abstractmethod
    def simulate(self, x0: Tensor, t: Tensor | float, rng: Randomness = None) -> Tensor:
        """A draw of U_t given U_0 = ``x0``; ``t`` is one time, or one per sample [B]."""

    @abstractmethod
    def trajectory(self, x0: Tensor, times: Sequence[float], rng: Randomness = None) -> list[Tensor]:
        """One path from ``x0`` at increasing ``times``: a state [B, C, H, W] for each."""

    @abstractmethod
    def training_pair(self, x0: Tensor, t: Tensor, rng: Randomness = None) -> TrainingPair:
        """Draws of U_t, t ∈ (0, T] (float64 [B]), from images ``x0``, and what the network regresses on."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything that fixes the law, as plain values: equal identities mean equal laws."""

    @staticmethod
    def sized(size: int) -> dict[str, Any]:
        """Keys that follow the image's longer side ``size`` in pixels."""
        return {}

    @property
    def capabilities(self) -> frozenset[str]:
        """What a sampler may rely on, see `samplers.base.CAPABILITIES`."""
        return frozenset()

    @property
    def learns_drift(self) -> bool:
        """Whether the drift is unknown given the state, so that pairs have a drift to regress on."""
        return False

    def snap_to_grid(self, t: Tensor) -> Tensor:
        """The training times nearest to ``t`` that the process has states at; any, by default."""
        return t

    def estimate_statistics(
        self,
        images: Tensor,
        *,
        seed: int = 0,
        channel_pca: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> SpectralStatistics:
        """Signal and noise power per frequency and time on ``images`` [N, C, H, W] in [0, 1].

        ``channel_pca``: in decorrelated channels. ``progress`` is called with (done, total).
        """
        return self._estimate(images, EstimationSettings(seed=seed, channel_pca=channel_pca, progress=progress))

    def _estimate(self, images: Tensor, settings: EstimationSettings) -> SpectralStatistics:
        """By default from two independent simulations of every image."""
        return estimation.by_simulation(self, images, settings)

    def prior(self, images: Tensor) -> GaussianPrior:
        """The law of U_T without its image, N(mean, covariance): fitted to one state for each of ``images``."""
        keys = combine(0x9121, torch.arange(len(images), device=images.device))
        pairs = zip(torch.split(images, 256), torch.split(keys, 256))
        return fit_gaussian(torch.cat([self.simulate(part, self.T, KeyedNoise(key)) for part, key in pairs]))

    def compiled(self) -> "Process":
        """The same law with compiled time steps, where it has any."""
        return self


class EquationProcess(Process):
    """A process that solves the SPDE: its score is learned, and its drift too where the state does not fix it."""

    equation: Equation
    stencil: str = "flux"

    @property
    def T(self) -> float:
        return self.equation.T

    @property
    def taming(self) -> TamedEuler | None:
        """The time step, where it tames its drift."""
        return None

    @property
    def plain_noise(self) -> bool:
        """Whether the drift moves the image alone: the noise is added to what it makes of the image."""
        return False

    @property
    def capabilities(self) -> frozenset[str]:
        found = {
            "equation": True,
            "isotropic_noise": self.equation.additive,
            "white_noise": self.equation.correlation_length == 0,
            "no_drift": not self.equation.smooths,
            "plain_noise": self.plain_noise,
        }
        return frozenset(name for name, there in found.items() if there)

    def check_learnable(self) -> None:
        """A score exists only where there is noise in every mode."""
        length = self.equation.correlation_length
        if not self.equation.noisy:
            raise ValueError("a score needs noise: set intensity > 0")
        if length > LONGEST:
            raise ValueError(
                f"correlation_length = {length:g} leaves the finest modes no noise to learn a score from; "
                f"expected at most {LONGEST:g}"
            )


def check_increasing(times: Sequence[float]) -> None:
    """Trajectories go forward in time."""
    if any(b < a for a, b in pairwise(times)):
        raise ValueError(f"times of a trajectory must not decrease, got {list(times)}")
