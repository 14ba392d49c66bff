"""One picture file → an upright image → uint8 [C, H, W] or a tensor, by one rule for every command.

1. Regular files only, of the formats in `FORMATS` whatever their suffix says, up to 67 megapixels (JPEG 2000:
   16), and JPEG of at most 100 scans.
2. The orientation written in the file (EXIF) is applied; of an animation the first frame counts.
3. Color: transparency is laid over white; 16-bit grayscale is v·255/65535 rounded, float grayscale in [0, 1]
   is v·255 rounded; palettes, CMYK and the like become RGB; one channel is the luma 0.299 R + 0.587 G + 0.114
   B. (16-bit color files arrive from Pillow already cut to their upper eight bits.)
4. The dataset's own center square (`crop`) is cut where it has one, then the largest centered window of the
   target's aspect ratio.
5. That window is resized by Lanczos, antialiased when shrinking.

`io.picture_files` says which files of a folder or zip are pictures.
"""

import contextlib
import functools
import io
import itertools
import re
import stat
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError
from torch import Tensor

from anisodiff.io.archives import LARGEST_BLOB, read_regular

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "TGA")
"""Pillow's names; TGA has no signature, so it comes last."""
SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff",
     ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".jp2", ".avif"]
)  # fmt: skip

_PNG = b"\x89PNG\r\n\x1a\n"

MOST_PIXELS = 1 << 26
"""Of a picture: with its conversions it stays below a gigabyte."""
_PART = 1 << 18
"""Pixels that are converted at a time."""
MOST_PACKED_PIXELS = 1 << 24
"""Of JPEG 2000, whose reader takes 24 bytes for each."""
MOST_SCANS = 100
"""Of a JPEG; progressive ones have about ten, and each is a pass over all pixels."""
_SCAN = re.compile(rb"\xff\xda\x00[\x08\x0a\x0c\x0e][\x01-\x04]")
TOO_LARGE = f"more than {MOST_PIXELS // 10**6} megapixels"
DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")
GRAY = ("1", "L", "LA", "La", "F", *DEEP)

T = TypeVar("T")


class DecodeError(ValueError):
    """One image cannot be used; the message is the reason, without the image's name."""


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # AVIF is not in every Pillow


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Pillow warns of half the size that it refuses, and of damage that it can decode: neither is an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def open_image(file: Path | bytes | IO[bytes]) -> Image.Image:
    """The header of a picture file: enough to see size and mode."""
    if isinstance(file, Path) and not stat.S_ISREG(file.stat().st_mode):
        raise DecodeError("not a regular file")
    try:
        with _quiet():
            image = Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=_formats())
    except UnidentifiedImageError:
        raise DecodeError(f"not an image; expected {', '.join(_formats())}") from None
    packed = image.format == "JPEG2000"
    if image.width * image.height > (MOST_PACKED_PIXELS if packed else MOST_PIXELS):
        image.close()
        raise DecodeError(f"more than {MOST_PACKED_PIXELS // 10**6} megapixels of JPEG 2000" if packed else TOO_LARGE)
    return image


def _check_scans(image: Image.Image) -> None:
    """Refuse a JPEG of very many scans; they are counted in its bytes, where nothing else looks like one."""
    if isinstance(image, JpegImagePlugin.JpegImageFile) and image.fp is not None:
        place = image.fp.tell()
        image.fp.seek(0)
        held = image.fp.read(LARGEST_BLOB)
        image.fp.seek(place)
        if sum(1 for _ in itertools.islice(_SCAN.finditer(held), MOST_SCANS + 1)) > MOST_SCANS:
            raise DecodeError(f"more than {MOST_SCANS} scans")


