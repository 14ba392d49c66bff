"""Surveys of references kept on disk: found again by what they are, never by a name.

The key of a file holds the fingerprint of the pixels and everything that fixes the numbers; a file of another key or
with a wrong checksum is computed again. The fingerprint does not know the order of the images, so a hash of each is
stored too, and the rows come back in the order of whatever container asks.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from anisodiff.metrics.cache import Say, load_arrays, read_key, silent, store_arrays
from anisodiff.metrics.features import UNKNOWN, FeatureNetwork
from anisodiff.metrics.frechet import GaussianStatistics
from anisodiff.metrics.images import ImageSet, fingerprint_of, image_digests, walk
from anisodiff.metrics.pixels import PixelStatistics
from anisodiff.metrics.survey import Survey, survey
from anisodiff.metrics.workers import ALONE, Workers
from anisodiff.runtime.progress import Progress, no_progress

FORMAT, SEPARATOR = "survey 2", " | "
PIXELS = ("spectrum", "orientation", "coherence", "magnitude", "projections")
ROWS = ("features", "projections", "digests")  # one row an image


def _key(mark: str, network: FeatureNetwork, projections: int, seed: int) -> str:
    fields = (FORMAT, mark, network.name, network.weights, network.resize, network.precision)
    return SEPARATOR.join((*fields, f"{projections} projections, seed {seed}"))


def _to_arrays(made: Survey) -> dict[str, np.ndarray]:
    return {
        **{name: tensor.cpu().numpy() for name, tensor in made.pixels.to_tensors().items()},
        "features": made.features.cpu().numpy(),
        "mean": made.gaussian.mean.cpu().numpy(),
        "scatter": made.gaussian.scatter.cpu().numpy(),
        "size": np.array(made.size),
        "digests": np.frombuffer(b"".join(made.digests), dtype=np.uint8).reshape(-1, 32),
        "name": np.array(made.name),
        "split": np.array(made.split),
    }


def _from_arrays(arrays: dict[str, np.ndarray], name: str, split: str, device: torch.device) -> Survey:
    digests = tuple(row.tobytes() for row in arrays["digests"])
    height, width = (int(v) for v in arrays["size"])
    on = {n: torch.from_numpy(arrays[n]).to(device) for n in ("features", "mean", "scatter")}
    return Survey(
        name=name,
        size=(height, width),
        digests=digests,
        features=on["features"],
        logits=None,
        gaussian=GaussianStatistics(count=len(on["features"]), mean=on["mean"], scatter=on["scatter"]),
        pixels=PixelStatistics.from_tensors({n: torch.from_numpy(arrays[n]) for n in PIXELS}),
        kept=torch.empty(0, 3, height, width, dtype=torch.uint8),
        split=split,
    )


def _in_order(arrays: dict[str, np.ndarray], wanted: tuple[bytes, ...]) -> dict[str, np.ndarray]:
    """The rows in the order of the digests ``wanted``; equal images are interchangeable."""
    stored = [row.tobytes() for row in arrays["digests"]]
    if tuple(stored) == wanted:
        return arrays
    rows = np.empty(len(stored), dtype=np.int64)
    rows[sorted(range(len(wanted)), key=wanted.__getitem__)] = sorted(range(len(stored)), key=stored.__getitem__)
    return arrays | {name: arrays[name][rows] for name in ROWS}


def _digests(images: ImageSet, batch_size: int, limit: int | None, progress: Progress) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for batch in walk(images, batch_size, limit=limit):
        found += image_digests(batch)
        progress(len(found), images.count if limit is None or images.count is None else min(limit, images.count))
    return tuple(found)


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
    reading: Progress = no_progress,
    say: Say = silent,
    workers: Workers = ALONE,
    split: str = "",
) -> Survey:
    """As :func:`survey`, from ``cache/statistics`` where the same pixels were surveyed before (without
    logits).

    A set that can be walked only once is surveyed first and stored under the fingerprint found on the way.
    ``reading`` is told of the walk that takes the fingerprint; ``split`` is kept with the name.
    """

    def place(key: str) -> Path:
        return cache / "statistics" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"

    def taken() -> Survey:
        return survey(
            images, network, batch_size=batch_size, limit=limit, projections=projections, seed=seed,
            progress=progress, workers=workers,
        )  # fmt: skip

    if network.weights == UNKNOWN:  # what it computes cannot be told from another function of that name
        return taken()
    if not images.once:
        digests = _digests(images, batch_size, limit, reading)
        mark = fingerprint_of(digests)
        key = _key(mark, network, projections, seed)
        arrays = load_arrays(place(key), key, say=say)
        if workers.agree(arrays is not None) and arrays is not None:
            say(f"{images.name}: statistics from the cache ({mark[:12]})")
            return _from_arrays(_in_order(arrays, digests), images.name, split, network.device)
    made = taken()
    if workers.rank:
        return made
    key = _key(made.fingerprint, network, projections, seed)
    try:
        store_arrays(place(key), key, _to_arrays(replace(made, split=split)))
        say(f"{images.name}: statistics kept in {place(key)}")
    except OSError as error:  # a full or read-only disk costs time next time, not the result of this time
        say(f"statistics of {images.name} were not cached ({error})")
    return made


def is_statistics(path: Path) -> bool:
    """Whether a file says that it holds statistics kept by :func:`cached_survey`."""
    return path.is_file() and (read_key(path) or "").startswith("survey ")


def load_statistics(path: Path, network: FeatureNetwork, *, projections: int = 128, seed: int = 0) -> Survey:
    """The survey in a file of :func:`cached_survey`; refused unless it was made with this network and settings."""
    key = read_key(path) or ""
    parts = key.split(SEPARATOR)
    mark = parts[1] if len(parts) > 1 else ""
    expected = _key(mark, network, projections, seed)
    pairs = zip_longest(parts, expected.split(SEPARATOR))
    differ = [f"{theirs} ≠ {ours}" for theirs, ours in pairs if theirs != ours]
    if differ:
        raise ValueError(f"{path}: statistics taken in another way ({'; '.join(differ)}); give the images instead")
    arrays = load_arrays(path, key)
    if arrays is None or fingerprint_of(row.tobytes() for row in arrays["digests"]) != mark:
        raise ValueError(f"{path}: damaged statistics; delete the file and give the images instead")
    split = str(arrays["split"].item()) if "split" in arrays else ""  # older files do not have it
    return _from_arrays(arrays, str(arrays["name"].item()), split, network.device)
