"""A random order of 0 … N−1 that needs no memory: π(seed, epoch, position) by a keyed Feistel network.

With a = ⌈√N⌉, b = ⌈N/a⌉ write x = l + a·r and repeat  l ← l + F(r) mod a,  r ← r + F(l) mod b.  Each step can
be undone, so the whole is a bijection of 0 … a·b−1; positions that land at N or above are sent through again
until they do not (cycle walking, Black & Rogaway 2002), which keeps it a bijection of 0 … N−1. F is the
SplitMix64 finalizer of (key, round, half), and key = hash(seed, epoch).
"""

import math

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
ROUNDS = 6
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(x: Keys) -> Keys:
    """SplitMix64's finalizer: a bijection of 64-bit words that looks random."""
    x = x + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))


def key(*parts: int | NDArray[np.int64]) -> Keys:
    """Hash integers (arrays are broadcast) into 64-bit words, order and number of parts mattering."""
    word: Keys = np.zeros(1, np.uint64)
    for part in parts:
        value = np.array([part & 0xFFFFFFFFFFFFFFFF], np.uint64) if isinstance(part, int) else part.astype(np.uint64)
        word = mix(word ^ mix(value))
    return word


def permute(position: NDArray[np.int64], count: int, keys: Keys) -> NDArray[np.int64]:
    """π of each position in 0 … count−1, under its own key (or one for all)."""
    if count < 1:
        raise ValueError(f"got {count} images: expected one at least")
    a = math.isqrt(count - 1) + 1
    left, right = np.uint64(a), np.uint64(-(-count // a))
    x: Keys = position.astype(np.uint64)
    keys = np.broadcast_to(keys, x.shape)
    todo: NDArray[np.intp] = np.arange(x.size)
    while todo.size:
        r, l = np.divmod(x[todo], left)  # noqa: E741 - the Feistel network's own letters
        k = keys[todo]
        for i in range(ROUNDS):
            l = (l + mix(k ^ mix(r + np.uint64((2 * i) << 40))) % left) % left  # noqa: E741
            r = (r + mix(k ^ mix(l + np.uint64((2 * i + 1) << 40))) % right) % right
        x[todo] = l + left * r
        todo = todo[x[todo] >= count]
    return x.astype(np.int64)
