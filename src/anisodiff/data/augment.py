"""uint8 images → float32 in [0, 1], mirrored and dequantised by keys instead of a generator's state.

Flip and noise of an image depend on (seed, epoch, index) alone: not on batch, rank, device, or what was drawn
before.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data.permutation import FIRST, GOLDEN, SECOND, Keys, key

FLIP, NOISE = 1, 2  # one stream of keys each


def flips(seed: int, epoch: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each image is mirrored: a fair coin per (seed, epoch, index)."""
    return (key(seed, FLIP, epoch, index) >> np.uint64(63)).astype(np.bool_)


def noise_keys(seed: int, epoch: NDArray[np.int64], index: NDArray[np.int64]) -> Keys:
    """The key of each image's dequantisation noise."""
    return key(seed, NOISE, epoch, index)


def _signed(word: int) -> int:
    """A 64-bit word as the int64 with the same bits, which is what torch computes with."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right of int64 bits (torch's own keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """`permutation.mix` on int64 tensors, whose sums and products wrap: the same bits on every device."""
    x = x + _signed(GOLDEN)
    x = (x ^ _shifted(x, 30)) * _signed(FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND)
    return x ^ _shifted(x, 31)


def uniform(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """float32 in [0, 1) of shape [B, *shape] from int64 keys [B], one 16-bit draw per value.

    16 bits, because a value v + u with v ≤ 255 then fits float32 exactly and never rounds up to the next
    integer.
    """
    words = math.prod(shape)
    lanes = -(-words // 4)  # each hash gives four draws
    x = mix(keys[:, None] ^ mix(torch.arange(lanes, device=keys.device))[None])
    draws = torch.stack([_shifted(x, 48), _shifted(x, 32) & 0xFFFF, _shifted(x, 16) & 0xFFFF, x & 0xFFFF], dim=-1)
    return draws.reshape(len(keys), -1)[:, :words].reshape(len(keys), *shape).float() / 65536


def to_float(images: Tensor, flip: Tensor | None, noise: Tensor | None) -> Tensor:
    """x/255, or (x + u)/256 with u uniform where noise keys are given; uint8 [B, C, H, W] → [0, 1]."""
    if flip is not None:
        images = torch.where(flip[:, None, None, None], images.flip(-1), images)
    if noise is None:
        return images.float() / 255
    return (images.float() + uniform(noise, tuple(images.shape[1:]))) / 256
