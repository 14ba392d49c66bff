"""Any picture → uint8 [C, H, W] of a wanted size, by one stated rule.

1. The orientation written in the file (EXIF) is applied; of an animation the first frame counts.
2. Color: transparency is laid over white; 16-bit grayscale is v·255/65535 rounded, float grayscale in [0, 1]
   is v·255 rounded; palettes, CMYK and the like become RGB; one channel is the luma 0.299 R + 0.587 G + 0.114
   B. (16-bit color files arrive from Pillow already cut to their upper eight bits.)
3. The source's own center square (`crop`) is cut where it has one, then the largest centered window of the
   target's aspect.
4. That window is resized: `lanczos` (antialiased when shrinking) or `area` (mean over the covered pixels).
"""

import contextlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from anisodiff.data.source import DecodeError

Resample = Literal["lanczos", "area"]
FILTERS: dict[Resample, Image.Resampling] = {
    "lanczos": Image.Resampling.LANCZOS,
    "area": Image.Resampling.BOX,
}
DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")
GREY = ("1", "L", "LA", "La", "F", *DEEP)


def channels_of(image: Image.Image) -> int:
    """1 for grayscale modes, 3 for everything else (palettes included)."""
    return 1 if image.mode in GREY else 3


def _gray_from_numbers(image: Image.Image) -> Image.Image:
    """16-bit integers or floats in [0, 1] → mode L."""
    v = np.asarray(image)
    top = 1.0 if image.mode == "F" else 65535.0
    if not (v.min() >= 0 and v.max() <= top):  # written so that NaN fails too
        raise DecodeError(f"mode {image.mode} with values in [{v.min()}, {v.max()}], expected [0, {top:g}]")
    return Image.fromarray(np.rint(v.astype(np.float64) * (255.0 / top)).astype(np.uint8))


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """The picture in mode L (1 channel) or RGB (3 channels), by rule 2."""
    if image.mode == "F" or image.mode in DEEP:
        image = _gray_from_numbers(image)
    elif image.has_transparency_data:
        front = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", front.size, "white"), front).convert("RGB")
    wanted = {1: "L", 3: "RGB"}[channels]
    if image.mode == wanted:
        return image
    try:
        return image.convert(wanted)
    except ValueError as error:
        raise DecodeError(f"mode {image.mode} cannot become {wanted}: {error}") from error


def centered(image: Image.Image, width: int, height: int) -> Image.Image:
    """The center window of the given size, which must fit."""
    left, top = (image.width - width) // 2, (image.height - height) // 2
    if (width, height) == image.size:
        return image
    return image.crop((left, top, left + width, top + height))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The target of a preparation: size (H, W), channels 1 or 3, and how to get there.

    With `resize=False` nothing is changed: a picture of another size or another number of channels is a
    `DecodeError`.
    """

    size: tuple[int, int]
    channels: int
    crop: int | None = None
    resize: bool = True
    resample: Resample = "lanczos"

    def __post_init__(self) -> None:
        if min(self.size) < 3:
            raise ValueError(f"got size {self.size[0]}×{self.size[1]}: expected both sides ≥ 3")
        if self.channels not in (1, 3):
            raise ValueError(f"got channels={self.channels}: expected 1 (grayscale) or 3 (RGB)")
        if self.resample not in FILTERS:
            raise ValueError(f"got resample={self.resample!r}: expected one of {', '.join(FILTERS)}")

    def __call__(self, image: Image.Image) -> NDArray[np.uint8]:
        """A decoded picture → uint8 [C, H, W]."""
        with contextlib.suppress(Exception):  # a damaged EXIF block is no reason to lose a good picture
            image = ImageOps.exif_transpose(image)
        h, w = self.size
        if self.crop is not None:
            if min(image.size) < self.crop:
                raise DecodeError(
                    f"{image.width}×{image.height} pixels, expected at least {self.crop}×{self.crop} to crop"
                )
            image = centered(image, self.crop, self.crop)
        if not self.resize and ((image.height, image.width) != (h, w) or channels_of(image) != self.channels):
            raise DecodeError(
                f"{image.width}×{image.height} pixels in mode {image.mode}, "
                f"expected {w}×{h} with {self.channels} channel(s); allow resizing"
            )
        image = to_channels(image, self.channels)
        if (image.height, image.width) != (h, w):
            window = (
                min(image.width, round(image.height * w / h)),
                min(image.height, round(image.width * h / w)),
            )
            image = centered(image, max(1, window[0]), max(1, window[1])).resize((w, h), FILTERS[self.resample])
        array: NDArray[np.uint8] = np.asarray(image, dtype=np.uint8)
        return array[None] if self.channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
