"""Keyed dropout: the mask is a pure function of (key of the sample, layer, channel, row, column).

    mask = [ M32( a(key, layer, c) + b(key, layer, i, j) ) ≥ rate·2³² ],     h ← h · mask / (1 − rate)

a and b are the high 32 bits of a 64-bit finalizer (SplitMix64, Steele et al. 2014) and are small: [B,C] and
[B,H,W]. Only the sum and the 32-bit finalizer M32 (two multiplications, Wellons 2018) run over the whole
[B,C,H,W], and `torch.compile` fuses them with the product. No random state is read or written, so two samples
with one key share their mask, and neither batch size, sharding, resuming, recomputation nor the device
change it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anisodiff.noise import GOLDEN, mix32, mix64, signed

_CHANNEL, _PIXEL = 1, 2  # what a counter counts; keeps the two hashes of a layer apart


def _counter_hash(key: Tensor, layer: int, kind: int, counter: Tensor) -> Tensor:
    """High 32 bits of mix64(mix64(key + …layer, kind…) + golden·counter): [B], [N] → int32 [B,N]."""
    stream = mix64(key + signed(GOLDEN * (4 * layer + kind), 64))
    z = mix64(stream[:, None] + counter[None, :] * signed(GOLDEN, 64))
    return (z >> 32).to(torch.int32)


def keyed_mask(key: Tensor, layer: int, shape: tuple[int, int, int], rate: float) -> Tensor:
    """True where a unit is kept, with probability 1 − rate: key int64 [B], shape (C,H,W) → bool [B,C,H,W]."""
    channels, height, width = shape
    # adding a zero that depends on the key keeps compilers from treating the counter as a 32-bit loop index
    index = torch.arange(max(channels, height, width), device=key.device, dtype=torch.int64) + (key[:1] & 0)
    # row·2³² + column: a unit's draw does not depend on how large the image around it is
    pixels = ((index[:height, None] << 32) + index[None, :width]).flatten()
    a = _counter_hash(key, layer, _CHANNEL, index[:channels])
    b = _counter_hash(key, layer, _PIXEL, pixels)
    # channels last in memory, like the features the mask meets
    word = mix32(a[:, None, None, :] + b.view(-1, height, width, 1))
    threshold = min(round(rate * 2**32), 2**32 - 1) - 2**31
    return (word >= threshold).permute(0, 3, 1, 2)


def keyed_dropout(x: Tensor, key: Tensor | None, *, layer: int, rate: float) -> Tensor:
    """x · mask/(1 − rate) for x[B,C,H,W] and int64 keys [B]; x itself without keys (evaluation) or at rate 0.

    layer: number of the dropout in the network, so that no two share their masks.
    """
    if key is None or rate == 0:
        return x
    if key.dtype != torch.int64 or key.shape != x.shape[:1]:
        raise ValueError(
            f"dropout_key: got {key.dtype} {list(key.shape)}, expected torch.int64 [{x.shape[0]}], one key per sample"
        )
    _, channels, height, width = x.shape
    kept = keyed_mask(key, layer, (channels, height, width), rate)
    return torch.where(kept, x * (1 / (1 - rate)), torch.zeros((), dtype=x.dtype, device=x.device))
