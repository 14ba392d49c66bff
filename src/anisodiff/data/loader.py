"""Batches as a pure function of (seed, k): nothing to save, nothing to fast-forward, the same on any number
of devices.

Draw number n = k·G + j (global batch G, place j) belongs to epoch ⌊n/N⌋ and shows image π(seed, epoch, n mod
N); so an epoch shows every image once, and batches run on over its end. Rank r of W owns the places j in
[r·G/W, (r+1)·G/W). Order, flips and the noise of latents come from keys, not from a generator's state: those of an
image depend on (seed, epoch, index) alone.
"""

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data.dataset import Dataset
from anisodiff.data.latents import Latents
from anisodiff.noise import GOLDEN

Keys = NDArray[np.uint64]
ORDER, FLIP, NOISE = 0, 1, 2  # one stream of keys each
ROUNDS = 6
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix_words(x: Keys) -> Keys:
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
        word = mix_words(word ^ mix_words(value))
    return word


def permute(position: NDArray[np.int64], count: int, keys: Keys) -> NDArray[np.int64]:
    """π of each position in 0 … count−1, under its own key (or one for all): a random order that needs no memory.

    A keyed Feistel network: with a = ⌈√N⌉, b = ⌈N/a⌉ write x = l + a·r and repeat  l ← l + F(r) mod a,
    r ← r + F(l) mod b.  Each step can be undone, so the whole is a bijection of 0 … a·b−1; positions that land at
    N or above are sent through again until they do not (cycle walking, Black & Rogaway 2002), which keeps it a
    bijection of 0 … N−1. F is the SplitMix64 finalizer of (key, round, half).
    """
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
            l = (l + mix_words(k ^ mix_words(r + np.uint64((2 * i) << 40))) % left) % left  # noqa: E741
            r = (r + mix_words(k ^ mix_words(l + np.uint64((2 * i + 1) << 40))) % right) % right
        x[todo] = l + left * r
        todo = todo[x[todo] >= count]
    return x.astype(np.int64)


