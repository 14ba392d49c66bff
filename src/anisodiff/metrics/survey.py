"""One walk over a set of images that gathers all that the metrics need.

images ──network──▶ features, logits;   images ──▶ pixel statistics, fingerprint
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.frechet import GaussianStatistics, gaussian_statistics, require_features
from anisodiff.metrics.images import ImageSet, fingerprint_of, image_digests, walk
from anisodiff.metrics.pixels import PixelStatistics, combine, pixel_statistics
from anisodiff.metrics.sliced import directions
from anisodiff.metrics.workers import ALONE, Workers

Progress = Callable[[int, int | None], None]


def no_progress(done: int, total: int | None) -> None:
    """Show nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """What one walk over N images of one size gathered; features ``[N,D]`` on the network's device.

    Rows stand in the order of the walk. ``digests``: one hash an image; ``kept``: the first images, uint8
    ``[n,3,H,W]`` on the CPU, as many as were asked for.
    """

    name: str
    size: tuple[int, int]
    digests: tuple[bytes, ...]
    features: Tensor
    logits: Tensor | None
    gaussian: GaussianStatistics
    pixels: PixelStatistics
    kept: Tensor

    @property
    def count(self) -> int:
        """N."""
        return len(self.features)

    @property
    def fingerprint(self) -> str:
        """The same for the same pixels in any container, in any order."""
        return fingerprint_of(self.digests)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Piece:
    """What one batch gave."""

    order: int
    size: tuple[int, int]
    digests: tuple[bytes, ...]
    features: Tensor
    logits: Tensor | None
    pixels: PixelStatistics
    kept: Tensor | None


def survey(
    images: ImageSet,
    network: FeatureNetwork,
    *,
    batch_size: int = 256,
    limit: int | None = None,
    keep: int = 0,
    projections: int = 128,
    seed: int = 0,
    progress: Progress = no_progress,
    workers: Workers = ALONE,
) -> Survey:
    """Walk over at most ``limit`` images of ``images`` once, all ``workers`` sharing the batches.

    A set that can be walked only once is taken as each worker's own part of the whole.
    """
    total = images.count if limit is None or images.count is None else min(limit, images.count)
    device = torch.device("cpu") if workers.world > 1 else network.device  # what is gathered travels by the CPU
    pieces: list[_Piece] = []
    theta: Tensor | None = None
    done = 0
    for order, batch in enumerate(walk(images, batch_size, limit=limit)):
        done += len(batch)
        if images.once or workers.mine(order):
            size = (batch.shape[2], batch.shape[3])
            if theta is None:
                generator = torch.Generator().manual_seed(seed)
                theta = directions(3 * size[0] * size[1], projections, generator=generator).to(network.device)
            digests = image_digests(batch)
            kept = batch.cpu() if done - len(batch) < keep else None
            batch = batch.to(network.device)
            features, logits = network(batch, pad_to=batch_size if pieces else 0)
            piece = _Piece(
                order=order,
                size=size,
                digests=digests,
                features=features.to(device),
                logits=None if logits is None else logits.to(device),
                pixels=pixel_statistics(batch, theta),
                kept=kept,
            )
            pieces.append(piece)
        progress(done, total)
    every: list[_Piece] = [piece for part in workers.gather(pieces) for piece in part]
    every.sort(key=lambda piece: piece.order)
    joined = torch.cat([piece.features for piece in every]).to(network.device)
    scores = [piece.logits for piece in every if piece.logits is not None]
    first = [piece.kept for piece in every if piece.kept is not None]
    size = every[0].size
    return Survey(
        name=images.name,
        size=size,
        digests=tuple(digest for piece in every for digest in piece.digests),
        features=require_features(joined, f"{network.name} features of {images.name}"),
        logits=torch.cat(scores).to(network.device) if scores else None,
        gaussian=gaussian_statistics(joined),
        pixels=combine([piece.pixels for piece in every]),
        kept=torch.cat(first)[:keep] if first else torch.empty(0, 3, *size, dtype=torch.uint8),
    )
