"""Where sampling starts: the law of U_T.

    gaussian      N(mean, covariance) fitted once to simulated terminal states: needs no image when sampling
    simulate      U_T from a data image: the forward process itself, so each draw knows something of its image
    conditional   N(g_k û_0, R_k) per DCT mode given a data image: what `simulate` draws from when the process is
                  linear, its best Gaussian approximation with a linear mean when it is not

A draw depends on its sample's own key, whatever else is in the batch.
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
from anisodiff.tensors import precise, wide, widened

_AT_ONCE = 64  # images that are encoded
Pixels = Tensor | NDArray[np.uint8]
"""[N, C, H, W]: float in [0, 1], or bytes (a memory map will do)."""


@dataclass(frozen=True)
class Encoded:
    """Images as states of a latent space, each encoded when it is taken."""

    images: Pixels
    encode: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.images)


Images = Pixels | Encoded


def take(images: Images, index: Tensor) -> Tensor:
    """The images at ``index`` [B], float [B, C, H, W], where the index lives."""
    if isinstance(images, Encoded):
        parts = torch.split(index, _AT_ONCE)
        return torch.cat([images.encode(take(images.images, part)) for part in parts]).to(index.device)
    if isinstance(images, Tensor):
        return images[index.to(images.device)].to(index.device)
    return torch.from_numpy(np.array(images[index.cpu().numpy()])).to(index.device).float() / 255


def normal_density(xi: Tensor, log_determinant: Tensor | float) -> Tensor:
    """ln of the density of m + C^{1/2} ξ, from ``xi`` [B, …] and ln det C (a number, or [B]), float64 [B]."""
    xi = widened(xi).flatten(1)
    return -0.5 * (xi.square().sum(1) + log_determinant + xi.shape[1] * math.log(2 * math.pi))


class Simulates(Protocol):
    """A forward process, as far as a prior needs it."""

    @property
    def T(self) -> float: ...
    def draw(self, x0: Tensor, t: float, rng: Randomness) -> Tensor: ...


class Prior(ABC):
    """The law that the reverse process starts from."""

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
        """``count`` terminal states [count, C, H, W]."""
        return self.colored(white(self.mean.expand(count, *self.mean.shape), source))

    def colored(self, xi: Tensor) -> Tensor:
        """The states [B, C, H, W] of white vectors ``xi`` [B, C, H, W]."""
        return idct2(self.mean + torch.einsum("hwcd,bdhw->bchw", self.root, xi))

    def whitened(self, u: Tensor) -> Tensor:
        """The inverse of `colored`, in double precision."""
        inverse = torch.linalg.inv(widened(self.root))
        return torch.einsum("hwcd,bdhw->bchw", inverse, dct2(widened(u)) - widened(self.mean))

    def log_density(self, u: Tensor) -> Tensor:
        """ln N(u; mean, covariance) of states [B, C, H, W], float64 [B]."""
        root = widened(self.root)
        return normal_density(self.whitened(u), 2 * root.diagonal(dim1=-2, dim2=-1).log().sum())


def fit_gaussian(states: Tensor, low: int = 8) -> GaussianPrior:
    """The prior of simulated terminal states [N, C, H, W]."""
    modes = dct2(precise(states))
    count, channels = modes.shape[:2]
    mean = torch.zeros_like(modes[0])
    mean[:, :low, :low] = modes[:, :, :low, :low].mean(0)
    centered = modes - mean
    power = centered.square().mean((0, 1))
    covariance = power[:, :, None, None] * torch.eye(channels, dtype=torch.float64, device=modes.device)
    lows = centered[:, :, :low, :low]
    covariance[:low, :low] = torch.einsum("bchw,bdhw->hwcd", lows, lows) / count
    # of few states it is singular up to rounding: what is added follows its size
    ridge = 1e-12 * (1 + covariance.diagonal(dim1=-2, dim2=-1).mean(-1))[..., None, None]
    root = torch.linalg.cholesky(covariance + ridge * torch.eye(channels, dtype=torch.float64, device=modes.device))
    return GaussianPrior(mean.float().to(states.device), root.float().to(states.device))


def choose(images: Images, count: int, source: Randomness) -> Tensor:
    """One of the images for every sample, uniformly, float [count, C, H, W] in [0, 1] where the randomness lives."""
    if isinstance(source, KeyedNoise):
        where, uniform = source.keys.device, source.uniform()
    else:
        where = torch.device("cpu") if source is None else source.device
        uniform = torch.rand(count, dtype=wide(where), generator=source, device=where)
    index = (uniform * len(images)).long().clamp(max=len(images) - 1).to(where)
    return take(images, index)


@dataclass(frozen=True)
class SimulatedPrior(Prior):
    """U_T given U_0, with U_0 drawn uniformly from ``images``."""

    process: Simulates
    images: Images

    def draw(self, count: int, source: Randomness) -> Tensor:
        """The forward process run to its end, [count, C, H, W]."""
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
    """μ_0 [C], a level per channel."""
    after: Tensor
    """μ_T [C]."""

    def draw(self, count: int, source: Randomness) -> Tensor:
        """``count`` terminal states [count, C, H, W]."""
        x0 = choose(self.images, count, source).to(self.gain.dtype)
        mode = self.gain * dct2(x0 - self.before[:, None, None])
        mode = mode + self.variance.sqrt() * white(x0, source)  # white in every orthonormal basis
        return idct2(mode) + self.after[:, None, None]
