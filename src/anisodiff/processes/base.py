"""The contract of a forward process: the distribution of U_t given an image U_0, 0 ≤ t ≤ T, and training pairs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from anisodiff import estimation
from anisodiff.cartoons import Filter
from anisodiff.equation import Equation
from anisodiff.estimation import EstimationSettings
from anisodiff.integrators.tamed_euler import TamedEuler
from anisodiff.noise import KeyedNoise, Randomness, Seed, combine, source_of
from anisodiff.priors import GaussianPrior, fit_gaussian
from anisodiff.statistics import SpectralStatistics
from anisodiff.tensors import check_images

LONGEST = 1.8
"""Largest correlation length in pixels: the finest modes then have e^{−4ℓ²} = 2e-6 of the noise of the coarsest."""
_ROUNDING = 1e-5
"""Allowed excess of values over their range, relative to the range: resizing and float32 overshoot."""


@dataclass(frozen=True)
class TrainingPair:
    """States with their regression targets, [B, C, H, W] each."""

    state: Tensor
    """u_t."""
    target: Tensor
    """The network learns E[target | state]: the score, a velocity, the noise, …"""
    drift: Tensor | None = None
    """E[drift | state] is the drift of the process; None if the drift is a known function of the state."""
    labels: Tensor | None = field(default=None, kw_only=True)
    """Classes of the images, int64 [B], some replaced by the null label; None without classes."""
    condition: Tensor | None = field(default=None, kw_only=True)
    """An image [B, C, H, W] as further input of the network; None without one."""


@dataclass(frozen=True)
class Units:
    """The range of the user's image values, mapped to [0, 1]; None: any values, unchanged."""

    scale: tuple[float, float] | None

    def __post_init__(self) -> None:
        if self.scale is None:
            return
        given = tuple(self.scale) if isinstance(self.scale, tuple | list) else ()
        if len(given) != 2 or not all(isinstance(x, int | float) for x in given) or not 0 < given[1] - given[0] < inf:
            raise ValueError(f"scale: got {self.scale!r}, expected (low, high) with low < high, or None")

    def read(self, x: Tensor) -> Tensor:
        """Images in [0, 1] from images in the user's range; a ValueError for values outside it."""
        if self.scale is None or not x.numel():
            return x
        (low, high), (least, most) = self.scale, (float(v) for v in torch.stack(x.aminmax()))
        slack = _ROUNDING * (high - low)
        if least < low - slack or most > high + slack:
            raise ValueError(
                f"images: got values from {least:.3g} to {most:.3g}, expected [{low:g}, {high:g}]; give their range "
                "with scale=(low, high), or scale=None to take any values"
            )
        return x if self._unit else (x - low) / (high - low)

    def back(self, u: Tensor) -> Tensor:
        """States in the user's units."""
        return u if self.scale is None or self._unit else self.scale[0] + (self.scale[1] - self.scale[0]) * u

    @property
    def _unit(self) -> bool:
        return self.scale is not None and tuple(self.scale) == (0, 1)


