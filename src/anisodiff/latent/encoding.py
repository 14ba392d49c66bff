"""A prepared dataset → its latents on disk, once. A killed encoding continues where it was.

Rows are appended to a partial file in blocks, each synced before the next. A restart drops the last block, which may
not have reached the disk, and goes on. Blocks are cut the same way every time, so an interrupted encoding has the
bytes of an uninterrupted one.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anisodiff.data.dataset import Dataset, fingerprint
from anisodiff.data.latents import RECORD, Latents, folder_of, open_latents
from anisodiff.data.preparing import npy_header
from anisodiff.io.atomic import locked, sync_folder
from anisodiff.io.records import write_json
from anisodiff.latent.autoencoder import Autoencoder
from anisodiff.runtime.progress import Progress, no_progress

_BLOCK = 64  # images
_LARGEST = 65504.0
"""Of float16."""


def encode(dataset: Dataset, autoencoder: Autoencoder, progress: Progress = no_progress) -> Latents:
    """The latents of ``dataset``; made where they are not there yet, by one process while others wait."""
    if (found := open_latents(dataset, autoencoder.sha256)) is not None:
        return found  # they may be where this user cannot write
    folder = folder_of(dataset, autoencoder.sha256)
    try:
        folder.parent.mkdir(exist_ok=True)
        with locked(folder.with_name(f".{folder.name}.lock"), wait=float("inf")):
            found = open_latents(dataset, autoencoder.sha256)
            if found is None:
                _write(dataset, autoencoder, folder, progress)
                found = open_latents(dataset, autoencoder.sha256)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {folder}: {error.strerror or error}") from error
    assert found is not None
    return found


def _write(dataset: Dataset, autoencoder: Autoencoder, folder: Path, progress: Progress) -> None:
    partial = folder.with_name(f".{folder.name}-{dataset.fingerprint[:16]}.partial")
    shape = _shape(dataset, autoencoder)
    partial.mkdir(exist_ok=True)
    file = partial / "latents.npy"
    try:
        _append(dataset, autoencoder, file, shape, progress)
        rows = np.load(file, mmap_mode="r")
        mean, std = _moments(rows)
    except ValueError:  # no restart would end otherwise
        shutil.rmtree(partial, ignore_errors=True)
        raise
    values = {
        "dataset": dataset.fingerprint, "autoencoder": autoencoder.about.name, "sha256": autoencoder.sha256,
        "shape": list(shape), "mean": mean, "std": std, "fingerprint": fingerprint(rows),
    }  # fmt: skip
    write_json(partial / "meta.json", RECORD.new(values))
    del rows  # Windows does not rename a folder with a file that is mapped
    shutil.rmtree(folder, ignore_errors=True)  # of a dataset that was replaced
    os.rename(partial, folder)
    sync_folder(folder.parent)


def _shape(dataset: Dataset, autoencoder: Autoencoder) -> tuple[int, ...]:
    """[N, 2, M, C, h, w]; an image that does not fit, and weights that make no image, are refused here."""
    mean, std = autoencoder.encode(dataset.first(1))
    autoencoder.decode(mean)
    return (len(dataset), 2, 1 if std is None else 2, *mean.shape[1:])


def _append(
    dataset: Dataset, autoencoder: Autoencoder, path: Path, shape: tuple[int, ...], progress: Progress
) -> None:
    header, row = npy_header(shape, "<f2"), 2 * int(np.prod(shape[1:]))
    there = path.stat().st_size if path.is_file() else 0
    blocks = max(0, there - len(header)) // (row * _BLOCK)
    done = max(0, blocks - 1) * _BLOCK  # the last one may not have reached the disk
    needed, free = row * (shape[0] - done), shutil.disk_usage(path.parent).free + there
    if free < needed:
        raise OSError(errno.ENOSPC, f"{free / 1e9:.2f} GB free, {needed / 1e9:.2f} GB needed")
    with path.open("r+b" if there else "w+b") as file:
        file.write(header)
        file.truncate(len(header) + done * row)
        file.seek(0, os.SEEK_END)
        progress(done, shape[0])
        for first in range(done, shape[0], _BLOCK):
            block = _encoded(dataset.images[first : first + _BLOCK], autoencoder)
            file.write(block.tobytes())
            file.flush()
            os.fsync(file.fileno())
            progress(first + len(block), shape[0])


def _encoded(pixels: NDArray[np.uint8], autoencoder: Autoencoder) -> NDArray[np.float16]:
    """[B, 2, M, C, h, w] of images and their mirror images."""
    images = torch.from_numpy(np.array(pixels)).float() / 255
    sides = []
    for side in (images, images.flip(-1)):
        mean, std = autoencoder.encode(side)
        sides.append(mean[:, None] if std is None else torch.stack([mean, std], dim=1))
    found = torch.stack(sides, dim=1).cpu()
    if not bool((found.abs() <= _LARGEST).all()):  # NaN, too
        raise ValueError(f"{autoencoder.about.name}: latents are not finite, or beyond float16; nothing was kept")
    return found.numpy().astype("<f2")


def _moments(rows: NDArray[Any]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel under the posterior, read in blocks."""
    sums, count = np.zeros((2, rows.shape[3])), 0
    for block in _blocks(rows):
        mean = block[:, :, 0].astype(np.float64)
        square = mean**2
        if block.shape[2] == 2:
            square = square + block[:, :, 1].astype(np.float64) ** 2
        sums += [values.sum(axis=(0, 1, 3, 4)) for values in (mean, square)]
        count += mean[:, :, 0].size
    first, second = sums / count
    spread = np.sqrt(np.maximum(second - first**2, 0))
    if not (spread > 0).all():
        raise ValueError("a channel of the latents is constant: this autoencoder does not code these images")
    return first.tolist(), spread.tolist()


def _blocks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for first in range(0, len(rows), _BLOCK):
        yield np.asarray(rows[first : first + _BLOCK])
