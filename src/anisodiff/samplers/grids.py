"""Where the steps of a sampler lie: even steps of a clock that runs from t_min to t_max.

| grid | clock |
|---|---|
| `uniform` | t: the paper's steps Δt |
| `level` | ln(σ/σ_d), the noise level of `models.base`; for ρ > 1 (σ/σ_d)^{1/ρ} (Karras et al. 2022) |
| `adapted` | length of the curve √(N_k/V_k) over all frequencies k: made from the spectrum of the data |

**Why `adapted`.** If the modes of an image are Gaussian and their predictor is the Wiener filter, an ancestral step
of size Q leaves the variance of û' too small by the fraction Q(V'/V − N'/N)/V', which is 4(Δϑ)² to leading order
with tan²ϑ = N/S. On the way to t_min the fraction shrinks by cos²ϑ (where little noise is left there), so that the
image's variance is wrong by 4 Σ_steps cos²ϑ (Δϑ)² = 4 Σ_steps (Δ sin ϑ)². The mean of this over all frequencies is
least when all steps are equally long in the metric Σ_k (d sin ϑ_k)², sin ϑ_k = √(N_k/V_k).

Where a drift is learned, its edges inside (t_min, t_max) are always among the times: the steps are dealt out to the
pieces between edges so that the longest (in the clock) is as short as can be, and are even within each piece.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from anisodiff.models.score import ScoreModel
from anisodiff.tensors import to_float64

Clock = Callable[[ScoreModel, Tensor, float], Tensor]
"""(model, ascending times [M], ρ) → readings [M], not descending."""


def _uniform(model: ScoreModel, t: Tensor, rho: float) -> Tensor:
    return t


def _level(model: ScoreModel, t: Tensor, rho: float) -> Tensor:
    statistics = model.statistics.to(t.device)
    level = torch.cummax(statistics.at(model.level.to(t.device), *statistics.locate(t)).double(), 0).values
    return level if rho == 1.0 else torch.exp(level / rho)


def _adapted(model: ScoreModel, t: Tensor, rho: float) -> Tensor:
    statistics = model.statistics.to(t.device)
    place, square = statistics.locate(t), torch.zeros(len(t) - 1, dtype=torch.float64)
    for row in (statistics.log_signal - statistics.log_noise).double().unbind(-2):  # a row at a time: memory
        height = torch.rsqrt(1.0 + statistics.at(row, *place).exp())  # √(N/V)
        square += torch.cummax(height, 0).values.diff(dim=0).square().sum(1)  # measured numbers: made monotone
    return torch.cat([square.new_zeros(1), square.sqrt().cumsum(0)])


GRIDS: dict[str, Clock] = {"uniform": _uniform, "level": _level, "adapted": _adapted}


def _inner_edges(model: ScoreModel, low: float, high: float) -> Tensor:
    edges = to_float64(model.statistics_edges).cpu()[1:-1]
    return edges[(edges > low) & (edges < high)] if model.learns_drift else edges[:0]


def segments(model: ScoreModel, t_min: float, t_max: float) -> int:
    """The least number of steps: one for every piece between edges of the drift."""
    return len(_inner_edges(model, t_min, t_max)) + 1


def _deal(lengths: list[float], steps: int) -> list[int]:
    """At least one step for each piece; every further one to the piece whose steps are the longest."""
    counts = [1] * len(lengths)
    for _ in range(steps - len(lengths)):
        longest = max(range(len(lengths)), key=lambda k: lengths[k] / counts[k])
        counts[longest] += 1
    return counts


def grid_between(model: ScoreModel, kind: str, steps: int, t_min: float, t_max: float, *, rho: float = 1.0) -> Tensor:
    """``steps`` + 1 descending times t_max … t_min (float64, on the CPU), or one for every edge if that is more."""
    low, high = (torch.tensor([x], dtype=torch.float64) for x in (t_min, t_max))
    inner = _inner_edges(model, t_min, t_max)
    part = torch.linspace(0, 1, 4001, dtype=torch.float64)
    fine = torch.cat([low + (high - low) * part, low * (high / low) ** part, inner, low, high])
    fine = torch.unique(fine.clamp(t_min, t_max))
    clock = GRIDS[kind](model, fine, rho)
    # a clock may stand still (what the statistics cannot tell apart); a little of the time itself keeps it moving
    clock = (clock - clock[0]) / (clock[-1] - clock[0]).clamp(min=1e-12) + 1e-6 * (fine - low) / (high - low)
    ends = torch.cat([low, inner, high])
    place = torch.searchsorted(fine, ends)
    counts = _deal((clock[place[1:]] - clock[place[:-1]]).tolist(), steps)
    pieces = [low]
    for k, count in enumerate(counts):
        begin, end = int(place[k]), int(place[k + 1])
        reading = clock[begin : end + 1]
        wanted = torch.linspace(float(reading[0]), float(reading[-1]), count + 1, dtype=torch.float64)[1:-1]
        right = torch.searchsorted(reading, wanted).clamp(1, len(reading) - 1)
        weight = (wanted - reading[right - 1]) / (reading[right] - reading[right - 1])
        piece = fine[begin : end + 1]
        pieces += [torch.lerp(piece[right - 1], piece[right], weight), ends[k + 1 : k + 2]]
    return torch.cat(pieces).flip(0)
