"""Loss and images per second for people, from the first step on.

Reading them makes the host wait for the device: after the first two steps they are read every two seconds at most.
Nothing here changes what is computed.
"""

import time
from collections import deque
from collections.abc import Callable

from anisodiff.training.step import LogSums

EVERY = 2.0
"""Seconds between two readings."""
_WINDOW = 30.0  # seconds over which the rate is taken
_ENOUGH = 50  # batches after which a mean of losses is shown instead of the last one


def _rounded(rate: float) -> str:
    """Three significant digits, never with an exponent: 20.5, 4,960."""
    return f"{float(f'{rate:.3g}'):,.10g}"


class Readout:
    """What the bar shows beside the number of images, and when a run took its first step."""

    def __init__(self, batch: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.began = clock, clock()
        self.paused = 0.0
        """Seconds that did not count as training."""
        self.first_step: float | None = None
        """When the first step of this process was done."""
        self._batch = batch
        self._marks: deque[tuple[float, int]] = deque()
        self._loss: float | None = None
        self._most = 0.0
        self._text = ""

    @property
    def trained(self) -> float:
        """Seconds since the first step, pauses included."""
        return 0.0 if self.first_step is None else self.clock() - self.first_step

    def note(self, done: int, sums: LogSums) -> str:
        """After step number ``done``, before its sums are logged."""
        if len(self._marks) > 1 and self.clock() - self.paused - self._marks[-1][0] < EVERY:
            return self._text
        loss, count = float(sums.loss.sum()), float(sums.count.sum())
        now = self.clock()
        if self.first_step is None:
            self.first_step = now
        if count and 2 * count >= min(self._most, _ENOUGH * self._batch):  # not right after a line of the log
            self._loss = loss / count
        self._most = max(self._most, count)
        self._marks.append((now - self.paused, done))
        while len(self._marks) > 2 and self._marks[-1][0] - self._marks[1][0] > _WINDOW:
            self._marks.popleft()
        (begin, first), (end, _) = self._marks[0], self._marks[-1]
        rate = "" if done == first else f"{_rounded((done - first) * self._batch / max(end - begin, 1e-9))} images/s"
        seen = "" if self._loss is None else f"loss {self._loss:.4f}"
        self._text = ", ".join(part for part in (rate, seen) if part)
        return self._text
