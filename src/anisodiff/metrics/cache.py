"""Statistics of references on disk, recognized by the content of the images, never by a name.

The key of a file holds the fingerprint of the pixels and everything that fixes the numbers; a file of another key or
with a wrong checksum counts as absent and is computed again. The fingerprint ignores the order of the images, so a
hash of each is stored too, and the rows come back in the order of the container that asks.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anisodiff.io.arrays import read_npz
from anisodiff.io.atomic import atomic
from anisodiff.metrics.features import UNKNOWN, FeatureNetwork
from anisodiff.metrics.frechet import GaussianStatistics
from anisodiff.metrics.images import ImageSet, fingerprint_of, image_digests, read_batches
from anisodiff.metrics.pixel_metrics import PixelStatistics
from anisodiff.metrics.protocol import Settings
from anisodiff.metrics.statistics import Context, ImageStatistics, Say, image_statistics, silent

FORMAT, SEPARATOR = "survey 3", " | "
PIXELS = ("spectrum", "orientation", "coherence", "magnitude", "projections")
LONGEST_KEY = 1 << 14  # bytes, four a character
ROWS = ("features", "projections", "digests")  # one row an image


def _digest(key: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(key.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def store_arrays(path: Path, key: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` to ``path`` as npz with ``key`` and checksum, atomically."""
    contents: dict[str, Any] = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    contents["__key__"] = np.array(key)
    contents["__sha256__"] = np.array(_digest(key, arrays))
    with atomic(path, suffix=".part") as temporary, temporary.open("wb") as stream:
        np.savez(stream, **contents)


def load_arrays(path: Path, key: str, *, say: Say = silent) -> dict[str, np.ndarray] | None:
    """The arrays stored for ``key``, or ``None`` where the file is absent, damaged or of another key."""
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        found, checksum = str(arrays.pop("__key__")), str(arrays.pop("__sha256__"))
    except (OSError, ValueError, KeyError) as error:
        say(f"cache file {path} is damaged ({type(error).__name__}: {error}); computing again")
        return None
    if found != key or checksum != _digest(key, arrays):
        say(f"cache file {path} fails its checksum; computing again")
        return None
    return arrays


def read_key(path: Path) -> str | None:
    """The key a file of :func:`store_arrays` was stored under, or ``None`` where there is no such thing."""
    try:
        return str(read_npz(path, "__key__", largest=LONGEST_KEY)["__key__"])
    except (OSError, ValueError):
        return None


def _key(fingerprint: str, network: FeatureNetwork, settings: Settings) -> str:
    fields = (FORMAT, fingerprint, network.name, network.weights, network.resize, network.precision)
    return SEPARATOR.join((*fields, f"{settings.projections} projections, seed {settings.seed}"))


def _to_arrays(made: ImageStatistics) -> dict[str, np.ndarray]:
    return {
        **{name: tensor.cpu().numpy() for name, tensor in vars(made.pixels.edges).items()},
        "spectrum": made.pixels.spectrum.total.cpu().numpy(), "projections": made.pixels.projections.cpu().numpy(),
        "features": made.features.cpu().numpy(), "mean": made.gaussian.mean.cpu().numpy(),
        "scatter": made.gaussian.scatter.cpu().numpy(), "size": np.array(made.size),
        "digests": np.frombuffer(b"".join(made.digests), dtype=np.uint8).reshape(-1, 32),
        "name": np.array(made.name), "split": np.array(made.split), "resize": np.array(made.resize),
    }  # fmt: skip


def _whole(arrays: dict[str, np.ndarray]) -> bool:
    """Whether all arrays are there, of the right kind, and of one number of rows and columns."""
    kinds = {"features": ("f", 2), "mean": ("f", 1), "scatter": ("f", 2), "size": ("i", 1), "digests": ("u", 2)}
    kinds |= dict.fromkeys(("name", "split", "resize"), ("U", 1))
    if not all(name in arrays and (arrays[name].dtype.kind, arrays[name].ndim) == kinds[name] for name in kinds):
        return False
    if not all(name in arrays and arrays[name].dtype.kind == "f" and 1 <= arrays[name].ndim <= 2 for name in PIXELS):
        return False
    count, columns = arrays["features"].shape
    shapes = {"mean": (columns,), "scatter": (columns, columns), "size": (2,), "digests": (count, 32)}
    shapes |= dict.fromkeys(("name", "split", "resize"), (1,))
    return all(arrays[name].shape == shape for name, shape in shapes.items()) and len(arrays["projections"]) == count


