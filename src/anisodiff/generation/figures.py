"""Samples to look at: grids, and trajectories from noise to image as a strip or an animation."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from anisodiff.generation.classes import ClassChoice
from anisodiff.io.atomic import replacing
from anisodiff.io.figures import save_animation
from anisodiff.io.grids import Pixels, enlarged, save_grid, tiled
from anisodiff.io.images import displayed

_GAP, _COLUMNS, _LONGEST = 2, 16, 40
"""Pixels between pictures, columns of a class before it takes a second row, letters of its name."""


def save_sample_grid(
    pictures: Sequence[Pixels], seeds: Sequence[int], choice: ClassChoice | None, path: str | Path
) -> None:
    """Samples [H, W, C] as one PNG; of several classes each begins a row, with its name on the left."""
    labels = [] if choice is None else choice.labels(seeds).tolist()
    if choice is None or len(set(labels)) < 2:
        save_grid(pictures, path)
        return
    groups = {
        name: [enlarged(p) for p, own in zip(pictures, labels) if own == k] for k, name in enumerate(choice.names)
    }
    groups = {name: group for name, group in groups.items() if group}
    columns = min(max(map(len, groups.values())), max(_COLUMNS, math.ceil(len(pictures) ** 0.5)))
    rows, font = [tiled(group, columns) for group in groups.values()], ImageFont.load_default()
    names = [" ".join(name.split())[:_LONGEST] for name in groups]
    left = math.ceil(max(font.getlength(name) for name in names)) + 4 * _GAP
    sheet = Image.new("RGB", (left + rows[0].shape[1], sum(len(row) for row in rows)), "white")
    draw, top = ImageDraw.Draw(sheet), 0
    for name, row in zip(names, rows):
        draw.text((2 * _GAP, top + 2 * _GAP), name, fill="black", font=font)
        sheet.paste(Image.fromarray(row), (left, top))
        top += len(row)
    with replacing(path) as temporary:
        sheet.save(temporary)


def evenly_spaced(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` steps, evenly, first and last among them."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(most, count)).round()})


def save_strip(states: Sequence[Tensor], times: Sequence[float], path: str | Path) -> None:
    """Trajectories as PNG: a row for every sample, a column for each of some times; states [B, C, H, W]."""
    steps = evenly_spaced(len(states), 8)
    drawn = [displayed(states[i][row]) for row in range(len(states[0])) for i in steps]
    tiles = [enlarged(pixels, 96) for pixels, _ in drawn]
    sheet = tiled(tiles, len(steps))
    head = 14
    canvas = Image.new("RGB", (sheet.shape[1], sheet.shape[0] + head), "white")
    canvas.paste(Image.fromarray(sheet), (0, head))
    draw = ImageDraw.Draw(canvas)
    for column, i in enumerate(steps):
        lowered = any(contrast != 1.0 for _, contrast in drawn[column :: len(steps)])
        label = "image" if times[i] == 0 else f"t = {times[i]:.3g}{', scaled' if lowered else ''}"
        draw.text((_GAP + column * (tiles[0].shape[1] + _GAP), 1), label, fill="black")
    with replacing(path) as temporary:
        canvas.save(temporary)


def save_movie(states: Sequence[Tensor], path: str | Path) -> None:
    """Trajectories side by side as an animation from noise to images, then reversed; states [B, C, H, W]."""
    frames = [torch.cat(list(states[i].cpu()), dim=-1) for i in evenly_spaced(len(states), 60)]
    save_animation(frames, path)
