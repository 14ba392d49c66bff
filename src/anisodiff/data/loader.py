"""Batches as a pure function of (seed, k): nothing to save, nothing to fast-forward, the same on any number
of devices.

Draw number n = k·G + j (global batch G, place j) belongs to epoch ⌊n/N⌋ and shows image π(seed, epoch, n mod
N); so an epoch shows every image once, and batches run on over its end. Rank r of W owns the places j in
[r·G/W, (r+1)·G/W).
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data.augment import flips, noise_keys, to_float
from anisodiff.data.dataset import Dataset
from anisodiff.data.permutation import key, permute

ORDER = 0  # the stream of keys of the permutations


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
    """Float32 images [B, C, H, W] in [0, 1] on a device, B = batch / world, with the index of each in the
    dataset.

    On a GPU a set of at most `resident_bytes` (and half of the free memory) is kept there as uint8 and
    gathered in place; otherwise `threads` threads gather the next `ahead` batches from the memory map into
    pinned memory.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        flip: bool = True,
        dequantize: bool = False,
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
        self.flip, self.dequantize = flip, dequantize
        self.device = torch.device(device)
        self.threads, self.ahead = threads, ahead
        self._images: NDArray[np.uint8] = np.asarray(dataset.images)  # a view: still the memory map
        self._resident = self._upload(resident_bytes)

    @property
    def resident(self) -> bool:
        """Whether the whole set lies in the device's memory."""
        return self._resident is not None

    def _upload(self, limit: int) -> Tensor | None:
        if self.device.type != "cuda":
            return None  # the memory map with the system's page cache is the same thing on a CPU
        free, _ = torch.cuda.mem_get_info(self.device)
        if self._images.nbytes > min(limit, free // 2):
            return None
        whole = torch.empty(self._images.shape, dtype=torch.uint8, device=self.device)
        rows = max(1, (64 << 20) // self._images[:1].nbytes)
        for i in range(0, len(self._images), rows):
            whole[i : i + rows] = torch.from_numpy(self._images[i : i + rows].copy()).to(self.device)
        return whole

    def draw(self, k: int) -> Draw:
        """Which images this rank's part of batch k shows."""
        return draw(
            seed=self.seed,
            k=k,
            batch=self.batch_size,
            count=len(self._images),
            rank=self.rank,
            world=self.world,
        )

    def _gather(self, drawn: Draw) -> Tensor:
        """The chosen images as uint8 in (pinned) host memory."""
        shape = (len(drawn.index), *self._images.shape[1:])
        host = torch.empty(shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        np.take(self._images, drawn.index, axis=0, out=host.numpy(), mode="clip")  # "raise" would copy twice
        return host

    def _finish(self, drawn: Draw, host: Tensor | None) -> tuple[Tensor, Tensor]:
        """Move to the device, flip, dequantize, scale."""
        index = self._send(torch.from_numpy(drawn.index))
        if host is None:
            assert self._resident is not None
            raw = self._resident[index]
        else:
            raw = host.to(self.device, non_blocking=True)
        flip = noise = None
        if self.flip:
            flip = self._send(torch.from_numpy(flips(self.seed, drawn.epoch, drawn.index)))
        if self.dequantize:
            noise = self._send(torch.from_numpy(noise_keys(self.seed, drawn.epoch, drawn.index).view(np.int64)))
        return to_float(raw, flip, noise), index

    def _send(self, values: Tensor) -> Tensor:
        """A small host tensor → device, without waiting for it."""
        if self.device.type != "cuda":
            return values
        return values.pin_memory().to(self.device, non_blocking=True)

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        """This rank's part of batch k: images [B, C, H, W] and their indices [B]; any k ≥ 0 at any time."""
        if k < 0:
            raise ValueError(f"got batch {k}: expected k ≥ 0")
        drawn = self.draw(k)
        return self._finish(drawn, None if self.resident else self._gather(drawn))

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
