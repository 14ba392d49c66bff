"""Gaussian data whose scores under linear processes are known exactly, and the network that adds nothing to them."""

import torch
from torch import Tensor

from anisodiff.dct import frequencies, idct2
from anisodiff.noise import combine

F64 = torch.float64


def at(*t: float) -> Tensor:
    return torch.tensor(t, dtype=F64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slope(levels: list[int], errors: list[float]) -> float:
    """Least-squares slope of log error against log step size: the order."""
    x, y = -at(*levels).log(), at(*errors).log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def spectrum(size: int) -> Tensor:
    """Power per DCT mode of the data, [size, size]: most of it in low frequencies, as in photographs."""
    z = frequencies(size, size, F64, torch.device("cpu"))
    return 0.02 / (0.1 + z) ** 2


def gaussian_images(count: int, size: int, channels: int = 1, seed: int = 0) -> Tensor:
    """Images N(½, spectrum), float64 [count, channels, size, size]."""
    g = torch.Generator().manual_seed(seed)
    modes = torch.randn(count, channels, size, size, dtype=F64, generator=g) * spectrum(size).sqrt()
    return 0.5 + idct2(modes)


class Nothing(torch.nn.Module):
    """A network that knows no more than the Wiener filter, for all that a score model asks: [B,2C,H,W]."""

    def forward(self, x: Tensor, c: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        return torch.zeros_like(x).repeat(1, 2, 1, 1)


def keys(count: int, seed: int = 0) -> Tensor:
    """One key a sample, int64 [count]."""
    return combine(seed, torch.arange(count))
