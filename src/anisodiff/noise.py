"""Increments of the driving noise: white, or a Q-Wiener process smoothed in space.

Q is diagonal in the DCT-II with eigenvalues q_k ∝ exp(−ℓ² z_k/2), scaled so that the variance of a pixel,
averaged over the image, is 1: Σ_k q_k = H·W. ℓ = 0 is white noise, Q = 1.

Noise comes from a `torch.Generator` (one stream for the whole batch) or from a `KeyedNoise` (one key a sample: what
a sample meets does not depend on its neighbours, on the batch's size or on the device).
"""

import math

import torch
from torch import Tensor

from anisodiff.compiling import compiled
from anisodiff.hashing import GOLDEN, mix64, shift_right, signed
from anisodiff.transforms import dct2, frequencies, idct2


def keyed_words(stream: Tensor, count: int) -> Tensor:
    """``count`` 64-bit words of every stream [B], [B, count]."""
    # adding a zero that depends on the stream keeps compilers from treating the counter as a 32-bit loop index
    index = torch.arange(1, count + 1, dtype=torch.int64, device=stream.device) + (stream[:1] & 0)
    return mix64(stream[:, None] + index * signed(GOLDEN, 64))


def keyed_normal(stream: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """``count`` standard normals of every stream [B], [B, count], by Box–Muller, two from each word."""
    words = keyed_words(stream, (count + 1) // 2)
    unit = 2.0**-32
    first = (shift_right(words, 32, 64).to(dtype) + 0.5) * unit
    angle = (words & 0xFFFFFFFF).to(dtype) * (2.0 * math.pi * unit)
    radius = torch.sqrt(-2.0 * torch.log(first))
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]


class KeyedNoise:
    """Standard normals and uniforms that are a function of (key of the sample, number of the draw, element)."""

    def __init__(self, keys: Tensor) -> None:
        if keys.dtype != torch.int64 or keys.dim() != 1:
            raise ValueError(f"keys must be int64 [B], one per sample; got {keys.dtype} {list(keys.shape)}")
        self.keys, self.drawn = keys, 0

    def _stream(self) -> Tensor:
        """A fresh stream for every sample, int64 [B]."""
        self.drawn += 1
        return mix64(self.keys + signed(GOLDEN * self.drawn, 64))

    def normal(self, like: Tensor) -> Tensor:
        """Standard normals in the shape and precision of ``like`` [B, …]."""
        if like.shape[0] != len(self.keys):
            raise ValueError(f"noise for {len(self.keys)} keys, but a state of {like.shape[0]} samples")
        make = compiled(keyed_normal, like.is_cuda)
        drawn: Tensor = make(self._stream(), like[0].numel(), like.dtype)
        return drawn.reshape(like.shape)

    def uniform(self) -> Tensor:
        """One uniform number in (0, 1) a sample, float64 [B]."""
        word = shift_right(keyed_words(self._stream(), 1)[:, 0], 11, 64)
        return (word.to(torch.float64) + 0.5) * 2.0**-53

    def rows(self, index: Tensor | slice) -> "KeyedNoise":
        """The noise of some of the samples, from the same place in their streams on."""
        part = type(self)(self.keys[index])
        part.drawn = self.drawn
        return part


class Silence(KeyedNoise):
    """No noise: normals that are zero. What is drawn with it is the mean, where the state is linear in its noise."""

    def normal(self, like: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(like)


Randomness = torch.Generator | KeyedNoise | None


def white(like: Tensor, source: Randomness) -> Tensor:
    """Independent standard normals in the shape, precision and place of ``like``."""
    if isinstance(source, KeyedNoise):
        return source.normal(like)
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=source)


def spectrum(height: int, width: int, length: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """q [H, W], the eigenvalues of Q in DCT order for correlation length ``length`` = ℓ."""
    q = torch.exp(-0.5 * (length * frequencies(height, width, torch.float64, device).sqrt()).square())
    return (q / q.mean()).to(dtype)


def correlate(xi: Tensor, length: float) -> Tensor:
    """Q^{1/2} ξ: white noise ``xi`` [..., H, W] turned into noise of correlation length ℓ."""
    if length == 0.0:
        return xi
    q = spectrum(xi.shape[-2], xi.shape[-1], length, xi.dtype, xi.device)
    return idct2(q.sqrt() * dct2(xi))
