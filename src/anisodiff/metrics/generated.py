"""Samples straight from a model, made while they are walked over.

    seeds s, s+1, … ──model──▶ images in [0,1] ──round(255·x)──▶ uint8 batches

A batch is forgotten after its walk, so any number of samples takes the memory of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from anisodiff.io.images import to_bytes
from anisodiff.metrics.images import ImageSet
from anisodiff.metrics.workers import ALONE, Workers


class Model(Protocol):
    """Anything that turns seeds into images ``[n,C,H,W]`` in [0,1], one image a seed whatever the batch."""

    def sample_seeds(
        self, seeds: Sequence[int], *, steps: int, sampler: str, prior: str, batch: int | None
    ) -> Tensor:
        """The images of these seeds, ``batch`` of them at a time."""


def generated(
    model: Model,
    count: int,
    *,
    name: str,
    seed: int = 0,
    steps: int = 50,
    sampler: str = "exponential",
    prior: str = "gaussian",
    batch: int | None = None,
    workers: Workers = ALONE,
) -> ImageSet:
    """``count`` samples of ``model`` with the seeds ``seed`` … ``seed + count − 1``; it can be walked only once.

    Of several workers each makes every world-th batch of the walk, so that all together make each sample once, in
    the order of the seeds. ``batch`` is how many the model makes at a time.
    """
    if count < workers.world:
        raise ValueError(f"{count} samples are too few for {workers.world} processes")
    end = seed + count

    def make(size: int) -> Iterator[Tensor]:
        size = min(size, count // workers.world)  # every process gets a batch
        for start in range(seed + workers.rank * size, end, workers.world * size):
            seeds = range(start, min(start + size, end))
            yield to_bytes(model.sample_seeds(seeds, steps=steps, sampler=sampler, prior=prior, batch=batch))

    return ImageSet(name=name, open=make, count=-(-count // workers.world), once=True)
