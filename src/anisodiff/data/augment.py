"""uint8 images → float32 in [0, 1], mirrored and dequantized by keys instead of a generator's state.

Flip and noise of an image depend on (seed, epoch, index) alone: not on batch, rank, device, or what was drawn
before.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data.permutation import Keys, key
from anisodiff.noise import GOLDEN, mix64, shift_right, signed

FLIP, NOISE = 1, 2  # one stream of keys each


def flips(seed: int, epoch: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each image is mirrored: a fair coin per (seed, epoch, index)."""
    return (key(seed, FLIP, epoch, index) >> np.uint64(63)).astype(np.bool_)


def noise_keys(seed: int, epoch: NDArray[np.int64], index: NDArray[np.int64]) -> Keys:
    """The key of each image's dequantization noise."""
    return key(seed, NOISE, epoch, index)


def mix(x: Tensor) -> Tensor:
    """`permutation.mix` on int64 tensors, whose sums and products wrap: the same bits on every device."""
    return mix64(x + signed(GOLDEN, 64))


def uniform(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """float32 in [0, 1) of shape [B, *shape] from int64 keys [B], one 16-bit draw per value.

    16 bits, because a value v + u with v ≤ 255 then fits float32 exactly and never rounds up to the next
    integer.
    """
    words = math.prod(shape)
    lanes = -(-words // 4)  # each hash gives four draws
    x = mix(keys[:, None] ^ mix(torch.arange(lanes, device=keys.device))[None])
    draws = torch.stack(
        [shift_right(x, 48, 64), shift_right(x, 32, 64) & 0xFFFF, shift_right(x, 16, 64) & 0xFFFF, x & 0xFFFF], dim=-1
    )
    return draws.reshape(len(keys), -1)[:, :words].reshape(len(keys), *shape).float() / 65536


def to_float(images: Tensor, flip: Tensor | None, noise: Tensor | None) -> Tensor:
    """x/255, or (x + u)/256 with u uniform where noise keys are given; uint8 [B, C, H, W] → [0, 1]."""
    if flip is not None:
        images = torch.where(flip[:, None, None, None], images.flip(-1), images)
    if noise is None:
        return images.float() / 255
    return (images.float() + uniform(noise, tuple(images.shape[1:]))) / 256
