"""Dropout with masks that are a hash of (key of the sample, layer, channel, pixel).

No random state is used: a mask does not depend on the batch, the device, sharding or recomputation.
"""

import torch
from torch import Tensor

from anisodiff.noise import GOLDEN, mix32, mix64, signed

_CHANNEL, _PIXEL = 1, 2  # the two streams of a key


def layer_key(key: Tensor, layer: int) -> Tensor:
    """Keys int64 [B] of the masks of one layer, different for every layer of a network."""
    return key + signed(GOLDEN * 4 * layer, 64)


def _counter_hash(key: Tensor, kind: int, counter: Tensor) -> Tensor:
    """High 32 bits of mix64(mix64(key + …kind…) + golden·counter): [B], [N] → int32 [B,N]."""
    stream = mix64(key + signed(GOLDEN * kind, 64))
    z = mix64(stream[:, None] + counter[None, :] * signed(GOLDEN, 64))
    return (z >> 32).to(torch.int32)


def keyed_mask(key: Tensor, shape: tuple[int, int, int], rate: float) -> Tensor:
    """True where a unit is kept, with probability 1 − rate: key int64 [B], shape (C,H,W) → bool [B,C,H,W].

        mask = [ M32( a(key, c) + b(key, i, j) ) ≥ rate·2³² ]

    a [B,C] and b [B,H,W] are the high 32 bits of a 64-bit finalizer (SplitMix64, Steele et al. 2014); only the sum
    and the 32-bit finalizer M32 (Wellons 2018) are computed for all [B,C,H,W]. The mask is a function of key and
    shape.
    """
    channels, height, width = shape
    # the added zero keeps torch.compile from computing the counter in 32 bits
    index = torch.arange(max(channels, height, width), device=key.device, dtype=torch.int64) + (key[:1] & 0)
    # row·2³² + column, independent of the size of the image
    pixels = ((index[:height, None] << 32) + index[None, :width]).flatten()
    a = _counter_hash(key, _CHANNEL, index[:channels])
    b = _counter_hash(key, _PIXEL, pixels)
    # in channels_last, like the features
    word = mix32(a[:, None, None, :] + b.view(-1, height, width, 1))
    threshold = min(round(rate * 2**32), 2**32 - 1) - 2**31
    return (word >= threshold).permute(0, 3, 1, 2)


def check_key(key: Tensor, count: int) -> None:
    """Raise a ValueError unless ``key`` is int64 [count]."""
    if key.dtype != torch.int64 or key.shape != (count,):
        raise ValueError(
            f"dropout_key: got {key.dtype} {list(key.shape)}, expected torch.int64 [{count}], one key per sample"
        )


def keyed_dropout(x: Tensor, key: Tensor | None, *, rate: float) -> Tensor:
    """x · mask/(1 − rate) for x[B,C,H,W] and int64 keys [B]; x without keys (evaluation) or at rate 0."""
    if key is None or rate == 0:
        return x
    check_key(key, len(x))
    _, channels, height, width = x.shape
    kept = keyed_mask(key, (channels, height, width), rate)
    return torch.where(kept, x * (1 / (1 - rate)), torch.zeros((), dtype=x.dtype, device=x.device))
