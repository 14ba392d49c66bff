"""Which samples: every sample has a seed, and depends on nothing else.

``0-49999``, ``7``, ``0-99,500,1000-1999``; what is written reads back.
"""

from collections.abc import Iterable, Sequence
from operator import index

MOST = 10_000_000
LIMIT = 2**62


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of a text, ascending."""
    remedy = f"--seeds expects whole numbers and ranges like 0-49999 or 0-9,20, got {text!r}"
    ranges = []
    for part in str(text).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise ValueError(remedy)
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise ValueError(f"{remedy}: {part.strip()} runs backwards")
        if high >= LIMIT:
            raise ValueError(f"seeds must lie below 2^62, got {high}")
        ranges.append(range(low, high + 1))
    if (count := sum(map(len, ranges))) > MOST:
        raise ValueError(f"--seeds {text}: got {count} samples, expected at most {MOST:,}; cut the range")
    found = sorted(seed for part in ranges for seed in part)
    if len(set(found)) < len(found):
        raise ValueError(f"--seeds {text}: a seed is given twice")
    return tuple(found)


def write_seeds(seeds: Sequence[int]) -> str:
    """Ascending seeds in the notation of `parse_seeds`."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Seeds as whole numbers in [0, 2^62)."""
    try:
        found = tuple(index(seed) for seed in seeds)
    except TypeError as error:
        raise ValueError(f"seeds must be whole numbers, such as range(16): {error}") from None
    wrong = [seed for seed in found if not 0 <= seed < LIMIT]
    if wrong:
        raise ValueError(f"seeds must lie {'from 0 on' if wrong[0] < 0 else 'below 2^62'}, got {wrong[0]}")
    if not found:
        raise ValueError("no samples asked for: got 0 seeds, expected one at least")
    return found
