"""Seconds of a large load from those of smaller ones.

A pass of n pixels costs a + b·n seconds, a for the launches and the reading of weights. Two sizes give both.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_LEAST = 16  # pixels of a side


@dataclass(frozen=True)
class Load:
    """Images of one size."""

    count: int
    height: int
    width: int

    @property
    def pixels(self) -> int:
        return self.count * self.height * self.width


@dataclass
class Cost:
    """Seconds of a load, as timed."""

    timed: list[tuple[Load, float]] = field(default_factory=list)

    def of(self, pixels: int) -> float:
        """a + b·pixels with a, b ≥ 0 through the last two, or in proportion to the only one."""
        load, seconds = self.timed[-1]
        proportional = seconds / load.pixels
        if len(self.timed) == 1:
            return proportional * pixels
        smaller, less = self.timed[-2]
        slope = min(max(0.0, (seconds - less) / (load.pixels - smaller.pixels)), proportional)
        return max(seconds * min(1.0, pixels / load.pixels), seconds + slope * (pixels - load.pixels))

    def rough(self, pixels: int) -> bool:
        """Whether `of` is no more than an upper bound."""
        return len(self.timed) == 1 and self.timed[-1][0].pixels < pixels


def climb(
    loads: list[Load], run: Callable[[Load], float], limit: float, clock: Callable[[], float] = time.perf_counter
) -> Cost:
    """Time ever larger loads (ascending) as long as the next one is expected to end within ``limit`` seconds.

    The first one is run once before, so that what is set up once counts neither as its time nor towards the limit;
    where that run takes longer than the limit, it is all there is. A second one is timed if it is expected to end
    within the limit by itself. A load that cannot be run at its size (ValueError) is passed over; the last one must
    do.
    """
    cost, left, begin, work, share = Cost(), list(loads), clock(), 0.0, 1.0

    def within(room: float) -> list[Load]:
        return [load for load in left if work * load.pixels / cost.timed[-1][0].pixels <= room]

    while left:
        again = not cost.timed
        fits = left[:1] if again else within(limit - (clock() - begin))
        if len(cost.timed) == 1:
            fits = fits or within(limit)[:1]
        if not fits:
            break
        chosen = fits[-1]
        left = [load for load in left if load.pixels > chosen.pixels]
        try:
            started = clock()
            seconds = run(chosen)
            if again:
                if min(seconds, clock() - started) > limit:
                    return Cost([(chosen, seconds)])
                begin = started = clock()
                seconds = run(chosen)
        except ValueError:
            if not left and not cost.timed:
                raise
            continue
        spent = clock() - started
        if again:
            share = spent / seconds if seconds else 1.0
        work = min(spent, share * seconds)  # a new size may be set up too
        cost.timed.append((chosen, seconds))
    return cost


def ascending(size: tuple[int, int], most: int) -> list[Load]:
    """One or two images from an eighth of the sides up to half of them, then 1 … ``most`` images; ascending."""
    small = [(size[0] // n, size[1] // n) for n in (8, 4, 2) if not (size[0] % n or size[1] % n)]
    counts = [1 << n for n in range(most.bit_length()) if 1 << n < most] + [most]
    few = [Load(n, *side) for side in small if min(side) >= _LEAST for n in (1, 2)]
    return few + [Load(n, *size) for n in counts]
