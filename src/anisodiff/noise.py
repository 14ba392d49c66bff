"""Random numbers: a counter-based generator, and increments of the driving noise, white or correlated in space.

**Keys.** A random word is a hash of a key and a counter (the finalizer of SplitMix64, Steele et al. 2014, and a
32-bit one, Wellons 2018). It does not depend on the device, the batch or the order of evaluation.

**Correlated noise.** Q is diagonal in the DCT-II with eigenvalues q_k ∝ exp(−ℓ² z_k/2), scaled so that the variance
of a pixel, averaged over the image, is 1: Σ_k q_k = H·W. ℓ = 0 is white noise, Q = 1.

Noise comes from a `torch.Generator` (one stream for the whole batch) or from a `KeyedNoise` (one key per sample).
"""

import math
from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor

from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.tensors import compiled, has_triton, highest_precision, to_float64

GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴/φ, φ the golden ratio, rounded to an odd number: multiples modulo 2⁶⁴ are evenly spread."""


def signed(value: int, bits: int) -> int:
    """The integer in [−2^(bits−1), 2^(bits−1)) equal to value modulo 2^bits: torch integers are signed."""
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def shift_right(z: Tensor, count: int, bits: int) -> Tensor:
    """Logical shift of signed integers; torch's >> is arithmetic."""
    return (z >> count) & ((1 << (bits - count)) - 1)


def mix64(z: Tensor) -> Tensor:
    """Finalizer of SplitMix64, a bijection of the 64-bit integers: int64 → int64, wrapping."""
    z = (z ^ shift_right(z, 30, 64)) * signed(0xBF58476D1CE4E5B9, 64)
    z = (z ^ shift_right(z, 27, 64)) * signed(0x94D049BB133111EB, 64)
    return z ^ shift_right(z, 31, 64)


def mix32(z: Tensor) -> Tensor:
    """Wellons' low-bias finalizer, a bijection of the 32-bit integers: int32 → int32, wrapping."""
    z = (z ^ shift_right(z, 16, 32)) * signed(0x7FEB352D, 32)
    z = (z ^ shift_right(z, 15, 32)) * signed(0x846CA68B, 32)
    return z ^ shift_right(z, 16, 32)


def _mix64_number(z: int) -> int:
    """`mix64` of a Python integer."""
    z %= 1 << 64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return z ^ (z >> 31)


def combine(*parts: int | Tensor) -> Tensor:
    """One int64 key from several, which depends on their order; tensors broadcast."""
    key: int | Tensor = 0
    for part in parts:
        inner = mix64(part.to(torch.int64)) if isinstance(part, Tensor) else signed(_mix64_number(part) + GOLDEN, 64)
        if isinstance(part, Tensor):
            inner = inner + signed(GOLDEN, 64)
        if isinstance(key, Tensor):
            key = mix64(key + inner)
        elif isinstance(inner, Tensor):
            key = mix64(inner + signed(key, 64))
        else:
            key = _mix64_number(key + inner)
    return key if isinstance(key, Tensor) else torch.tensor(signed(key, 64), dtype=torch.int64)


def keyed_words(stream: Tensor, count: int) -> Tensor:
    """``count`` 64-bit words of every stream [B], [B, count]."""
    # the added zero keeps torch.compile from computing the counter in 32 bits
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
    """Standard normals and uniforms as a function of (key of the sample, index of the draw, element)."""

    def __init__(self, keys: Tensor, *, skip: int = 0) -> None:
        """``keys``: int64 [B]; ``skip``: the number of draws to leave out at the start."""
        if keys.dtype != torch.int64 or keys.dim() != 1:
            raise ValueError(f"keys must be int64 [B], one per sample; got {keys.dtype} {list(keys.shape)}")
        self.keys, self.drawn = keys, skip

    def _stream(self) -> Tensor:
        """The stream of the next draw for every sample, int64 [B]."""
        self.drawn += 1
        return mix64(self.keys + signed(GOLDEN * self.drawn, 64))

    def normal(self, like: Tensor) -> Tensor:
        """Standard normals in the shape and precision of ``like`` [B, …]."""
        if like.shape[0] != len(self.keys):
            raise ValueError(f"noise for {len(self.keys)} keys, but a state of {like.shape[0]} samples")
        stream, count = self._stream(), like[0].numel()
        if like.is_cuda and like.dtype == torch.float32 and has_triton():
            from anisodiff import keyed_kernels

            return keyed_kernels.normal(stream, count).reshape(like.shape)
        drawn: Tensor = compiled(keyed_normal, like.is_cuda)(stream, count, like.dtype)
        return drawn.reshape(like.shape)

    def uniform(self) -> Tensor:
        """One uniform number in (0, 1) per sample, float64 [B]; on the CPU if the device has no float64."""
        word = shift_right(keyed_words(self._stream(), 1)[:, 0], 11, 64)
        return (to_float64(word) + 0.5) * 2.0**-53

    def reserve(self, draws: int) -> int:
        """Leave ``draws`` draws to the caller; the index of the first one."""
        self.drawn += draws
        return self.drawn - draws + 1

    def rows(self, index: Tensor | slice) -> "KeyedNoise":
        """The same generator for some of the samples, at the same draw."""
        return type(self)(self.keys[index], skip=self.drawn)


class ZeroNoise(KeyedNoise):
    """All normals are 0. A state that is linear in its noise is then its conditional mean."""

    def normal(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)


Randomness = torch.Generator | KeyedNoise | None
Seed = SupportsIndex | Randomness
"""A seed or a generator; None is torch's global generator."""


def source_of(seed: Seed) -> Randomness:
    """``seed`` as a generator: a whole number becomes ``torch.Generator().manual_seed(seed)``, on the CPU."""
    if seed is None or isinstance(seed, torch.Generator | KeyedNoise):
        return seed
    try:
        number = -1 if isinstance(seed, bool | Tensor) else index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise ValueError(f"seed: got {seed!r}, expected a whole number from 0 to 2^63 - 1, or a torch.Generator")
    return torch.Generator().manual_seed(number)


def white(like: Tensor, source: Randomness) -> Tensor:
    """Independent standard normals with the shape, dtype and device of ``like``.

    A generator on another device draws there, so a seed on the CPU gives the same numbers on all devices.
    """
    if isinstance(source, KeyedNoise):
        return source.normal(like)
    device = like.device if source is None or source.device.type == like.device.type else source.device
    return torch.randn(like.shape, dtype=like.dtype, device=device, generator=source).to(like.device)


def spectrum(height: int, width: int, length: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """q [H, W], the eigenvalues of Q in DCT order for correlation length ``length`` = ℓ."""
    q = torch.exp(-0.5 * (length * frequencies(height, width, highest_precision(device), device).sqrt()).square())
    return (q / q.mean()).to(dtype)


def correlate(xi: Tensor, length: float) -> Tensor:
    """Q^{1/2} ξ for white noise ``xi`` [..., H, W] and correlation length ℓ."""
    if length == 0.0:
        return xi
    q = spectrum(xi.shape[-2], xi.shape[-1], length, xi.dtype, xi.device)
    return idct2(q.sqrt() * dct2(xi))
