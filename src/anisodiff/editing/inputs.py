"""Pictures from files, as a model needs them, with a line for everything that was changed on the way."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from anisodiff.data import Fit
from anisodiff.data.geometry import channels_of
from anisodiff.editing.strokes import strokes
from anisodiff.io.images import load_photo

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm")


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One input: what was given, and what the edit starts from."""

    name: str
    """The file's name without its suffix; with a number where two are the same."""
    photo: Tensor
    """[C, H, W] in [0, 1], of the model's shape."""
    start: Tensor
    """The same, or its strokes."""
    shape: tuple[int, int]
    """(H, W) of the file."""
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """sha256 of what the edit starts from."""
        pixels = (self.start * 255).round().to(torch.uint8).contiguous()
        return hashlib.sha256(pixels.numpy().tobytes()).hexdigest()


def read_pictures(paths: Sequence[Path], channels: int, size: tuple[int, int]) -> list[Picture]:
    """Pictures of the shape [channels, *size] from files, and from all picture files of folders."""
    files: list[Path] = []
    for path in paths:
        found = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"{path} holds no picture; expected files ending in {', '.join(SUFFIXES)}")
        files += found
    stems = [path.stem for path in files]
    names = [s if stems.count(s) == 1 else f"{s}-{k:03d}" for k, s in enumerate(stems)]
    if len(set(names)) < len(names):
        raise ValueError("two pictures would have the same name; rename one of the files")
    return [read_picture(path, name, channels, size) for path, name in zip(files, names)]


def read_picture(path: Path, name: str, channels: int, size: tuple[int, int]) -> Picture:
    """A picture of the shape [channels, *size]: cut around its center and resized where it has another size."""
    full = load_photo(path)
    height, width = full.shape[-2:]
    with Image.open(path) as opened:  # it has been decoded once: this reads the header
        own, clear = channels_of(opened), opened.has_transparency_data
    notes = []
    if (height, width) != size:
        cut = "resized" if _same_aspect((height, width), size) else "cut around the center and resized"
        notes.append(f"{path}: {width}×{height} pixels, {cut} to the model's {size[1]}×{size[0]}")
    if clear:
        notes.append(f"{path}: transparency laid over white")
    if own != channels:
        notes.append(f"{path}: {'grayscale made color' if channels == 3 else 'color made grayscale'}")
    photo = _fitted(full, channels, size)
    return Picture(name=name, photo=photo, start=photo, shape=(height, width), notes=tuple(notes))


def read_mask(path: Path, pictures: Sequence[Picture], size: tuple[int, int]) -> tuple[Tensor, tuple[str, ...]]:
    """A mask, bool [1, H, W], white (above ½) = edit; and a line for everything that may not be meant.

    It has the shape of the pictures, which it is cut and resized like, or exactly the model's size.
    """
    full = load_photo(path)
    shape = (full.shape[-2], full.shape[-1])
    if shape != size:
        for picture in pictures:
            if not _same_aspect(shape, picture.shape):
                raise ValueError(
                    f"{path}: the mask has {shape[1]}×{shape[0]} pixels, {picture.name} has {picture.shape[1]}×"
                    f"{picture.shape[0]}; expected the picture's shape, or the model's {size[1]}×{size[0]}"
                )
    mask = _fitted(full, 1, size) > 0.5
    if not bool(mask.any()):
        raise ValueError(f"{path}: the mask is black and keeps every pixel; expected white where to edit")
    notes = [] if shape == size else [f"{path}: mask of {shape[1]}×{shape[0]} resized to {size[1]}×{size[0]}"]
    with Image.open(path) as opened:
        if opened.has_transparency_data:
            notes.append(f"{path}: where the mask is transparent it counts as white, and is edited")
    if bool(mask.all()):
        notes.append(f"{path}: the mask is white everywhere: nothing is kept")
    return mask, tuple(notes)


def painted(
    picture: Picture, colors: int, *, seed: int, position: float, smooth: int, mask: Tensor | None
) -> Picture:
    """The picture with its strokes to start from; outside a mask the photograph stays."""
    made = strokes(picture.photo, colors, seed=seed, position=position, smooth=smooth)
    notes = picture.notes
    if (found := len(torch.unique(made.flatten(1), dim=1).mT)) < colors:
        notes += (f"{picture.name}: painted in {found} colors, fewer than {colors}",)
    return replace(picture, start=made if mask is None else torch.where(mask, made, picture.photo), notes=notes)


def _same_aspect(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Equal but for the rounding of a side to whole pixels."""
    return abs(one[0] * other[1] - one[1] * other[0]) <= max(one[0], one[1], other[0], other[1]) / 2


def _fitted(image: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return torch.from_numpy(Fit(size=size, channels=channels)(Image.fromarray(pixels)).copy()).float() / 255
