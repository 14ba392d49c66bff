"""Gaussian data whose scores under linear processes are known exactly."""

import torch
from torch import Tensor

from anisodiff.transforms import frequencies, idct2

F64 = torch.float64


def spectrum(size: int) -> Tensor:
    """Power per DCT mode of the data, [size, size]: most of it in low frequencies, as in photographs."""
    z = frequencies(size, size, F64, torch.device("cpu"))
    return 0.02 / (0.1 + z) ** 2


def gaussian_images(count: int, size: int, channels: int = 1, seed: int = 0) -> Tensor:
    """Images N(½, spectrum), float64 [count, channels, size, size]."""
    g = torch.Generator().manual_seed(seed)
    modes = torch.randn(count, channels, size, size, dtype=F64, generator=g) * spectrum(size).sqrt()
    return 0.5 + idct2(modes)
