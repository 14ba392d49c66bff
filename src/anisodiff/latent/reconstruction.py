"""A dataset encoded and decoded, one PNG an image. The same call again makes what is missing."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anisodiff.data.dataset import Dataset
from anisodiff.data.latents import open_latents, verify_latents
from anisodiff.io.atomic import leaving_nothing
from anisodiff.io.checkpoint import alone
from anisodiff.io.grids import to_pixels
from anisodiff.io.picture_folder import PictureFolder, read_picture
from anisodiff.io.records import RecordKind, differences
from anisodiff.io.schema import fields, text
from anisodiff.latent.autoencoder import Autoencoder
from anisodiff.latent.codec import in_channels
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

    Cached latents are used where there are some, and none are cached here.
    """
    count = len(dataset) if most is None else min(most, len(dataset))
    folder = PictureFolder(out, RECORD, NAME, [out / f"{row:08d}.png" for row in range(count)])
    record = RECORD.new({"dataset": dataset.fingerprint, "sha256": autoencoder.sha256})
    folder.check(record, partial(differences, may_change=("anisodiff",)))
    latents = open_latents(dataset, autoencoder.sha256)
    if latents is not None:
        verify_latents(latents)
    errors = list[Tensor]()
    with leaving_nothing(out, NAME, ".lock"), alone(out):
        todo = set(folder.begin(record))
        for first in range(0, count, _BLOCK):
            files = folder.files[first : first + _BLOCK]
            last = first + len(files)
            truth = torch.from_numpy(np.array(dataset.images[first:last]))
            if not todo.isdisjoint(files):
                if latents is None:
                    mean = autoencoder.encode(truth.float() / 255)[0].half().float()  # as they would be cached
                else:
                    mean = torch.from_numpy(np.array(latents.rows[first:last, 0, 0])).float()
                decoded = in_channels(autoencoder.decode(mean), dataset.channels)
                for file, pixels in zip(files, to_pixels(decoded.cpu())):
                    if file in todo:
                        folder.write(file, pixels)
            written = torch.from_numpy(np.stack([read_picture(file) for file in files])).permute(0, 3, 1, 2)
            errors.append(((written.double() - truth.double()) / 255).square().flatten(1).mean(1))
            progress(last, count)
    psnr = -10 * torch.cat(errors).clamp(min=1e-10).log10().mean()
    return Reconstructions(images=count, made=len(todo), psnr=float(psnr))
