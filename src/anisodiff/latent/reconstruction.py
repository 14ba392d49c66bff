"""A dataset encoded and decoded, one PNG an image. The same call again makes what is missing."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from anisodiff.data.dataset import Dataset
from anisodiff.data.latents import open_latents, verify_latents
from anisodiff.io.atomic import atomic, leaving_nothing
from anisodiff.io.checkpoint import alone
from anisodiff.io.grids import Pixels, to_pixels
from anisodiff.io.images import DecodeError, decode, open_image, to_array, whole_png
from anisodiff.io.records import RecordKind, differences, write_json
from anisodiff.io.schema import fields, text
from anisodiff.latent.autoencoder import Autoencoder
from anisodiff.latent.codec import in_channels
from anisodiff.latent.encoding import encode
from anisodiff.runtime.progress import Progress, no_progress

RECORD = RecordKind("anisodiff reconstructions", 1, shape=fields(dataset=text, sha256=text))
NAME = "reconstructions.json"
_BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class Reconstructions:
    """What a call has made, and the mean PSNR of all."""

    images: int
    made: int
    psnr: float


def reconstruct(
    dataset: Dataset, autoencoder: Autoencoder, out: Path, most: int | None = None, progress: Progress = no_progress
) -> Reconstructions:
    """Decode the posterior means of the first ``most`` images into ``out``.

    The latents of a whole dataset are cached with it; those of a part are not.
    """
    RECORD.check_folder(out, NAME)
    values = RECORD.new({"dataset": dataset.fingerprint, "sha256": autoencoder.sha256})
    held = RECORD.read(out / NAME)
    if held is not None and (different := differences(held, values, may_change=("anisodiff",))):
        raise ValueError(f"{out} holds other reconstructions: {'; '.join(different)}; choose another --out")
    count = len(dataset) if most is None else min(most, len(dataset))
    whole = count == len(dataset)
    latents = encode(dataset, autoencoder, progress) if whole else open_latents(dataset, autoencoder.sha256)
    if latents is not None:
        verify_latents(latents)
    errors, made = list[Tensor](), 0
    with leaving_nothing(out, NAME, ".lock"), alone(out):
        write_json(out / NAME, values)
        for first in range(0, count, _BLOCK):
            rows = range(first, min(first + _BLOCK, count))
            files = [out / f"{row:08d}.png" for row in rows]
            images = [_read(file, dataset.channels) for file in files]
            truth = torch.from_numpy(np.array(dataset.images[rows.start : rows.stop]))
            if any(image is None for image in images):
                if latents is None:
                    mean, _ = autoencoder.encode(truth.float() / 255)
                else:
                    mean = torch.from_numpy(np.array(latents.rows[rows.start : rows.stop, 0, 0])).float()
                decoded = in_channels(autoencoder.decode(mean), dataset.channels)
                for place, (file, pixels) in enumerate(zip(files, to_pixels(decoded.cpu()))):
                    if images[place] is None:
                        _write(file, pixels)
                        images[place] = _read(file, dataset.channels)
                        made += 1
            found = torch.from_numpy(np.stack([image for image in images if image is not None])).double()
            errors.append(((found - truth.double()) / 255).square().flatten(1).mean(1))
            progress(rows.stop, count)
    psnr = -10 * torch.cat(errors).clamp(min=1e-10).log10().mean()
    return Reconstructions(images=count, made=made, psnr=float(psnr))


def _read(file: Path, channels: int) -> NDArray[np.uint8] | None:
    """A finished image, uint8 [C, H, W]."""
    if not file.is_file() or not whole_png(file):
        return None
    try:
        return to_array(decode(lambda: open_image(file)), channels)
    except DecodeError:
        return None


def _write(file: Path, pixels: Pixels) -> None:
    with atomic(file) as temporary:
        Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).save(temporary, "PNG")