class Process(ABC):
    """A forward process. States are [B, C, H, W]; time runs from 0 (data) to T (noise).

    Subclasses implement `draw` and `path`; `simulate` and `trajectory` are the same with checks of the images.
    """

    own_prior: ClassVar[str] = "gaussian"
    """The prior of the published method: a name of `generation.priors`."""
    _size: "tuple[int, Callable[[int], Process]] | None" = None

    @property
    @abstractmethod
    def T(self) -> float: ...

    def simulate(
        self, x0: Tensor, t: Tensor | float, rng: Seed = None, *, scale: tuple[float, float] | None = (0.0, 1.0)
    ) -> Tensor:
        """States U_t, [B, C, H, W], of images ``x0`` [B, C, H, W]; ``t`` is one time, or one per sample [B].

        ``rng``: a seed, a `torch.Generator` or a `KeyedNoise`. ``scale``: the range of the image values and of the
        returned states; None: any values, unchanged. A ValueError for values outside the range, and for images of
        another size than the parameters are for.
        """
        units = Units(scale)
        return units.back(self.draw(units.read(self._check_size(x0)), t, source_of(rng)))

    def trajectory(
        self, x0: Tensor, times: Sequence[float], rng: Seed = None, *,
        scale: tuple[float, float] | None = (0.0, 1.0),
    ) -> list[Tensor]:  # fmt: skip
        """One path of every image at increasing ``times``: a state [B, C, H, W] for each time; else as `simulate`."""
        units = Units(scale)
        return [units.back(u) for u in self.path(units.read(self._check_size(x0)), times, source_of(rng))]

    @abstractmethod
    def draw(self, x0: Tensor, t: Tensor | float, rng: Randomness = None) -> Tensor:
        """A draw of U_t given U_0 = ``x0``; ``t`` is one time, or one per sample [B]."""

    @abstractmethod
    def path(self, x0: Tensor, times: Sequence[float], rng: Randomness = None) -> list[Tensor]:
        """One path from ``x0`` at increasing ``times``: a state [B, C, H, W] for each time."""

    @abstractmethod
    def training_pair(self, x0: Tensor, t: Tensor, rng: Randomness = None) -> TrainingPair:
        """Draws of U_t, t ∈ (0, T] (float64 [B]), of images ``x0``, with their regression targets."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All parameters, as plain values: processes with equal identities have equal distributions."""

    def made_for(self, size: int, at: "Callable[[int], Process]") -> Self:
        """A copy for images of the longer side ``size``; ``at`` builds the process for another size."""
        result = copy(self)
        object.__setattr__(result, "_size", (size, at))  # not a field: it is not part of the identity
        return result

    def _check_size(self, x0: Tensor) -> Tensor:
        """``x0``; a ValueError if the process has other parameters at its size."""
        height, width = check_images(x0).shape[-2:]
        size, at = self._size or (0, None)
        side = max(height, width)
        if at is not None and side != size and at(side).identity() != self.identity():
            raise ValueError(
                f"images: got {height}×{width}, but the parameters of this process are for a longer side of {size} "
                f"pixels; make it with size={side}"
            )
        return x0

    @staticmethod
    def sized(size: int) -> dict[str, Any]:
        """Default parameters that depend on the longer side ``size`` of the image in pixels."""
        return {}

    @property
    def capabilities(self) -> frozenset[str]:
        """Properties that samplers require: names of `samplers.base.CAPABILITIES`."""
        return frozenset()

    @property
    def conditional(self) -> bool:
        """Whether training pairs have a condition: a filtered image as further input of the network."""
        return False

    @property
    def smoothing_end(self) -> float | None:
        """The time after which the drift is 0; None if there is none."""
        return None

    def after_smoothing(self, smoothed: Tensor, t: float, rng: Randomness = None) -> Tensor:
        """A draw of U_t, t ≥ `smoothing_end`, given its noise-free part ``smoothed``."""
        raise ValueError("the distribution of a state after the smoothing is not known for this process")

    @property
    def learns_drift(self) -> bool:
        """Whether the drift is not a function of the state, so that training pairs have one as a second target."""
        return False

    @property
    def path_obstacle(self) -> str:
        """Why the bound of `path_bound` does not exist for this process; empty if it does.

        It needs a known kernel from the image to t, whose score is then the target of a training pair.
        """
        return "the distribution of a path given its image is not known"

    def draw_with_density(self, x0: Tensor, t: float, rng: Randomness = None) -> tuple[Tensor, Tensor]:
        """A draw of U_t given U_0 = ``x0``, t > 0, and ln of its density, float64 [B]; if no `path_obstacle`."""
        raise ValueError(f"no density of a state: {self.path_obstacle}")

    def snap_to_grid(self, t: Tensor) -> Tensor:
        """The training times nearest to ``t``; by default all times are."""
        return t

    def estimate_statistics(
        self,
        images: Tensor,
        *,
        seed: int = 0,
        channel_pca: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> SpectralStatistics:
        """Signal and noise power per frequency and time on ``images`` [N, C, H, W] in [0, 1] (`statistics`).

        ``channel_pca``: in the principal axes of the channels. ``progress`` is called with (done, total).
        """
        return self._estimate(images, EstimationSettings(seed=seed, channel_pca=channel_pca, progress=progress))

    def _estimate(self, images: Tensor, settings: EstimationSettings) -> SpectralStatistics:
        """By default from two independent simulations of every image."""
        return estimation.by_simulation(self, images, settings)

    def prior(self, images: Tensor) -> GaussianPrior:
        """The Gaussian prior, fitted to one terminal state of each of ``images``."""
        keys = combine(0x9121, torch.arange(len(images), device=images.device))
        pairs = zip(torch.split(images, 256), torch.split(keys, 256))
        return fit_gaussian(torch.cat([self.draw(part, self.T, KeyedNoise(key)) for part, key in pairs]))

    def compiled(self) -> "Process":
        """The same process with compiled time steps, if it has any."""
        return self


class EquationProcess(Process):
    """A process that solves the SPDE (`Equation`)."""

    equation: Equation
    stencil: str = "flux"
    condition: Filter | None = None
    """The filter that makes the condition of an image."""

    @property
    def conditional(self) -> bool:
        return self.condition is not None

    def condition_of(self, x0: Tensor) -> Tensor | None:
        """The condition of images ``x0`` [B, C, H, W], of the same shape; None without one."""
        return None if self.condition is None else self.condition(x0)

    @property
    def smoothing_end(self) -> float | None:
        return self.equation.smoothing_end

    def after_smoothing(self, smoothed: Tensor, t: float, rng: Randomness = None) -> Tensor:
        end = self.smoothing_end
        if end is None or not self._noise_known:
            return super().after_smoothing(smoothed, t, rng)
        if not end <= t <= self.T:
            raise ValueError(f"t: got {t:g}, expected [{end:g}, {self.T:g}], where nothing is smoothed")
        return smoothed + self._noise_at(smoothed, t, rng)

    @property
    def _noise_known(self) -> bool:
        """Whether the distribution of the noise in U_t does not depend on the image."""
        return False

    def _noise_at(self, like: Tensor, t: float, rng: Randomness) -> Tensor:
        """A draw of the noise in U_t, if `_noise_known`."""
        raise NotImplementedError

    @property
    def T(self) -> float:
        return self.equation.T

    @property
    def taming(self) -> TamedEuler | None:
        """The time step if it is `TamedEuler`, else None."""
        return None

    @property
    def plain_noise(self) -> bool:
        """Whether the drift acts on the image alone, not on the noise."""
        return False

    @property
    def capabilities(self) -> frozenset[str]:
        properties = {
            "equation": True,
            "isotropic_noise": self.equation.additive,
            "white_noise": self.equation.correlation_length == 0,
            "no_drift": not self.equation.smooths,
            "plain_noise": self.plain_noise,
        }
        return frozenset(name for name, holds in properties.items() if holds)

    def check_learnable(self) -> None:
        """Raise a ValueError if there is no score: every mode needs noise."""
        length = self.equation.correlation_length
        if not self.equation.noisy:
            raise ValueError("a score needs noise: set intensity > 0")
        if length > LONGEST:
            raise ValueError(
                f"correlation_length = {length:g} leaves the finest modes no noise to learn a score from; "
                f"expected at most {LONGEST:g}"
            )


def check_increasing(times: Sequence[float]) -> None:
    """Raise a ValueError if ``times`` decrease."""
    if any(b < a for a, b in pairwise(times)):
        raise ValueError(f"times of a trajectory must not decrease, got {list(times)}")
