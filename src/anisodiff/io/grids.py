"""Images to look at, side by side on one sheet."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from anisodiff.io.atomic import replacing
from anisodiff.io.images import to_bytes

Pixels = NDArray[np.uint8]
_GAP, _SIDE = 2, 64


def to_pixels(images: Tensor) -> Pixels:
    """Images [B, C, H, W] in [0, 1], or one of them, as bytes [B, H, W, C], rounded to the nearest level."""
    return to_bytes(images[None] if images.dim() == 3 else images).permute(0, 2, 3, 1).contiguous().cpu().numpy()


def tiled(pictures: Sequence[Pixels], columns: int, gap: int = _GAP) -> Pixels:
    """Pictures [H, W, C] in rows of ``columns`` on white, [rows·(H + gap) + gap, …, 3]."""
    height, width = pictures[0].shape[:2]
    rows = -(-len(pictures) // columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 255, dtype=np.uint8)
    for place, picture in enumerate(pictures):
        top, left = (gap + n * (side + gap) for n, side in zip(divmod(place, columns), (height, width)))
        sheet[top : top + height, left : left + width] = picture
    return sheet


def enlarged(pixels: Pixels, side: int = _SIDE) -> Pixels:
    """A picture [H, W, C] repeated pixel by pixel until its longer side has ``side`` pixels, or nearly."""
    factor = max(1, side // max(pixels.shape[:2]))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _pictures(images: Tensor | Sequence[Pixels]) -> list[Pixels]:
    """Pictures [H, W, C] of all images that `save_grid` takes; a caller may give anything."""
    if isinstance(images, Tensor):
        got = f"a tensor {list(images.shape)}"
        if images.dim() in (3, 4) and images.shape[-3] in (1, 3) and images.numel():
            return list(to_pixels(images))
    else:
        pictures = list(images) if isinstance(images, Sequence | np.ndarray) else []
        got = " of ".join(dict.fromkeys(type(value).__name__ for value in (images, *pictures)))
        if pictures and all(isinstance(p, np.ndarray) and p.ndim == 3 and p.dtype == np.uint8 for p in pictures):
            return pictures
    raise ValueError(f"images: got {got}, expected a tensor [N, C, H, W] in [0, 1], or uint8 arrays [H, W, C]")


def save_grid(images: Tensor | Sequence[Pixels], path: str | Path, columns: int | None = None) -> None:
    """A picture of images [N, C, H, W] in [0, 1], or of bytes [H, W, C]; nearly square without ``columns``."""
    if Path(path).suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"path: got {str(path)!r}, expected a name that ends in .png or .jpg")
    pictures = _pictures(images)
    if isinstance(images, Tensor) and float(((images < 0) | (images > 1)).float().mean()) > 0.5:
        warnings.warn("most pixels lie outside [0, 1] and are clipped; divide bytes by 255", stacklevel=2)
    across = columns or math.ceil(len(pictures) ** 0.5)
    with replacing(path) as temporary:
        Image.fromarray(tiled([enlarged(picture) for picture in pictures], across)).save(temporary)
