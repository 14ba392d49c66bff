"""One walk over a set of images that gathers all that the metrics need; kept on disk for references.

    images ──network──▶ features, logits;   images ──▶ pixel statistics, fingerprint

The cache key holds the fingerprint of the pixels and everything that fixes the numbers; a file of another key
or with a wrong checksum is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from anisodiff.metrics.cache import Say, load_arrays, silent, store_arrays
from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.frechet import GaussianStatistics, gaussian_statistics, require_features
from anisodiff.metrics.images import ImageSet, fingerprint, fingerprint_of, image_digests, walk
from anisodiff.metrics.pixels import PixelStatistics, combine, pixel_statistics
from anisodiff.metrics.sliced import directions
from anisodiff.metrics.workers import ALONE, Workers

Progress = Callable[[int, int | None], None]
FORMAT = "survey 1"


def no_progress(done: int, total: int | None) -> None:
    """Show nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """What one walk over N images of one size gathered; features ``[N,D]`` on the network's device."""

    name: str
    count: int
    size: tuple[int, int]
    fingerprint: str
    features: Tensor
    logits: Tensor | None
    gaussian: GaussianStatistics
    pixels: PixelStatistics


@dataclass(frozen=True, kw_only=True, eq=False)
class _Piece:
    """What one batch gave."""

    order: int
    size: tuple[int, int]
    digests: tuple[bytes, ...]
    features: Tensor
    logits: Tensor | None
    pixels: PixelStatistics


def survey(
    images: ImageSet,
    network: FeatureNetwork,
    *,
    batch_size: int = 256,
    limit: int | None = None,
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
            batch = batch.to(network.device)
            features, logits = network(batch, pad_to=batch_size if pieces else 0)
            piece = _Piece(
                order=order,
                size=size,
                digests=digests,
                features=features.to(device),
                logits=None if logits is None else logits.to(device),
                pixels=pixel_statistics(batch, theta),
            )
            pieces.append(piece)
        progress(done, total)
    every: list[_Piece] = [piece for part in workers.gather(pieces) for piece in part]
    every.sort(key=lambda piece: piece.order)
    joined = torch.cat([piece.features for piece in every]).to(network.device)
    scores = [piece.logits for piece in every if piece.logits is not None]
    return Survey(
        name=images.name,
        count=len(joined),
        size=every[0].size,
        fingerprint=fingerprint_of(digest for piece in every for digest in piece.digests),
        features=require_features(joined, f"{network.name} features of {images.name}"),
        logits=torch.cat(scores).to(network.device) if scores else None,
        gaussian=gaussian_statistics(joined),
        pixels=combine([piece.pixels for piece in every]),
    )


def _key(mark: str, network: FeatureNetwork, projections: int, seed: int) -> str:
    fields = (FORMAT, mark, network.name, network.weights, network.resize, network.precision)
    return " | ".join((*fields, f"{projections} projections, seed {seed}"))


def cached_survey(
    images: ImageSet,
    network: FeatureNetwork,
    cache: Path,
    *,
    batch_size: int = 256,
    limit: int | None = None,
    projections: int = 128,
    seed: int = 0,
    progress: Progress = no_progress,
    say: Say = silent,
    workers: Workers = ALONE,
) -> Survey:
    """As :func:`survey`, from ``cache/statistics`` where the same pixels were surveyed before (without
    logits).

    A set that can be walked only once is surveyed first and stored under the fingerprint found on the way.
    """

    def place(key: str) -> Path:
        return cache / "statistics" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"

    if not images.once:
        mark = fingerprint(images, batch_size=batch_size, limit=limit)
        key = _key(mark, network, projections, seed)
        arrays = load_arrays(place(key), key, say=say)
        if workers.agree(arrays is not None) and arrays is not None:
            say(f"{images.name}: statistics from the cache ({mark[:12]})")
            on = {n: torch.from_numpy(arrays[n]).to(network.device) for n in ("features", "mean", "scatter")}
            height, width = (int(v) for v in arrays["size"])
            return Survey(
                name=images.name,
                count=len(on["features"]),
                size=(height, width),
                fingerprint=mark,
                features=on["features"],
                logits=None,
                gaussian=GaussianStatistics(count=len(on["features"]), mean=on["mean"], scatter=on["scatter"]),
                pixels=PixelStatistics.from_arrays(arrays),
            )
    made = survey(
        images,
        network,
        batch_size=batch_size,
        limit=limit,
        projections=projections,
        seed=seed,
        progress=progress,
        workers=workers,
    )
    if workers.rank:
        return made
    key = _key(made.fingerprint, network, projections, seed)
    arrays = {
        **made.pixels.to_arrays(),
        "features": made.features.cpu().numpy(),
        "mean": made.gaussian.mean.cpu().numpy(),
        "scatter": made.gaussian.scatter.cpu().numpy(),
        "size": torch.tensor(made.size).numpy(),
    }
    try:
        store_arrays(place(key), key, arrays)
    except OSError as error:  # a full or read-only disk costs time next time, not the result of this time
        say(f"statistics of {images.name} were not cached ({error})")
    return made
