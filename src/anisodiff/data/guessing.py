"""Which size and how many channels suit a folder somebody points at.

A sample of the pictures is looked at (headers only). If 95 % of them share one size that a network can use
(both sides multiples of 8, at most 256), that size it is; otherwise the largest of 16, 24, 32, 48, 64, 96,
128, 192, 256 that is not above the 5 % quantile of min(H, W), so that next to no picture has to be enlarged.
One channel if all are grayscale.
"""

import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anisodiff.data.named import open_source
from anisodiff.data.source import Source
from anisodiff.io.images import channels_of

LADDER = (16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A size (H, W) with its reason in words, and a number of channels."""

    size: tuple[int, int]
    channels: int
    why: str

    def words(self, *, size: bool = True, channels: bool = True) -> str:
        """What was picked, without what was not asked for."""
        side = f"{self.size[0]}×{self.size[1]}"
        color = "1 channel (grayscale)" if self.channels == 1 else f"{self.channels} channels"
        if not size:
            return color
        return f"{side} with {color}: {self.why}" if channels else f"{side}: {self.why}"


def choose_size(sizes: list[tuple[int, int]]) -> tuple[tuple[int, int], str]:
    """Seen sizes (H, W) → the size to use, and why."""
    (common, count), *_ = Counter(sizes).most_common(1)
    shown = f"{common[0]}×{common[1]}"
    usable = all(side % 8 == 0 and 16 <= side <= LADDER[-1] for side in common)
    if usable and count >= 0.95 * len(sizes):
        share = "all" if count == len(sizes) else f"{count} of {len(sizes)}"
        return common, f"{share} sampled images are {shown}"
    q = float(np.quantile([min(size) for size in sizes], 0.05, method="lower"))
    side = max((step for step in LADDER if step <= q), default=LADDER[0])
    if len(set(sizes)) == 1:
        return (side, side), f"all sampled images are {shown}, which is no size from 16 to 256 in steps of 8"
    return (side, side), f"sizes differ; 95 % of the sampled images have a short side of {q:.0f} or more"


def guess(source: Source | str | Path, *, sample: int = 256) -> Guess:
    """Size and channels for a source or path, from its own shape or from a sample spread evenly over it."""
    source = source if isinstance(source, Source) else open_source(source)
    if source.shape is not None:
        c, h, w = source.shape
        if max(h, w) > LADDER[-1]:
            size, why = choose_size([(h, w)])
            return Guess(size=size, channels=c, why=why)
        return Guess(size=(h, w), channels=c, why="the set's own size")
    step = max(1, len(source) // sample)
    sizes: list[tuple[int, int]] = []
    colors: list[int] = []
    reason = ""
    for item in itertools.islice(source.items(), 0, None, step):
        try:
            with item.open() as image:
                on_its_side = image.getexif().get(0x0112, 1) >= 5  # EXIF orientation 5 to 8: stored on its side
                sizes.append((image.width, image.height) if on_its_side else (image.height, image.width))
                colors.append(channels_of(image))
        except Exception as error:  # unreadable ones are `prepare`'s to report
            reason = f"{item.name}: {' '.join(str(error).split())}"
    if not sizes:
        raise ValueError(f"{source.describe()}: none of the sampled images can be read, e.g. {reason}")
    size, why = choose_size(sizes)
    return Guess(size=size, channels=max(colors), why=why)
