"""Samples to look at: grids, and trajectories from noise to image as a strip or an animation."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from anisodiff.io.atomic import replacing
from anisodiff.io.figures import save_animation
from anisodiff.io.images import to_bytes, to_display

Pixels = NDArray[np.uint8]
_GAP, _SIDE = 2, 64


def to_pixels(images: Tensor) -> Pixels:
    """Images [B, C, H, W] in [0, 1] as bytes [B, H, W, C], rounded to the nearest level."""
    return to_bytes(images).permute(0, 2, 3, 1).contiguous().cpu().numpy()


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


def save_grid(pictures: Sequence[Pixels], path: str | Path, columns: int | None = None) -> None:
    """A sheet of pictures [H, W, C] as PNG; nearly square where ``columns`` is not given."""
    across = columns or math.ceil(len(pictures) ** 0.5)
    with replacing(path) as temporary:
        Image.fromarray(tiled([enlarged(picture) for picture in pictures], across)).save(temporary)


def _shown(state: Tensor) -> tuple[Pixels, bool]:
    """A state [C, H, W] as bytes [H, W, 3], and whether its contrast was lowered to fit the range of images."""
    shown, contrast = to_display(state)
    return (shown * 255).round().astype(np.uint8), contrast != 1.0


def chosen_steps(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` steps, evenly, first and last among them."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(most, count)).round()})


def save_strip(states: Sequence[Tensor], times: Sequence[float], path: str | Path, most: int = 8) -> None:
    """Trajectories as PNG: a row for every sample, a column for each of some times; states [B, C, H, W]."""
    chosen = chosen_steps(len(states), most)
    drawn = [_shown(states[i][row]) for row in range(len(states[0])) for i in chosen]
    tiles = [enlarged(pixels, 96) for pixels, _ in drawn]
    sheet = tiled(tiles, len(chosen))
    head = 14
    canvas = Image.new("RGB", (sheet.shape[1], sheet.shape[0] + head), "white")
    canvas.paste(Image.fromarray(sheet), (0, head))
    draw = ImageDraw.Draw(canvas)
    for column, i in enumerate(chosen):
        lowered = any(low for _, low in drawn[column :: len(chosen)])
        label = "image" if times[i] == 0 else f"t = {times[i]:.3g}{', scaled' if lowered else ''}"
        draw.text((_GAP + column * (tiles[0].shape[1] + _GAP), 1), label, fill="black")
    with replacing(path) as temporary:
        canvas.save(temporary)


def save_movie(states: Sequence[Tensor], path: str | Path, most: int = 60) -> None:
    """Trajectories side by side as an animation from noise to images, then reversed; states [B, C, H, W]."""
    frames = [torch.cat(list(states[i].cpu()), dim=-1) for i in chosen_steps(len(states), most)]
    save_animation(frames, path)
