"""Images that a prior starts from: any source of pictures, brought to the model's size, with a fingerprint."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anisodiff.data import Dataset, is_dataset, open_dataset, open_source, read_images
from anisodiff.data.dataset import fingerprint
from anisodiff.priors import Images

Pictures = str | Path | Dataset | Tensor
"""A prepared dataset, or a folder, zip, npy or npz of pictures, or a tensor [N, C, H, W] in [0, 1]."""

MOST_DECODED = 200_000


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Images [N, C, H, W] of the model's shape."""

    images: Images
    fingerprint: str
    """As a prepared dataset's: equal fingerprints mean equal images."""
    name: str

    def __len__(self) -> int:
        return len(self.images)

    def some(self, count: int, device: torch.device) -> Tensor:
        """At most ``count`` of them, evenly spread over the set, float32 or float64 in [0, 1]."""
        index = np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(np.int64)
        if isinstance(self.images, Tensor):
            return self.images[torch.from_numpy(index).to(self.images.device)].to(device)
        return torch.from_numpy(np.array(self.images[index])).to(device).float() / 255


def open_pool(source: Pictures, channels: int, size: tuple[int, int]) -> Pool:
    """The images of ``source``; pictures are cropped and resized, a prepared dataset or a tensor must fit."""
    if isinstance(source, Tensor):
        _check_shape("the images", tuple(source.shape[1:]), (channels, *size))
        if not len(source) or not bool(((source >= 0) & (source <= 1)).all()):
            raise ValueError("the images: expected a tensor [N, C, H, W] of numbers in [0, 1], one image at least")
        pixels = (source * 255).round().to(torch.uint8).cpu().numpy()
        return Pool(images=source, fingerprint=fingerprint(pixels), name=f"{len(source)} images")
    if isinstance(source, Dataset) or is_dataset(source):
        dataset = source if isinstance(source, Dataset) else open_dataset(source)
        _check_shape(str(dataset.path), (dataset.channels, *dataset.size), (channels, *size))
        name = _named(len(dataset), dataset.path)
        return Pool(images=dataset.images, fingerprint=dataset.fingerprint, name=name)
    return _decoded(Path(source), channels, size)


def _decoded(path: Path, channels: int, size: tuple[int, int]) -> Pool:
    """Pictures in memory, by the same rule as `anisodiff data prepare`: the same pictures, the same fingerprint."""
    source = open_source(path)
    if len(source) > MOST_DECODED:
        raise ValueError(
            f"{path} holds {len(source)} pictures, expected at most {MOST_DECODED:,} to decode now; "
            "prepare them once with 'anisodiff data prepare'"
        )
    images = read_images(source, size=size, channels=channels)
    return Pool(images=images, fingerprint=fingerprint(images), name=_named(len(images), path))


def _named(count: int, path: Path) -> str:
    """For protocols, which are published: what it is called, not where it lies."""
    return f"{count} images of {path.resolve().name}"


def _check_shape(what: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if got != expected:
        shapes = ["×".join(map(str, shape)) for shape in (got, expected)]
        raise ValueError(
            f"{what}: got {shapes[0]} (channels, height, width), the model makes {shapes[1]}; prepare them anew"
        )
