"""One walk over a set of images that gathers all that the metrics need.

images ──network──▶ features, logits;   images ──▶ pixel statistics, fingerprint
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.frechet import GaussianStatistics, gaussian_statistics, require_features
from anisodiff.metrics.images import ImageSet, fingerprint_of, image_digests, walk
from anisodiff.metrics.pixels import PixelStatistics, pixel_statistics
from anisodiff.metrics.rows import Gathering, in_order
from anisodiff.metrics.sliced import directions
from anisodiff.metrics.workers import ALONE, Workers
from anisodiff.runtime.progress import Progress, no_progress


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """What one walk over N images of one size gathered; features ``[N,D]`` on the network's device.

    Rows stand in the order of the walk. ``digests``: one hash an image; ``kept``: the first images, uint8
    ``[n,3,H,W]`` on the CPU, as many as were asked for. ``split``: the part of a named set it is, where known.
    """

    name: str
    size: tuple[int, int]
    digests: tuple[bytes, ...]
    features: Tensor
    logits: Tensor | None
    gaussian: GaussianStatistics
    pixels: PixelStatistics
    kept: Tensor
    split: str = ""

    @property
    def count(self) -> int:
        """N."""
        return len(self.features)

    @property
    def fingerprint(self) -> str:
        """The same for the same pixels in any container, in any order."""
        return fingerprint_of(self.digests)


def _as_rows(digests: tuple[bytes, ...]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(len(digests), -1)


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
    own = total if total is None or workers.world == 1 or images.once else total // workers.world + batch_size
    gathering = Gathering(expected=own)
    kept: list[tuple[int, Tensor]] = []
    theta: Tensor | None = None
    size, done = (0, 0), 0
    for order, batch in enumerate(walk(images, batch_size, limit=limit)):
        done += len(batch)
        size = (batch.shape[2], batch.shape[3])
        if images.once or workers.mine(order):
            if theta is None:
                generator = torch.Generator().manual_seed(seed)
                theta = directions(3 * size[0] * size[1], projections, generator=generator).to(network.device)
            if done - len(batch) < keep:
                kept.append((order, batch.cpu()))
            rows = {"digests": _as_rows(image_digests(batch))}
            batch = batch.to(network.device)
            features, logits = network(batch, pad_to=batch_size if gathering.orders else 0)
            sums = pixel_statistics(batch, theta).to_tensors()
            rows |= {"features": features.to(device), "projections": sums.pop("projections")}
            if logits is not None:
                rows["logits"] = logits.to(device)
            gathering.add(order, rows, sums)
        progress(done, total)
    parts = workers.gather((gathering.done(), kept))
    every = in_order([part for part, _ in parts])
    first = [
        batch for _, batch in sorted((piece for _, pieces in parts for piece in pieces), key=lambda piece: piece[0])
    ]
    joined = every.images["features"].to(network.device)
    scores = every.images.get("logits")
    sums = {name: rows.sum(dim=0) for name, rows in every.batches.items()}
    return Survey(
        name=images.name,
        size=size,
        digests=tuple(row.tobytes() for row in every.images["digests"].numpy()),
        features=require_features(joined, f"{network.name} features of {images.name}"),
        logits=None if scores is None else scores.to(network.device),
        gaussian=gaussian_statistics(joined),
        pixels=PixelStatistics.from_tensors({**sums, "projections": every.images["projections"]}),
        kept=torch.cat(first)[:keep] if first else torch.empty(0, 3, *size, dtype=torch.uint8),
    )