def decode(opener: Callable[[], Image.Image]) -> Image.Image:
    """What ``opener`` opens, upright, with its pixels read; `DecodeError` where that fails for any reason."""
    try:
        with _quiet(), opener() as image:
            _check_scans(image)
            image.load()
            with contextlib.suppress(Exception):  # a damaged EXIF block is no reason to lose a good picture
                return ImageOps.exif_transpose(image)
            return image
    except (MemoryError, DecodeError):
        raise
    except Image.DecompressionBombError:
        raise DecodeError(TOO_LARGE) from None
    except OSError as error:
        raise DecodeError(error.strerror or " ".join(str(error).split())) from error
    except Exception as error:  # a damaged file makes Pillow's readers raise almost any type
        raise DecodeError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def channels_of(image: Image.Image) -> int:
    """1 for grayscale modes, 3 for everything else (palettes included)."""
    return 1 if image.mode in GRAY else 3


def _gray_from_numbers(image: Image.Image) -> Image.Image:
    """16-bit integers or floats in [0, 1] → mode L."""
    v = np.asarray(image)
    top = 1.0 if image.mode == "F" else 65535.0
    if not (v.min() >= 0 and v.max() <= top):  # written so that NaN fails too
        raise DecodeError(f"mode {image.mode} with values in [{v.min()}, {v.max()}], expected [0, {top:g}]")
    return Image.fromarray(rounded(v, 255.0 / top))


def rounded(values: NDArray[Any], scale: float) -> NDArray[np.uint8]:
    """``values`` times ``scale``, rounded, as bytes: computed in float64, a part of the memory at a time."""
    made = np.empty(values.shape, np.uint8)
    flat, out = values.reshape(-1), made.reshape(-1)
    for first in range(0, flat.size, _PART):
        part = slice(first, first + _PART)
        out[part] = np.rint(flat[part].astype(np.float64) * scale)
    return made


def _over_white(image: Image.Image) -> Image.Image:
    """Transparency laid over white, a few rows at a time."""
    made, rows = Image.new("RGB", image.size), max(1, _PART // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        front = image.crop(box).convert("RGBA")
        made.paste(Image.alpha_composite(Image.new("RGBA", front.size, "white"), front).convert("RGB"), box)
    return made


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """The picture in mode L (1 channel) or RGB (3 channels), by rule 3."""
    if image.mode == "F" or image.mode in DEEP:
        image = _gray_from_numbers(image)
    elif image.has_transparency_data:
        image = _over_white(image)
    wanted = {1: "L", 3: "RGB"}[channels]
    if image.mode == wanted:
        return image
    try:
        return image.convert(wanted)
    except ValueError as error:
        raise DecodeError(f"mode {image.mode} cannot become {wanted}: {error}") from error


def to_array(image: Image.Image, channels: int) -> NDArray[np.uint8]:
    """A decoded picture → uint8 [C, H, W] at its own size."""
    array: NDArray[np.uint8] = np.asarray(to_channels(image, channels), dtype=np.uint8)
    return np.array(array[None] if channels == 1 else array.transpose(2, 0, 1), order="C")


def centered(image: Image.Image, width: int, height: int) -> Image.Image:
    """The center window of the given size, which must fit."""
    left, top = (image.width - width) // 2, (image.height - height) // 2
    if (width, height) == image.size:
        return image
    with _quiet():
        return image.crop((left, top, left + width, top + height))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The target of a preparation: size (H, W), channels 1 or 3, and the side of the square to cut before."""

    size: tuple[int, int]
    channels: int
    crop: int | None = None

    def __post_init__(self) -> None:
        if min(self.size) < 3:
            raise ValueError(f"got size {self.size[0]}×{self.size[1]}: expected both sides ≥ 3")
        if self.channels not in (1, 3):
            raise ValueError(f"got channels={self.channels}: expected 1 (grayscale) or 3 (RGB)")

    def __call__(self, image: Image.Image) -> NDArray[np.uint8]:
        """A decoded picture → uint8 [C, H, W]."""
        h, w = self.size
        if self.crop is not None:
            if min(image.size) < self.crop:
                raise DecodeError(
                    f"{image.height}×{image.width} pixels, expected at least {self.crop}×{self.crop} to crop"
                )
            image = centered(image, self.crop, self.crop)
        image = to_channels(image, self.channels)
        if (image.height, image.width) != (h, w):
            window = (
                min(image.width, round(image.height * w / h)),
                min(image.height, round(image.width * h / w)),
            )
            image = centered(image, max(1, window[0]), max(1, window[1])).resize((w, h), Image.Resampling.LANCZOS)
        return to_array(image, self.channels)


def read_image(path: str | Path, convert: Callable[[Image.Image], T]) -> T:
    """A picture file that was given by name, decoded and converted; what is no picture is an error of one line."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected an image file")
    try:
        image = decode(lambda: open_image(path))
        if min(image.size) < 3:
            raise DecodeError(f"it has {image.height}×{image.width} pixels; at least 3×3 are needed")
        return convert(image)
    except DecodeError as error:
        raise ValueError(f"{path} cannot be used: {error}") from None


