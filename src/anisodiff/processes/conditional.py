"""Processes that are Gaussian given the image, the base of the baselines:

    U_t = m_t(x0) + s_t(x0)·ξ,      ξ white,  m_t linear in x0 about ½,  s_t ≥ 0 a number or one per pixel

Time runs from 0 (data) to T = 1 (noise). States are in the units of images, [0, 1]; the noise of a method published
for v = 2u − 1 in [−1, 1] is halved here.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from anisodiff import estimation, notation
from anisodiff.dct import dct2, dct_matrix
from anisodiff.estimation import EstimationSettings
from anisodiff.noise import Randomness, white
from anisodiff.processes.base import Process, TrainingPair, check_increasing
from anisodiff.statistics import SpectralStatistics
from anisodiff.stencils.gradient import per_sample
from anisodiff.tensors import check_images, check_state, check_times, to_device_async, to_float64


@dataclass(frozen=True, kw_only=True)
class ConditionalGaussian(Process):
    """A process that is Gaussian given the image; subclasses are frozen dataclasses of their parameters."""

    name: ClassVar[str]

    @property
    def T(self) -> float:
        return 1.0

    @abstractmethod
    def mean(self, x0: Tensor, t: Tensor) -> Tensor:
        """m_t(x0), [B, C, H, W]; ``t`` float64 [B]."""

    @abstractmethod
    def spread(self, x0: Tensor, t: Tensor) -> Tensor:
        """s_t(x0) ≥ 0, broadcast over [B, C, H, W]; ``t`` float64 [B]."""

    @abstractmethod
    def continued(self, x0: Tensor, u: Tensor, s: Tensor, t: Tensor, rng: Randomness) -> Tensor:
        """A draw of U_t given U_s = ``u`` and the image, s < t (both float64 [B])."""

    def target(self, x0: Tensor, t: Tensor, xi: Tensor, state: Tensor) -> Tensor:
        """The regression target, [B, C, H, W]; by default the added noise s_t(x0)·ξ."""
        return self.spread(x0, t) * xi

    def draw(self, x0: Tensor, t: Tensor | float, rng: Randomness = None) -> Tensor:
        when = self.times(check_images(x0), t)
        return self.mean(x0, when) + self.spread(x0, when) * white(x0, rng)

    def path(self, x0: Tensor, times: Sequence[float], rng: Randomness = None) -> list[Tensor]:
        check_increasing(times)
        states, u, s = list[Tensor](), check_images(x0), self.times(x0, 0.0)
        for value in times:
            t = self.times(x0, value)
            if value > float(s[0] if len(s) else 0.0):
                u, s = self.continued(x0, u, s, t, rng), t
            states.append(u)
        return states

    def training_pair(self, x0: Tensor, t: Tensor, rng: Randomness = None) -> TrainingPair:
        t, xi = to_device_async(t, x0.device), white(x0, rng)
        state = self.mean(x0, t) + self.spread(x0, t) * xi
        return TrainingPair(state, self.target(x0, t, xi, state))

    def times(self, x0: Tensor, t: Tensor | float) -> Tensor:
        """``t`` as float64 [B]; a ValueError outside [0, 1]."""
        return check_times(t, self.T, len(check_state(x0)), x0.device)

    def powers(self, images: Tensor, t: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """S_k and N_k [H, W] at time ``t`` [1], float64: signal and noise power per DCT mode.

        Exact means over ``images`` [N, C, H, W], without simulation. S is about m_t of ``level`` [C], the channel
        means.
        """
        x0 = to_float64(images)
        when = t.to(x0)
        center = self.mean(level.to(x0)[None, :, None, None].expand(1, *x0.shape[1:]), when)
        signal = dct2(self.mean(x0, when.expand(len(x0))) - center).square().mean((0, 1))
        pixels = self.spread(x0, when.expand(len(x0))).square().expand(x0.shape).mean((0, 1))
        rows, columns = (dct_matrix(n, x0.dtype, x0.device).square() for n in x0.shape[-2:])
        return signal, rows @ pixels @ columns.mT

    def _estimate(self, images: Tensor, settings: EstimationSettings) -> SpectralStatistics:
        return estimation.from_powers(self.powers, self.T, images, settings)

    def identity(self) -> dict[str, Any]:
        return {"kind": self.name} | {f.name: getattr(self, f.name) for f in fields(self)}


class ScaledGaussian(ConditionalGaussian):
    """m_t(x0) = ½ + a_t·(x0 − ½): the image is scaled (DDPM, flow matching, …)."""

    @abstractmethod
    def signal_power(self, t: Tensor) -> Tensor:
        """a_t² (ᾱ_t of DDPM) at times ``t`` [B]."""

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset({"scaled_signal"})

    def mean(self, x0: Tensor, t: Tensor) -> Tensor:
        return 0.5 + per_sample(self.signal_power(t).sqrt(), x0) * (x0 - 0.5)

    def signed_spread(self, image: Tensor, t: Tensor) -> Tensor:
        """s_t in the units of images in [−1, 1], given such an ``image`` [B, C, H, W]."""
        return 2 * self.spread(0.5 * (image + 1), t)


def check_numbers(
    process: ConditionalGaussian,
    ranges: Mapping[str, tuple[float, float]],
    whole: tuple[str, ...] = (),
) -> None:
    """Convert the fields of ``process`` to numbers; a ValueError for one outside its range."""
    for name, (low, high) in ranges.items():
        notation.check_number(process, name, low, high, whole=name in whole, what=f"{process.name}: {name}")


def levels_of(t: Tensor, levels: int) -> Tensor:
    """Times [B] rounded up to k/levels, k = 1 … levels."""
    return (torch.ceil(t * levels - 1e-6).clamp(1, levels)) / levels
