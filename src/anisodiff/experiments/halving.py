"""Successive halving (Jamieson & Talwalkar 2016): all points with a small budget, the best 1/η with η times as much,
and so on until one is left. A point that goes on continues its run: nothing is trained twice.
"""

import math
from collections.abc import Mapping

from anisodiff.experiments.budget import Budget


def survivors(scores: Mapping[str, float | None], eta: int, *, higher: bool = False) -> list[str]:
    """The best ⌈n/η⌉ of n names by score, best first; None and NaN (a failure) never go on."""
    known = {name: score for name, score in scores.items() if score is not None and not math.isnan(score)}
    ranked = sorted(known, key=lambda name: -known[name] if higher else known[name])
    return ranked[: max(1, -(-len(scores) // eta))]


def rungs(count: int, first: Budget, eta: int) -> list[tuple[int, Budget]]:
    """How many points compete with how much: (n, b), (⌈n/η⌉, η b), … as long as there are two or more."""
    if eta < 2:
        raise ValueError(f"halving: got {eta}, expected 2 or more: the best one in so many goes on")
    found: list[tuple[int, Budget]] = []
    budget = first
    while count > 1 or not found:
        found.append((count, budget))
        count, budget = -(-count // eta), budget.times(eta)
    return found
