"""Nearest images of another set, by features or by pixels.

    i(j) = argminᵢ ‖yⱼ − xᵢ‖

Pixels are compared as whole numbers 0 … 255: their squared distances are exact in float64, so the answer does not
depend on how the sets are cut into batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.frechet import require_features
from anisodiff.metrics.images import ImageSet, walk
from anisodiff.metrics.prdc import distance_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbors:
    """Index ``[n]`` of the nearest image of another set, and the distance ``[n]`` to it, float64."""

    index: Tensor
    distance: Tensor


def nearest(queries: Tensor, base: Tensor) -> Neighbors:
    """Nearest row of ``base`` ``[m,D]`` for each row of ``queries`` ``[n,D]``."""
    require_features(queries, "queries")
    require_features(base, "base")
    found = [d2.min(dim=1) for _, d2 in distance_rows(queries, base)]
    return Neighbors(
        index=torch.cat([f.indices for f in found]), distance=torch.cat([f.values for f in found]).sqrt()
    )


def nearest_pixels(
    samples: Tensor, images: ImageSet, *, keep: Tensor | None = None, batch_size: int = 256
) -> Neighbors:
    """Nearest image by pixels for uint8 samples ``[n,3,H,W]``, in one walk; distance is the RMS of pixels in
    [0,1].

    ``keep``, a bool mask over the images in walking order, restricts the search. No more than ``batch_size`` of
    either side are in float64 at a time.
    """
    best = torch.full((len(samples),), torch.inf, dtype=torch.float64, device=samples.device)
    index = torch.full((len(samples),), -1, device=samples.device)
    start = 0
    for batch in walk(images, batch_size):
        if batch.shape[1:] != samples.shape[1:]:
            sizes = f"{tuple(samples.shape[2:])} and {tuple(batch.shape[2:])}"
            raise ValueError(f"samples and {images.name} have different sizes: {sizes}")
        position = torch.arange(start, start + len(batch))
        start += len(batch)
        if keep is not None:
            batch, position = batch[keep[position]], position[keep[position]]
        if not len(batch):
            continue
        base, position = batch.to(samples.device).flatten(1).double(), position.to(samples.device)
        for first in range(0, len(samples), batch_size):
            rows = slice(first, first + batch_size)
            near = nearest(samples[rows].flatten(1).double(), base)
            index[rows] = torch.where(near.distance < best[rows], position[near.index], index[rows])
            best[rows] = torch.minimum(best[rows], near.distance)
    return Neighbors(index=index, distance=best / (255 * samples[0].numel() ** 0.5))


def pick(images: ImageSet, indices: Tensor, *, batch_size: int = 256) -> Tensor:
    """The images ``[n,3,H,W]`` at ``indices``, in one walk."""
    wanted = indices.cpu()
    found: dict[int, Tensor] = {}
    start = 0
    for batch in walk(images, batch_size):
        for i in wanted[(wanted >= start) & (wanted < start + len(batch))].tolist():
            found[i] = batch[i - start].cpu().clone()  # a view would hold its whole batch
        start += len(batch)
    return torch.stack([found[i] for i in wanted.tolist()])
