"""Pictures in and out: those that ship, those that a page sends, and states as PNG in the answer.

A picture is sent once and known by the sha256 of its bytes from then on. What is kept of it is its center square of
at most `SIDE`² pixels; the oldest are dropped. Pictures of a page are files of the one reader, `io.images`, with
smaller bounds.
"""

import base64
import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from anisodiff.io.grids import tiled, to_pixels
from anisodiff.io.images import DecodeError, Fit, decode, displayed, open_image, sample_photo, to_unit

SIDE, KEPT = 512, 48
"""Side of a picture that is kept, and how many are: 38 MB in all."""
LARGEST_FILE, MOST_PIXELS = 16 << 20, 40_000_000
SHARP = 1
"""Level of PNG's compression: noise does not shrink, and time is short."""


def _shapes() -> Tensor:
    """A disk, a square and a ramp: edges of every strength, on flat ground."""
    axis = (torch.arange(SIDE, dtype=torch.float32) + 0.5) / SIDE
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    image = torch.stack([0.85 - 0.25 * y, 0.88 - 0.1 * y, 0.92 + 0 * y])
    disk = ((x - 0.32) ** 2 + (y - 0.36) ** 2).sqrt() < 0.2
    square = ((x - 0.7).abs() < 0.17) & ((y - 0.33).abs() < 0.17)
    ramp = (y > 0.64) & (y < 0.88) & (x > 0.1) & (x < 0.9)
    image = torch.where(disk, torch.tensor([0.82, 0.25, 0.2])[:, None, None], image)
    image = torch.where(square, torch.tensor([0.15, 0.35, 0.7])[:, None, None], image)
    return torch.where(ramp, ((x - 0.1) / 0.8)[None].expand(3, -1, -1), image)


def _rings() -> Tensor:
    """A zone plate: all frequencies, the finest at the border."""
    axis = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return (0.5 + 0.45 * torch.cos(60 * (x**2 + y**2)))[None].expand(3, -1, -1).contiguous()


BUNDLED: MappingProxyType[str, tuple[str, Callable[[], Tensor]]] = MappingProxyType(
    {
        "photograph": ("Photograph (Grace Hopper, 1984)", lambda: sample_photo(SIDE)),
        "shapes": ("Shapes: edges, flat ground, a ramp", _shapes),
        "rings": ("Rings: all frequencies", _rings),
    }
)
"""Name → words and picture [3, SIDE, SIDE] in [0, 1]."""


def _bounded(data: bytes, most: int) -> Image.Image:
    """The header of a picture of at most so many pixels; nothing is decoded of a larger one."""
    image = open_image(data)
    if image.width * image.height > most or min(image.size) < 3:
        image.close()
        raise DecodeError(f"it has {image.height}×{image.width} pixels; expected 3×3 to {most:,} in all")
    return image


class Pictures:
    """Pictures by name or code, as bytes [3, H, W]; safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bundled: dict[str, NDArray[np.uint8]] = {}
        self._sent: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()

    def add(self, data: bytes) -> tuple[str, str]:
        """Keep a picture file; its code, and words about what was read. What is no picture is refused in one line."""
        if len(data) > LARGEST_FILE:
            raise ValueError(f"the picture has {len(data) >> 20} MB; expected at most {LARGEST_FILE >> 20} MB")
        try:
            upright = decode(lambda: _bounded(data, MOST_PIXELS))
            side = min(SIDE, *upright.size)
            pixels = Fit(size=(max(3, side), max(3, side)), channels=3)(upright)
        except DecodeError as error:
            raise ValueError(f"this file cannot be used: {error}") from None
        width, height = upright.size
        code = hashlib.sha256(data).hexdigest()
        with self._lock:
            self._sent[code] = pixels
            self._sent.move_to_end(code)
            while len(self._sent) > KEPT:
                self._sent.popitem(last=False)
        square = "" if width == height else ", its center square is used"
        return code, f"{height}×{width} pixels{square}"

    def get(self, name: str, size: tuple[int, int], channels: int = 3) -> Tensor:
        """The picture as [channels, *size] in [0, 1]."""
        return to_unit(Fit(size=size, channels=channels)(Image.fromarray(self._pixels(name).transpose(1, 2, 0))))

    def file(self, name: str) -> bytes:
        """What is kept of the picture, as a PNG."""
        buffer = io.BytesIO()
        Image.fromarray(self._pixels(name).transpose(1, 2, 0)).save(buffer, "PNG")
        return buffer.getvalue()

    def _pixels(self, name: str) -> NDArray[np.uint8]:
        with self._lock:
            if name in self._sent:
                self._sent.move_to_end(name)
                return self._sent[name]
            if name in BUNDLED:
                if name not in self._bundled:
                    made = BUNDLED[name][1]()
                    self._bundled[name] = to_pixels(made)[0].transpose(2, 0, 1)
                return self._bundled[name]
        raise ValueError("this picture is not here any more; drop it again")


def png(pixels: NDArray[np.uint8]) -> str:
    """Bytes [H, W, 3] as the address of a PNG, for an image of the page."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=SHARP)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def strip(states: Sequence[Tensor]) -> tuple[str, list[float]]:
    """States [C, H, W] side by side in one PNG without gaps, and the contrast of each."""
    found = [displayed(u) for u in states]
    return png(tiled([pixels for pixels, _ in found], len(found), gap=0)), [contrast for _, contrast in found]


def picture(image: Tensor) -> str:
    """An image or a state [C, H, W] as the address of a PNG."""
    return png(displayed(image)[0])


def from_address(address: str, what: str) -> bytes:
    """The file in a ``data:image/png;base64,…`` address, as a canvas writes it."""
    head, comma, text = address.partition(",")
    if head != "data:image/png;base64" or not comma:
        raise ValueError(f"{what}: expected a PNG as a data: address")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"{what}: the data: address is damaged") from None


def opened(address: str, what: str) -> Image.Image:
    """The picture in a data: address."""
    data = from_address(address, what)
    try:
        return decode(lambda: _bounded(data, SIDE * SIDE))
    except DecodeError as error:
        raise ValueError(f"{what} cannot be used: {error}") from None
