"""Triton kernels for keyed dropout masks (`networks.dropout`) and keyed normals (`noise`).

Masks equal the plain form bit by bit, normals up to rounding.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_TWICE = tl.constexpr(2 * 0x9E3779B97F4A7C15 % 2**64)
_UNIT = tl.constexpr(2.0**-32)
_TURN = tl.constexpr(2.0 * math.pi * 2.0**-32)
_BLOCK = 512


@triton.jit
def mix64(z):
    """`noise.mix64` of uint64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def channel_words(key, channel):
    """32 bits for each channel [C] of a sample: the hash a of `networks.dropout.keyed_mask`."""
    return (mix64(mix64(key + _GOLDEN) + channel.to(tl.uint64) * _GOLDEN) >> 32).to(tl.uint32)


@triton.jit
def kept_units(key, by_channel, pixel, width, threshold):
    """`networks.dropout.keyed_mask` [P, C] of some pixels [P] and of the channels with these words [C]."""
    place = ((pixel // width).to(tl.uint64) << 32) + (pixel % width).to(tl.uint64)
    by_pixel = (mix64(mix64(key + _TWICE) + place * _GOLDEN) >> 32).to(tl.uint32)
    z = by_channel[None, :] + by_pixel[:, None]
    z = (z ^ (z >> 16)) * 0x7FEB352D
    z = (z ^ (z >> 15)) * 0x846CA68B
    z = z ^ (z >> 16)
    return z.to(tl.int32, bitcast=True) >= threshold


@triton.jit
def normals(stream, j):
    """r·cos θ and r·sin θ of word ``j``: `noise.keyed_normal`.

    θ = 2π·low/2³² is reduced to |x| ≤ π/4 in whole numbers, without rounding. Taylor's polynomials are exact to 3e-8
    there.
    """
    word = mix64(stream + (j + 1).to(tl.uint64) * _GOLDEN)
    radius = tl.sqrt(-2.0 * tl.log(((word >> 32).to(tl.uint32).to(tl.float32) + 0.5) * _UNIT))
    low = word.to(tl.uint32)
    quarter = (low + 0x20000000) >> 30
    x = (low - (quarter << 30)).to(tl.int32, bitcast=True).to(tl.float32) * _TURN
    y = x * x
    sine = x * (1.0 + y * (-1 / 6 + y * (1 / 120 + y * (-1 / 5040 + y * (1 / 362880)))))
    cosine = 1.0 + y * (-1 / 2 + y * (1 / 24 + y * (-1 / 720 + y * (1 / 40320))))
    odd = (quarter & 1) == 1
    along, across = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    # cos θ is negative in the quarters 1 and 2, sin θ in 2 and 3
    along = tl.where(((quarter + 1) & 2) == 2, -along, along)
    across = tl.where((quarter & 2) == 2, -across, across)
    return radius * along, radius * across


@triton.jit(do_not_specialize=["count", "words"])
def _normal(stream, out, count, words, BLOCK: tl.constexpr):
    """Words 1, 2, … of one stream, two numbers from each: `noise.keyed_normal`."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    along, across = normals(tl.load(stream + row).to(tl.uint64, bitcast=True), k)
    out += row * count
    tl.store(out + k, along, k < words)
    tl.store(out + words + k, across, k < count - words)


def normal(stream: Tensor, count: int) -> Tensor:
    """``count`` standard normals of every stream int64 [B], float32 [B, count]."""
    stream = stream.contiguous()
    out = torch.empty(len(stream), count, dtype=torch.float32, device=stream.device)
    words = (count + 1) // 2
    if out.numel():
        with torch.cuda.device_of(stream):
            _normal[len(stream), triton.cdiv(words, _BLOCK)](stream, out, count, words, BLOCK=_BLOCK)
    return out
