"""Which size and how many channels suit a folder somebody points at.

A sample of the pictures is looked at (headers only). If 95% of them share one size that a network can use
(both sides multiples of 8, at most 256), that size it is; otherwise the largest of 16, 24, 32, 48, 64, 96,
128, 192, 256 that 95% of the pictures, and all but one of a few, fill: next to none has to be enlarged. A caller may
set a lower limit than 256. One channel if all are grayscale.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from anisodiff.data.dataset import blurred_line, is_blurred
from anisodiff.data.named import open_source
from anisodiff.data.source import Source
from anisodiff.io.images import channels_of

LADDER = (16, 24, 32, 48, 64, 96, 128, 192, 256)
_SAMPLE = 256


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


def choose_size(sizes: list[tuple[int, int]], largest: int = LADDER[-1]) -> tuple[tuple[int, int], str]:
    """Seen sizes (H, W) → the size to use, at most ``largest``, and why."""
    (common, count), *_ = Counter(sizes).most_common(1)
    odd = max(len(sizes) // 20, 1 if len(sizes) > 2 else 0)
    shown, share = f"{common[0]}×{common[1]}", "all" if count == len(sizes) else f"{count} of {len(sizes)}"
    if count >= len(sizes) - odd:
        if all(side % 8 == 0 and 16 <= side <= largest for side in common):
            return common, f"{share} sampled images are {shown}"
        why = f"{share} sampled images are {shown}; expected a size from 16 to {largest} in steps of 8"
    q = sorted(min(size) for size in sizes)[odd]
    side = max((step for step in LADDER if step <= min(q, largest)), default=LADDER[0])
    if count < len(sizes) - odd:
        filled = sum(min(size) >= side for size in sizes)
        why = f"sizes differ; {filled} of {len(sizes)} sampled images have a short side of {side} or more"
        if min(q, LADDER[-1]) > largest:
            why += f"; {largest} is the limit for this number of images and this device"
    return (side, side), why


def guess(source: Source | str | Path, *, largest: int = LADDER[-1]) -> Guess:
    """Size (at most ``largest``) and channels, from the source's own shape or a sample spread evenly over it."""
    source = source if isinstance(source, Source) else open_source(source)
    if source.shape is not None:
        c, h, w = source.shape
        if max(h, w) > largest:
            size, why = choose_size([(h, w)], largest)
            return Guess(size=size, channels=c, why=why)
        return Guess(size=(h, w), channels=c, why="the set's own size")
    sizes, colors = _sampled(source)
    size, why = choose_size(sizes, largest)
    return Guess(size=size, channels=max(colors), why=why)


def blurred(source: Source, size: tuple[int, int]) -> list[str]:
    """A line about pictures that would be enlarged by more than a factor of two, if a sample has any."""
    sizes = _sampled(source)[0] if source.shape is None else [source.shape[1:]] * min(_SAMPLE, len(source))
    small = [(width, height) for height, width in sizes if is_blurred(height, width, size)]
    return blurred_line(len(small), f"{len(sizes)} sampled images", min(small, key=math.prod, default=None))


def _sampled(source: Source) -> tuple[list[tuple[int, int]], list[int]]:
    """(H, W) and channels of about `_SAMPLE` pictures, spread evenly over the source."""
    sizes: list[tuple[int, int]] = []
    colors: list[int] = []
    reason = ""
    for item in itertools.islice(source.items(), 0, None, max(1, len(source) // _SAMPLE)):
        try:
            with item.open() as image:
                on_its_side = image.getexif().get(0x0112, 1) >= 5  # EXIF orientation 5 to 8: stored on its side
                sizes.append((image.width, image.height) if on_its_side else (image.height, image.width))
                colors.append(channels_of(image))
        except Exception as error:  # unreadable ones are `prepare`'s to report
            reason = f"{item.name}: {' '.join(str(error).split())}"
    if not sizes:
        raise ValueError(f"{source.describe()}: none of the sampled images can be read, e.g. {reason}")
    return sizes, colors
