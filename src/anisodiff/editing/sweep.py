"""A sweep over strengths: the same paintings edited at each, with the RMSE to the painting.

RMSE is taken inside the mask (PSNR = −20 log₁₀ RMSE) and grows with the strength. Realism is for the eye to judge.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch
from torch import Tensor

from anisodiff.editing.sdedit import as_mask, edit
from anisodiff.editing.strength import noise_level, strength_range, time_of
from anisodiff.generation import Generator, SamplingConfig, SamplingStep
from anisodiff.generation.config import SamplingKeys
from anisodiff.runtime.progress import Progress, no_progress

POINTS = 8
_LOW, _HIGH = 0.2, 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """One entry for every strength, ascending."""

    strengths: tuple[float, ...]
    times: tuple[float, ...]
    rmse: tuple[float, ...]
    paintings: Tensor = field(repr=False)
    """[paintings, C, H, W], as given."""
    results: Tensor = field(repr=False)
    """[strengths, paintings, seeds, C, H, W]."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "points": [
                {"strength": s, "noise_level": noise_level(s), "t": t, "rmse": e, "psnr": psnr(e)}
                for s, t, e in zip(self.strengths, self.times, self.rmse)
            ]
        }


def psnr(rmse: float) -> float | None:
    """−20 log₁₀ RMSE in dB, of images in [0, 1]; None for equal ones."""
    return -20.0 * math.log10(rmse) if rmse > 0 else None


def default_strengths(generator: Generator) -> tuple[float, ...]:
    """Evenly spaced from 0.2 to 0.95, within the range of the process."""
    low, high = strength_range(generator)
    first = max(_LOW, low + 0.1 * (high - low))
    last = min(_HIGH, high)
    return tuple(min(last, first + (last - first) * k / (POINTS - 1)) for k in range(POINTS))


def sweep(
    generator: Generator, paintings: Tensor, config: SamplingConfig = SamplingConfig(), *, seeds: Sequence[int],
    strengths: Sequence[float] | None = None, repeats: int = 1, mask: Tensor | None = None,
    progress: Progress = no_progress, **keys: Unpack[SamplingKeys],
) -> Sweep:  # fmt: skip
    """Every painting [P, C, H, W] edited at every strength with every seed, as by `edit`.

    ``progress`` counts edited images.
    """
    levels = tuple(sorted(default_strengths(generator) if strengths is None else strengths))
    if not levels:
        raise ValueError("strengths: got none, expected one at least, such as 0.5")
    times = tuple(time_of(generator, None, s) for s in levels)  # refused before anything is computed
    rows, count = paintings.repeat_interleave(len(seeds), 0), len(paintings) * len(seeds)
    free = torch.ones(1, 1, *generator.size, dtype=torch.bool)
    if mask is not None:
        free = as_mask(mask, 1, generator.size)
    share = free.double().mean()
    results, errors, done = [], [], 0

    def watch(step: SamplingStep) -> None:
        if step.number == step.of:
            nonlocal done
            done += len(step.seeds)
            progress(done, count * repeats * len(levels))

    for t in times:
        new = edit(
            generator, rows, config, seeds=tuple(seeds) * len(paintings), t=t, repeats=repeats, mask=mask,
            callback=watch, **keys,
        )  # fmt: skip
        gap = torch.where(free, new.double() - rows.double().cpu(), 0.0)
        errors.append(float((gap.square().mean() / share).sqrt()))
        results.append(new.reshape(len(paintings), len(seeds), *new.shape[1:]))
    return Sweep(
        strengths=levels, times=times, rmse=tuple(errors), paintings=paintings.cpu(), results=torch.stack(results)
    )