def load_photo(path: str | Path, size: int | None = None) -> Tensor:
    """An image file as float32 RGB [3, H, W] in [0, 1]; with ``size``, its center square resized to size²."""
    return read_image(path, functools.partial(_photo, size=size))


def sample_photo(size: int | None = None) -> Tensor:
    """A photograph that is always at hand: Grace Hopper, 1984 (public domain), from matplotlib's sample data."""
    import matplotlib

    with open_image(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg") as opened:
        return _photo(opened.convert("RGB").crop((76, 20, 436, 380)), size)


def _photo(image: Image.Image, size: int | None) -> Tensor:
    return to_unit(to_array(image, 3) if size is None else Fit(size=(size, size), channels=3)(image))


def to_unit(pixels: NDArray[np.uint8]) -> Tensor:
    """uint8 → float32 in [0, 1]."""
    return torch.from_numpy(pixels.copy()).float() / 255


def whole_png(path: Path) -> bool:
    """Whether a file is a PNG from its first chunk to its last, by the checksum of each; pixels are not decoded."""
    try:
        data = memoryview(read_regular(path, LARGEST_BLOB))
    except (OSError, ValueError):
        return False
    place, kind, pixels = len(_PNG), b"", False
    if data[:place] != _PNG:
        return False
    while place + 12 <= len(data):
        size, kind = int.from_bytes(data[place : place + 4]), bytes(data[place + 4 : place + 8])
        end = place + 8 + size
        if zlib.crc32(data[place + 4 : end]) != int.from_bytes(data[end : end + 4]):
            return False
        place, pixels = end + 4, pixels or kind == b"IDAT"
    return place == len(data) and pixels and kind == b"IEND"


def to_display(u: Tensor) -> tuple[np.ndarray, float]:
    """A state [C, H, W] as an RGB array [H, W, 3] in [0, 1], and the contrast it was shown with.

    States inside the range of images are shown as they are. Where noise has left it far behind, the contrast is
    lowered so that 98% of the values are seen; the factor is returned, to be said beside the picture.
    """
    u = u.detach().double().cpu()
    low, high = np.percentile(u.numpy(), [1, 99])
    spread = max(float(high - low), 1e-12)
    contrast = 1.0 if spread < 1.6 else 1.0 / spread
    if contrast != 1.0:
        u = 0.5 + (u - u.median()) * contrast
    shown = u.clamp(0, 1).permute(1, 2, 0).numpy()
    return np.repeat(shown, 3, axis=2) if shown.shape[2] == 1 else shown[..., :3], contrast


def displayed(u: Tensor) -> tuple[NDArray[np.uint8], float]:
    """As `to_display`, in bytes."""
    pixels, contrast = to_display(u)
    return (pixels * 255).round().astype(np.uint8), contrast


def to_bytes(images: Tensor) -> Tensor:
    """Images [B, …] in [0, 1] → uint8, clipped and rounded to the nearest level; NaN and infinity are refused."""
    finite = torch.isfinite(images).flatten(1).all(dim=1)
    if not bool(finite.all()):
        raise ValueError(f"the model made NaN or infinite pixels in {int((~finite).sum())} of {len(images)} images")
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
