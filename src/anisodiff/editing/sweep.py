"""Which strength: faithfulness against realism.

    faithfulness   RMSE of the results to the painting, inside the mask (PSNR = −20 log₁₀ RMSE): grows with s
    realism        distance of the results to real images, `realism.Unrest` or a function of your own: falls with s

The elbow is the least strength at which nine tenths of the realism to be gained are gained: from the painting's own
(s = 0) to the best of the sweep. Beyond it faithfulness is paid for little. It is a first guess: look at the results.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anisodiff.editing.realism import Realism, Unrest
from anisodiff.editing.sdedit import as_mask, edit
from anisodiff.editing.strength import reach, time_of
from anisodiff.generation import Generator, Step
from anisodiff.samplers import Sampler

POINTS, ENOUGH = 8, 0.9
_LOW, _HIGH = 0.2, 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """One entry for every strength, ascending."""

    strengths: tuple[float, ...]
    times: tuple[float, ...]
    rmse: tuple[float, ...]
    realism: tuple[float, ...]
    painting: float
    """Realism of the painting as it was given."""
    label: str
    """What realism is, in words."""
    results: Tensor = field(repr=False)
    """[strengths, paintings, seeds, C, H, W]."""

    @property
    def elbow(self) -> int:
        """Which strength is picked."""
        return elbow(self.realism, self.painting)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        points = [
            {"strength": s, "t": t, "rmse": e, "psnr": psnr(e), "realism": r}
            for s, t, e, r in zip(self.strengths, self.times, self.rmse, self.realism)
        ]
        picked = {"strength": self.strengths[self.elbow], "t": self.times[self.elbow]}
        return {"measure": self.label, "painting": self.painting, "points": points, "elbow": picked}


def psnr(rmse: float) -> float | None:
    """−20 log₁₀ RMSE in dB, of images in [0, 1]; None for equal ones."""
    return -20.0 * math.log10(rmse) if rmse > 0 else None


def elbow(realism: Sequence[float], painting: float) -> int:
    """The first of ``realism`` (lower is better) that has gained `ENOUGH` of what the best gains on ``painting``."""
    best = min(realism)
    enough = best + (1 - ENOUGH) * max(painting - best, 0.0)
    return next(k for k, value in enumerate(realism) if value <= enough)


def default_strengths(generator: Generator, points: int = POINTS) -> tuple[float, ...]:
    """Evenly from 0.2 to 0.95, or what the process reaches of it."""
    low, high = reach(generator)
    first = max(_LOW, low + 0.1 * (high - low))
    last = min(_HIGH, high)
    return tuple(min(last, first + (last - first) * k / (points - 1)) for k in range(points))


def sweep(
    generator: Generator,
    paintings: Tensor,
    *,
    seeds: Sequence[int],
    strengths: Sequence[float] | None = None,
    steps: int = 50,
    sampler: str | Sampler = "auto",
    repeats: int = 1,
    mask: Tensor | None = None,
    realism: Realism | None = None,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> Sweep:
    """Every painting [P, C, H, W] edited at every strength with every seed, and measured.

    ``realism``: images [N, C, H, W] → a number, lower is better; for one with features of a network of your own. It
    may have an attribute ``label``. ``progress(done, total)`` counts edited images.
    """
    chosen = tuple(sorted(default_strengths(generator) if strengths is None else strengths))
    if not chosen:
        raise ValueError("strengths: got none, expected one at least, such as 0.5")
    times = tuple(time_of(generator, None, s) for s in chosen)  # refused before anything is computed
    measure = Unrest(generator, steps=steps, sampler=sampler) if realism is None else realism
    rows, count = paintings.repeat_interleave(len(seeds), 0), len(paintings) * len(seeds)
    free = torch.ones(1, 1, *generator.size, dtype=torch.bool)
    if mask is not None:
        free = as_mask(mask, 1, generator.size)
    shares = free.double().mean()
    results, errors, found, done = [], [], [], 0

    def watch(step: Step) -> None:
        if step.number == step.of:
            nonlocal done
            done += len(step.seeds)
            progress(done, count * repeats * len(chosen))

    for t in times:
        new = edit(
            generator, rows, seeds=tuple(seeds) * len(paintings), t=t, steps=steps, sampler=sampler, repeats=repeats,
            mask=mask, callback=watch,
        )  # fmt: skip
        gap = torch.where(free, new.double() - rows.double().cpu(), 0.0)
        errors.append(float((gap.square().mean() / shares).sqrt()))
        found.append(measure(new))
        results.append(new.reshape(len(paintings), len(seeds), *new.shape[1:]))
    return Sweep(
        strengths=chosen, times=times, rmse=tuple(errors), realism=tuple(found), painting=measure(paintings),
        label=str(getattr(measure, "label", "realism, lower is better")), results=torch.stack(results),
    )  # fmt: skip