def _from_arrays(arrays: dict[str, np.ndarray], device: torch.device) -> ImageStatistics:
    digests = tuple(row.tobytes() for row in arrays["digests"])
    height, width = (int(v) for v in arrays["size"])
    on = {n: torch.from_numpy(arrays[n]).to(device) for n in ("features", "mean", "scatter")}
    return ImageStatistics(
        name=str(arrays["name"].item()), size=(height, width), digests=digests, features=on["features"], logits=None,
        gaussian=GaussianStatistics(count=len(on["features"]), mean=on["mean"], scatter=on["scatter"]),
        pixels=PixelStatistics.of({n: torch.from_numpy(arrays[n]) for n in PIXELS}),
        kept=torch.empty(0, 3, height, width, dtype=torch.uint8), split=str(arrays["split"].item()),
        resize=str(arrays["resize"].item()),
    )  # fmt: skip


def _in_order(arrays: dict[str, np.ndarray], wanted: tuple[bytes, ...]) -> dict[str, np.ndarray]:
    """The rows in the order of the digests ``wanted``; equal images are interchangeable."""
    stored = [row.tobytes() for row in arrays["digests"]]
    if tuple(stored) == wanted:
        return arrays
    rows = np.empty(len(stored), dtype=np.int64)
    rows[sorted(range(len(wanted)), key=wanted.__getitem__)] = sorted(range(len(stored)), key=stored.__getitem__)
    return arrays | {name: arrays[name][rows] for name in ROWS}


def cached_statistics(
    images: ImageSet,
    network: FeatureNetwork,
    *,
    settings: Settings | None = None,
    role: str = "reference",
    split: str = "",
    context: Context | None = None,
) -> ImageStatistics:
    """As :func:`image_statistics`, from the cache where the same pixels were measured before (without logits).

    A set that can be read only once is measured first and stored under the fingerprint found on the way. ``split``
    is kept with the name.
    """
    settings, context = replace(settings or Settings(), limit=None), context or Context()

    def place(key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        return context.cache / "statistics" / f"{name}.npz"

    known = network.weights != UNKNOWN  # else its name does not say what it computes
    if known and not images.once:
        digests: list[bytes] = []
        for batch in read_batches(images, settings.batch_size):
            digests += image_digests(batch)
            context.progress(f"reading {images.name}", len(digests), images.count)
        fingerprint = fingerprint_of(digests)
        key = _key(fingerprint, network, settings)
        arrays = load_arrays(place(key), key, say=context.say)
        arrays = arrays if arrays is not None and _whole(arrays) else None
        # all processes must take the same way
        if all(context.gather(arrays is not None)) and arrays is not None:
            context.say(f"{images.name}: statistics from the cache ({fingerprint[:12]})")
            found = _from_arrays(_in_order(arrays, tuple(digests)), network.device)
            return replace(found, name=images.name, split=split, resize=images.resize)
    made = image_statistics(images, network, settings=settings, stage=f"{role} {images.name}", context=context)
    if context.rank or not known:
        return made
    key = _key(made.fingerprint, network, settings)
    try:
        store_arrays(place(key), key, _to_arrays(replace(made, split=split)))
        context.say(f"{images.name}: statistics kept in {place(key)}")
    except OSError as error:  # a full or read-only disk costs time next time, not the result of this time
        context.say(f"statistics of {images.name} were not cached ({error})")
    return made


def is_statistics(path: Path) -> bool:
    """Whether a file says that it holds statistics kept by :func:`cached_statistics`."""
    return path.is_file() and (read_key(path) or "").startswith("survey ")


def load_statistics(path: Path, network: FeatureNetwork, settings: Settings | None = None) -> ImageStatistics:
    """The statistics in a file of :func:`cached_statistics`; those of another network or other settings are refused.

    Where no network is used, that of the file does not matter.
    """
    key = read_key(path) or ""
    parts = key.split(SEPARATOR)
    fingerprint = parts[1] if len(parts) > 1 else ""
    expected = _key(fingerprint, network, settings or Settings()).split(SEPARATOR)
    if network.empty and len(parts) == len(expected):
        expected[2:-1] = parts[2:-1]
    pairs = zip_longest(parts, expected)
    differ = [f"{theirs} ≠ {ours}" for theirs, ours in pairs if theirs != ours]
    if differ:
        raise ValueError(f"{path}: statistics of another protocol ({'; '.join(differ)}); give the images instead")
    arrays = load_arrays(path, key)
    known = arrays is not None and _whole(arrays)
    if arrays is None or not known or fingerprint_of(row.tobytes() for row in arrays["digests"]) != fingerprint:
        raise ValueError(f"{path}: damaged statistics; delete the file and give the images instead")
    return _from_arrays(arrays, network.device)
