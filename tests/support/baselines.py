"""Gaussian images under the baselines, with networks that are exact: what a trained one would converge to."""

from collections.abc import Callable

import torch
from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.models.conditional import ConditionalModel
from anisodiff.models.deblurring import DeblurringModel
from anisodiff.models.scaled_noise import ScaledNoiseModel
from anisodiff.models.velocity import VelocityModel
from anisodiff.processes import ConditionalGaussian, FlowMatching, HeatDissipation, ScaledGaussian
from anisodiff.registry import model_of
from tests.support.oracles import F64, gaussian_images, spectrum


class PerMode(torch.nn.Module):
    """A network that multiplies every DCT mode about ``center`` by gain(t) [B, H, W], and adds shift(t)."""

    def __init__(self, gain: Callable[[Tensor], Tensor], center: float) -> None:
        super().__init__()
        self.gain, self.center, self.calls = gain, center, 0

    def forward(self, z: Tensor, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        self.calls += 1
        return idct2(self.gain(t.to(F64))[:, None] * dct2(z - self.center))


def flow_gain(process: FlowMatching, power: Tensor) -> Callable[[Tensor], Tensor]:
    """E[dẐ/dt | Ẑ]/Ẑ for images with ``power`` about ½: ((1 − σmin)a − (1 − t)·4D)/((1 − t)²·4D + a²)."""

    def gain(t: Tensor) -> Tensor:
        t = t[:, None, None]
        a = t + process.sigma_min * (1 - t)
        kept = 4 * power * (1 - t)
        return ((1 - process.sigma_min) * a - kept) / (kept * (1 - t) + a**2)

    return gain


def deblurring_gain(process: HeatDissipation, power: Tensor) -> Callable[[Tensor], Tensor]:
    """E[B_{k−1}x̂ | Û_k]/Û_k − 1 = B_{k−1}B_k D/(B_k² D + σ²) − 1."""

    def gain(t: Tensor) -> Tensor:
        like = torch.zeros(len(t), 1, *power.shape, dtype=F64)
        now, below = (process.decay(x, like)[:, 0] for x in (t, (t - 1 / process.levels).clamp(min=0)))
        return now * below * power / (now**2 * power + process.noise**2) - 1

    return gain


def noise_gain(process: ScaledGaussian, power: Tensor) -> Callable[[Tensor], Tensor]:
    """Where the spread s does not depend on the image: E[s ξ̂ | Ẑ]/Ẑ = s²/(ᾱ·4D + s²)."""

    def gain(t: Tensor) -> Tensor:
        noise = process.signed_spread(torch.zeros(len(t), 1, *power.shape, dtype=F64), t)[:, 0].square()
        return noise / (process.signal_power(t)[:, None, None] * 4 * power + noise)

    return gain


GAINS = {VelocityModel: flow_gain, DeblurringModel: deblurring_gain, ScaledNoiseModel: noise_gain}
"""The exact network of every model, per mode of the state about the center of its coordinates."""


def exact_model(process: ConditionalGaussian, size: int) -> ConditionalModel:
    """The model of Gaussian images N(½, spectrum) of size×size, one channel."""
    kind = model_of(process.name)
    statistics = process.estimate_statistics(gaussian_images(64, size))
    center = 0.5 if kind is DeblurringModel else 0.0
    return kind(PerMode(GAINS[kind](process, spectrum(size)), center), process, statistics).double()
