"""Budgets: how long a run may train, and how long this process may work.

    training time = Σ_i n_i / r_i      n_i images in interval i of the log, r_i images per second

The log's rates leave out checkpoints and sample grids. The first interval after every start holds compilation and the
search for algorithms; its images are charged at the rate of the next interval. So the time does not depend on
interruptions, and calibration, which comes before the first step, costs nothing.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anisodiff.runtime.durations import parse_span, span


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Seconds of training, or images seen: one of the two."""

    seconds: float | None = None
    images: int | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.images is None):
            raise ValueError("a budget is a time or a number of images: got both or neither, expected one")
        if not 0 < (self.seconds or self.images or 0) < math.inf:
            raise ValueError(f"a budget must be positive, got {self.seconds or self.images}")

    @classmethod
    def parse(cls, text: str, what: str) -> "Budget":
        """``10min``, or ``200000images``."""
        number = str(text).lower().replace("_", "").strip()
        if number.endswith("images"):
            count = number.removesuffix("images").strip()
            if not count.isdecimal() or not int(count):
                raise ValueError(f"{what}: got {text!r}, expected a whole number such as 200000images")
            return cls(images=int(count))
        return cls(seconds=parse_span(text, what))

    def __str__(self) -> str:
        return span(self.seconds) if self.seconds is not None else f"{self.images} images"

    @property
    def amount(self) -> float:
        return self.seconds if self.seconds is not None else float(self.images or 0)

    def times(self, factor: float) -> "Budget":
        if self.seconds is not None:
            return Budget(seconds=self.seconds * factor)
        return Budget(images=max(1, round((self.images or 0) * factor)))

    def spent(self, images: int, seconds: float) -> float:
        return seconds if self.seconds is not None else float(images)

    def reached(self, images: int, seconds: float) -> bool:
        return self.spent(images, seconds) >= self.amount


class Meter:
    """Training time from the records of a log."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._charged, self._waiting, self._images, self._rate = 0.0, 0, 0, 0.0
        for record in records:
            if record.get("images") is not None and (record.get("images_per_second") or 0) > 0:
                self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record; the first after a start, and the first of all, wait for the rate of the next."""
        count = int(record["images"]) - self._images
        self._images = int(record["images"])
        if "first_step_seconds" in record or (not self._rate and not self._waiting):
            self._waiting += count
            return
        self._rate = float(record["images_per_second"])
        self._charged += (count + self._waiting) / self._rate
        self._waiting = 0

    def seconds(self, images: int) -> float:
        """After ``images``, at the last known rate beyond the last record; 0 while no rate is known."""
        if not self._rate:
            return 0.0
        return self._charged + (self._waiting + images - self._images) / self._rate

    @property
    def images(self) -> int:
        return self._images


class Deadline:
    """Wall time of this process: ``over`` once ``seconds`` have passed, or never."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.now, self._end = clock, math.inf if seconds is None else clock() + seconds
        self.start = 0.0
        """Seconds from the start of the last training to its first step, compilation included."""

    def over(self, need: float = 0.0) -> bool:
        """Whether less than ``need`` seconds are left."""
        return self.now() + need >= self._end
