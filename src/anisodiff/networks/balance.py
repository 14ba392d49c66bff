"""Stein's balance: a network's residual must not lean on the state, also not on the states that it makes itself.

The score is s_k = −û_k/V_k + c_k F_k. Stein's identity E[û_k s_k] = −1 says that on states of the forward process

    E[û_k F_k] = 0,      and likewise E[û_k G_k] = 0 for the drift's residual, by the choice of its linear part.

A trained network keeps to it there. On generated states it does not: what does not quite look like an image it takes
for noise, and removes it, so that F leans against û, power is lost in every step, and images come out flat. The lean

    κ_k(t) = E[ŵ_k F_k]/E[ŵ_k²],      ŵ_k = û_k/√V_k

is measured once on trajectories of the model itself and taken out again: F_k − κ_k ŵ_k. With that the power of the
generated states obeys the linear law of the tables, which ends at the data's spectrum (as with a linear score).
One number for every ring of frequencies and every time, in the principal axes of the colours for every axis, too,
since each has a law of its own; no images are needed.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from anisodiff.dct import band_sums, radial_bands

Leaning = tuple[Tensor, Tensor | None]


def rings(height: int, width: int, axes: int | None = None) -> Tensor:
    """Which ring a frequency belongs to, int64 [H, W]: about one ring a pixel of the longer side.

    With ``axes`` [axes, H, W]: rings of every axis, numbered on from axis to axis.
    """
    ring = radial_bands(height, width, max(2, height, width))
    return ring if axes is None else ring + (int(ring.max()) + 1) * torch.arange(axes)[:, None, None]


class Balancing(Protocol):
    """What a model does to its residuals: nothing, measure their lean, or take it out."""

    def __call__(self, w: Tensor, t: Tensor, score: Tensor, drift: Tensor | None) -> Leaning:
        """F and G of states ``w`` = û/√V [B, C, H, W] at times ``t`` [1] or [B], without what leans."""


@dataclass(frozen=True)
class Balance:
    """κ at ascending ``times`` (float64 [n]) for score and drift (float32 [n, R]); linear between times."""

    times: Tensor
    score: Tensor
    drift: Tensor
    ring: Tensor
    """`rings` of the images' size, [H, W] where all channels share them, [C, H, W] where each has its own."""

    def to(self, device: torch.device) -> "Balance":
        """The same on another device."""
        return Balance(*(x.to(device) for x in (self.times, self.score, self.drift, self.ring)))

    def at(self, table: Tensor, t: Tensor) -> Tensor:
        """A table at times ``t`` (float64 [B]), [B, 1 or C, H, W]; before the first time and after the last as
        there.
        """
        t = t.to(self.times.device).contiguous()
        right = torch.searchsorted(self.times, t).clamp(1, len(self.times) - 1)
        low, high = self.times[right - 1], self.times[right]
        weight = ((t - low) / (high - low)).clamp(0, 1).to(table.dtype)[:, None]
        return _spread(torch.lerp(table[right - 1], table[right], weight), self.ring)

    def __call__(self, w: Tensor, t: Tensor, score: Tensor, drift: Tensor | None) -> Leaning:
        """Take the lean out."""
        score = score - self.at(self.score, t).to(w.dtype) * w
        return score, None if drift is None else drift - self.at(self.drift, t).to(w.dtype) * w

    def tensors(self) -> dict[str, Tensor]:
        """For a file; the rings follow from the size."""
        return {
            "times": self.times, "score": self.score, "drift": self.drift, "size": torch.tensor(self.ring.shape)
        }  # fmt: skip

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> "Balance":
        """What `tensors` wrote."""
        *axes, height, width = tensors["size"].tolist()
        return cls(tensors["times"], tensors["score"], tensors["drift"], rings(height, width, *axes))


@dataclass
class Measuring:
    """Takes the lean of a whole ensemble out as it goes, and remembers it by time."""

    ring: Tensor
    found: dict[float, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, w: Tensor, t: Tensor, score: Tensor, drift: Tensor | None) -> Leaning:
        """``w`` holds all trajectories at one time; the last evaluation at a time counts."""
        ring = self.ring
        kappa = _lean(w, score, ring)
        other = torch.zeros_like(kappa) if drift is None else _lean(w, drift, ring)
        self.found[float(t[0])] = kappa.cpu(), other.cpu()
        score = score - _spread(kappa.to(w.dtype)[None], ring) * w
        return score, None if drift is None else drift - _spread(other.to(w.dtype)[None], ring) * w

    def balance(self) -> Balance:
        """What was found."""
        times = sorted(self.found)
        if len(times) < 2:
            raise ValueError(f"a balance needs two times or more, got {len(times)}: take more steps")
        score, drift = (torch.stack([self.found[t][i] for t in times]).float() for i in (0, 1))
        if not bool((score.isfinite() & drift.isfinite()).all()):
            raise ValueError(
                "the trajectories are not finite: the model diverges; take more steps, or train it longer"
            )
        return Balance(torch.tensor(times, dtype=torch.float64), score, drift, self.ring.cpu())


def _spread(values: Tensor, ring: Tensor) -> Tensor:
    """Values of the rings [B, R] at every frequency, [B, 1 or C, H, W]."""
    spread = values[:, ring]
    return spread[:, None] if ring.ndim == 2 else spread


def _lean(w: Tensor, residual: Tensor, ring: Tensor) -> Tensor:
    """κ of every ring, float64 [R], shrunk by what chance alone would give (positive-part James–Stein)."""
    count = int(ring.max()) + 1

    def total(x: Tensor) -> Tensor:
        return band_sums(x.double().sum(0), ring.expand(w.shape[1:]), count)

    squares, modes = total(w * w), total(torch.ones_like(w[:1])) * len(w)
    kappa = total(w * residual) / squares.clamp(min=1e-300)
    chance = total(residual * residual) / squares.clamp(min=1e-300) / modes.clamp(min=1)
    return kappa * (1 - chance / kappa.square().clamp(min=1e-300)).clamp(min=0)