def flips(seed: int, epoch: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each image is mirrored: a fair coin per (seed, epoch, index)."""
    return (key(seed, FLIP, epoch, index) >> np.uint64(63)).astype(np.bool_)


def to_float(images: Tensor, flip: Tensor | None) -> Tensor:
    """uint8 [B, C, H, W] → [0, 1]."""
    if flip is not None:
        images = torch.where(flip[:, None, None, None], images.flip(-1), images)
    return images.float() / 255


@dataclass(frozen=True)
class Draw:
    """Which images a batch shows: epoch and index of each place, both int64 [B]."""

    epoch: NDArray[np.int64]
    index: NDArray[np.int64]


def draw(*, seed: int, k: int, batch: int, count: int, rank: int = 0, world: int = 1) -> Draw:
    """The part of global batch k that a rank owns."""
    part = batch // world
    n = np.arange(k * batch + rank * part, k * batch + (rank + 1) * part, dtype=np.int64)
    epoch, position = np.divmod(n, count)
    return Draw(epoch, permute(position, count, key(seed, ORDER, epoch)))


class Loader:
    """Float32 images [B, C, H, W] in [0, 1] on a device, B = batch / world, with the index of each in the dataset.

    With ``latents`` of the dataset, states of the latent space in their place, each drawn from its posterior.
    On a GPU a set of at most `resident_bytes` (and half of the free memory) is kept there as stored and
    gathered in place; otherwise `threads` threads gather the next `ahead` batches from the memory map into
    pinned memory.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        latents: Latents | None = None,
        batch: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        flip: bool = True,
        device: torch.device | str = "cpu",
        resident_bytes: int = 8 << 30,
        threads: int = 4,
        ahead: int = 8,
    ) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"got rank {rank} of world {world}: expected 0 ≤ rank < world")
        if batch < 1 or batch % world:
            raise ValueError(
                f"got global batch {batch} on {world} processes: expected a positive multiple of {world}"
            )
        if threads < 1 or ahead < 1:
            raise ValueError(f"got threads={threads}, ahead={ahead}: expected 1 at least")
        self.dataset, self.batch_size, self.seed = dataset, batch, seed
        self.rank, self.world = rank, world
        self.flip, self.device = flip, torch.device(device)
        self.threads, self.ahead = threads, ahead
        self.latents = latents
        rows: NDArray[Any] = dataset.images if latents is None else latents.rows
        self._rows = np.asarray(rows)  # a view: still the memory map
        self._resident = self._upload(resident_bytes)
        self._labels = None if dataset.labels is None else torch.from_numpy(dataset.labels).to(self.device)

    @property
    def resident(self) -> bool:
        """Whether the whole set lies in the device's memory."""
        return self._resident is not None

    @property
    def _dtype(self) -> torch.dtype:
        return torch.uint8 if self.latents is None else torch.float16

    def _upload(self, limit: int) -> Tensor | None:
        if self.device.type != "cuda":
            return None  # the memory map with the system's page cache is the same thing on a CPU
        free, _ = torch.cuda.mem_get_info(self.device)
        if self._rows.nbytes > min(limit, free // 2):
            return None
        whole = torch.empty(self._rows.shape, dtype=self._dtype, device=self.device)
        rows = max(1, (64 << 20) // self._rows[:1].nbytes)
        for i in range(0, len(self._rows), rows):
            whole[i : i + rows] = torch.from_numpy(self._rows[i : i + rows].copy()).to(self.device)
        return whole

    def draw(self, k: int) -> Draw:
        """Which images this rank's part of batch k shows."""
        count = len(self._rows)
        return draw(seed=self.seed, k=k, batch=self.batch_size, count=count, rank=self.rank, world=self.world)

    def _gather(self, drawn: Draw) -> Tensor:
        """The chosen rows as they are stored, in (pinned) host memory."""
        shape = (len(drawn.index), *self._rows.shape[1:])
        host = torch.empty(shape, dtype=self._dtype, pin_memory=self.device.type == "cuda")
        np.take(self._rows, drawn.index, axis=0, out=host.numpy(), mode="clip")  # "raise" would copy twice
        return host

    def _finish(self, drawn: Draw, host: Tensor | None) -> tuple[Tensor, Tensor]:
        """Move to the device, flip, scale."""
        index = self._send(torch.from_numpy(drawn.index))
        if host is None:
            assert self._resident is not None
            raw = self._resident[index]
        else:
            raw = host.to(self.device, non_blocking=True)
        flip = None
        if self.flip:
            flip = self._send(torch.from_numpy(flips(self.seed, drawn.epoch, drawn.index)))
        if self.latents is not None:
            noise = self._send(torch.from_numpy(key(self.seed, NOISE, drawn.epoch, drawn.index).view(np.int64)))
            return self.latents.states(raw, flip, noise), index
        return to_float(raw, flip), index

    def _send(self, values: Tensor) -> Tensor:
        """A small host tensor → device, without waiting for it."""
        if self.device.type != "cuda":
            return values.to(self.device)
        return values.pin_memory().to(self.device, non_blocking=True)

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        """This rank's part of batch k: images [B, C, H, W] and their indices [B]; any k ≥ 0 at any time."""
        if k < 0:
            raise ValueError(f"got batch {k}: expected k ≥ 0")
        drawn = self.draw(k)
        return self._finish(drawn, None if self.resident else self._gather(drawn))

    def labels(self, index: Tensor) -> Tensor | None:
        """The classes of the images of a batch, int64 [B], where the dataset has labels: as pure a function."""
        return None if self._labels is None else self._labels[index]

    def _fetch(self, k: int) -> tuple[Draw, Tensor]:
        drawn = self.draw(k)
        return drawn, self._gather(drawn)

    def iterate(self, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """`batch(start)`, `batch(start + 1)`, … without end; host work runs ahead in the background."""
        if start < 0:
            raise ValueError(f"got start {start}: expected start ≥ 0")
        if self.resident:
            while True:
                yield self.batch(start)
                start += 1
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="anisodiff-loader")
        try:
            queue: deque[Future[tuple[Draw, Tensor]]] = deque(
                pool.submit(self._fetch, k) for k in range(start, start + self.ahead)
            )
            while True:
                drawn, host = queue.popleft().result()
                start += 1
                queue.append(pool.submit(self._fetch, start + self.ahead - 1))
                yield self._finish(drawn, host)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
