"""Priors: distributions of U_T from which the reverse process starts (paper, Sec. 3.3).

    gaussian      N(mean, covariance) fitted to simulated terminal states; sampling needs no image
    simulate      U_T of a data image by the forward process, so a draw depends on that image
    conditional   N(g_k û_0, R_k) per DCT mode given a data image: the distribution of `simulate` for a linear
                  process, else its best Gaussian approximation with a linear mean

A draw depends on the key of its sample, not on the rest of the batch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.noise import KeyedNoise, Randomness, white
from anisodiff.tensors import highest_precision, to_float64, to_highest_precision

_AT_ONCE = 64  # batch size of the encoder
Pixels = Tensor | NDArray[np.uint8]
"""[N, C, H, W]: float in [0, 1], or bytes (also memory-mapped)."""


@dataclass(frozen=True)
class Encoded:
    """Images in latent space, encoded on access."""

    images: Pixels
    encode: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.images)


Images = Pixels | Encoded


def take(images: Images, index: Tensor) -> Tensor:
    """The images at ``index`` [B], float [B, C, H, W], on the device of the index."""
    if isinstance(images, Encoded):
        parts = torch.split(index, _AT_ONCE)
        return torch.cat([images.encode(take(images.images, part)) for part in parts]).to(index.device)
    if isinstance(images, Tensor):
        return images[index.to(images.device)].to(index.device)
    return torch.from_numpy(np.array(images[index.cpu().numpy()])).to(index.device).float() / 255


def normal_density(xi: Tensor, log_determinant: Tensor | float) -> Tensor:
    """ln of the density of m + C^{1/2} ξ, from ``xi`` [B, …] and ln det C (a number, or [B]), float64 [B]."""
    xi = to_highest_precision(xi).flatten(1)
    return -0.5 * (xi.square().sum(1) + log_determinant + xi.shape[1] * math.log(2 * math.pi))


class Simulates(Protocol):
    """The part of a `Process` that is used here."""

    @property
    def T(self) -> float: ...
    def draw(self, x0: Tensor, t: float, rng: Randomness) -> Tensor: ...


class Prior(ABC):
    """The distribution that the reverse process starts from."""

    @abstractmethod
    def draw(self, count: int, source: Randomness) -> Tensor:
        """``count`` terminal states [count, C, H, W]."""


@dataclass(frozen=True)
class GaussianPrior(Prior):
    """N(mean, covariance), diagonal over DCT modes; across channels full for modes below ``low`` in both axes."""

    mean: Tensor
    """[C, H, W], in the DCT."""
    root: Tensor
    """[H, W, C, C], Cholesky factors of the covariance across channels."""

    def draw(self, count: int, source: Randomness) -> Tensor:
        return self.colored(white(self.mean.expand(count, *self.mean.shape), source))

    def colored(self, xi: Tensor) -> Tensor:
        """States mean + root·ξ for white ``xi``, [B, C, H, W] each."""
        return idct2(self.mean + torch.einsum("hwcd,bdhw->bchw", self.root, xi))

    def whitened(self, u: Tensor) -> Tensor:
        """The inverse of `colored`."""
        inverse = torch.linalg.inv(to_highest_precision(self.root))
        return torch.einsum(
            "hwcd,bdhw->bchw", inverse, dct2(to_highest_precision(u)) - to_highest_precision(self.mean)
        )

    def log_density(self, u: Tensor) -> Tensor:
        """ln N(u; mean, covariance) of states [B, C, H, W], float64 [B]."""
        root = to_highest_precision(self.root)
        return normal_density(self.whitened(u), 2 * root.diagonal(dim1=-2, dim2=-1).log().sum())


def fit_gaussian(states: Tensor, low: int = 8) -> GaussianPrior:
    """Fit to simulated terminal states [N, C, H, W]; the mean and channel covariances of modes below ``low`` only."""
    modes = dct2(to_float64(states))
    count, channels = modes.shape[:2]
    mean = torch.zeros_like(modes[0])
    mean[:, :low, :low] = modes[:, :, :low, :low].mean(0)
    centered = modes - mean
    power = centered.square().mean((0, 1))
    covariance = power[:, :, None, None] * torch.eye(channels, dtype=torch.float64, device=modes.device)
    lows = centered[:, :, :low, :low]
    covariance[:low, :low] = torch.einsum("bchw,bdhw->hwcd", lows, lows) / count
    # with few states the covariance is singular up to rounding
    ridge = 1e-12 * (1 + covariance.diagonal(dim1=-2, dim2=-1).mean(-1))[..., None, None]
    root = torch.linalg.cholesky(covariance + ridge * torch.eye(channels, dtype=torch.float64, device=modes.device))
    return GaussianPrior(mean.float().to(states.device), root.float().to(states.device))


def choose(images: Images, count: int, source: Randomness) -> Tensor:
    """Uniform draws of ``images``, float [count, C, H, W] in [0, 1], on the device of ``source``."""
    if isinstance(source, KeyedNoise):
        device, uniform = source.keys.device, source.uniform()
    else:
        device = torch.device("cpu") if source is None else source.device
        uniform = torch.rand(count, dtype=highest_precision(device), generator=source, device=device)
    index = (uniform * len(images)).long().clamp(max=len(images) - 1).to(device)
    return take(images, index)


@dataclass(frozen=True)
class SimulatedPrior(Prior):
    """U_T given U_0, with U_0 drawn uniformly from ``images``."""

    process: Simulates
    images: Images

    def draw(self, count: int, source: Randomness) -> Tensor:
        return self.process.draw(choose(self.images, count, source), self.process.T, source)


@dataclass(frozen=True)
class ConditionalPrior(Prior):
    """Û_T = μ_T + g·(Û_0 − μ_0) + √R ξ̂ per DCT mode, with U_0 drawn uniformly from ``images``."""

    images: Images
    gain: Tensor
    """g, [H, W]."""
    variance: Tensor
    """R, [H, W]."""
    before: Tensor
    """μ_0, channel means, [C]."""
    after: Tensor
    """μ_T [C]."""

    def draw(self, count: int, source: Randomness) -> Tensor:
        x0 = choose(self.images, count, source).to(self.gain.dtype)
        mode = self.gain * dct2(x0 - self.before[:, None, None])
        mode = mode + self.variance.sqrt() * white(x0, source)  # white in every orthonormal basis
        return idct2(mode) + self.after[:, None, None]
