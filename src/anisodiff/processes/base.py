"""What a forward process is: a law of states u_t given an image u_0, for times 0 … T."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from anisodiff.noise import KeyedNoise, Randomness, combine
from anisodiff.priors import GaussianPrior, fit_gaussian


class Process(ABC):
    """Contract of every forward process. States are [B, C, H, W]; time runs from 0 (data) to T (noise)."""

    @property
    @abstractmethod
    def T(self) -> float:
        """The horizon."""

    @abstractmethod
    def simulate(self, x0: Tensor, t: Tensor | float, generator: Randomness = None) -> Tensor:
        """A draw of U_t given U_0 = ``x0``; ``t`` is one time, or one per sample [B]."""

    @abstractmethod
    def trajectory(self, x0: Tensor, times: Sequence[float], generator: Randomness = None) -> list[Tensor]:
        """One path from ``x0`` looked at at increasing ``times``: a state [B, C, H, W] for each."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything that fixes the law, as plain values: equal identities mean equal laws."""

    def prior(self, images: Tensor) -> GaussianPrior:
        """The law of U_T without its image, N(mean, covariance): fitted to one state for each of ``images``."""
        keys = combine(0x9121, torch.arange(len(images), device=images.device))
        pairs = zip(torch.split(images, 256), torch.split(keys, 256))
        return fit_gaussian(torch.cat([self.simulate(part, self.T, KeyedNoise(key)) for part, key in pairs]))


def check_increasing(times: Sequence[float]) -> None:
    """Trajectories go forward in time."""
    if any(b < a for a, b in pairwise(times)):
        raise ValueError(f"times of a trajectory must not decrease, got {list(times)}")
