"""A picture sheet: samples beside their nearest training images."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

MARGIN, CAPTION = 8, 16
TITLES = ("sample", "features", "pixels")


def _picture(image: Tensor, zoom: int) -> Image.Image:
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy())
    picture = Image.fromarray(pixels)
    return picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)


def neighbor_sheet(samples: Tensor, by_feature: Tensor, by_pixel: Tensor, *, columns: int = 4) -> Image.Image:
    """Triples (sample, nearest by features, nearest by pixels) of uint8 images ``[n,3,H,W]``, row by row.

    Small images are enlarged by a whole factor, without smoothing, to at least 64 pixels.
    """
    if not samples.shape == by_feature.shape == by_pixel.shape or not len(samples):
        shapes = ", ".join(str(tuple(t.shape)) for t in (samples, by_feature, by_pixel))
        raise ValueError(f"expected three equal sets of images, got {shapes}")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    columns = min(columns, len(samples))
    zoom = max(1, -(-64 // min(samples.shape[2:])))
    height, width = samples.shape[2] * zoom, samples.shape[3] * zoom
    rows = -(-len(samples) // columns)
    group = 3 * width + MARGIN
    sheet = Image.new("RGB", (MARGIN + columns * group, MARGIN + CAPTION + rows * (height + MARGIN)), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    for column in range(columns):
        for place, title in enumerate(TITLES):
            draw.text((MARGIN + column * group + place * width, 2), title, fill=(0, 0, 0))
    for n in range(len(samples)):
        left = MARGIN + (n % columns) * group
        top = CAPTION + MARGIN + (n // columns) * (height + MARGIN)
        for place, images in enumerate((samples, by_feature, by_pixel)):
            sheet.paste(_picture(images[n], zoom), (left + place * width, top))
    return sheet
