"""Time grids of samplers: equal steps of a monotone function of t, the clock, from t_min to t_max.

| grid | clock |
|---|---|
| `uniform` | t, as in the paper |
| `level` | ln(σ/σ_d), the noise level of `models.base`; for ρ > 1 (σ/σ_d)^{1/ρ} (Karras et al. 2022) |
| `adapted` | arc length of the curve √(N_k/V_k) over all frequencies k |

**`adapted`.** For Gaussian modes and the Wiener filter, an ancestral step of size Q makes the variance of û' too
small by the fraction Q(V'/V − N'/N)/V', which is 4(Δϑ)² to leading order, tan²ϑ = N/S. Down to t_min the fraction
shrinks by cos²ϑ (if little noise is left there), so the relative error of the variance is 4 Σ cos²ϑ (Δϑ)² = 4 Σ (Δ
sin ϑ)² over the steps. Its mean over frequencies is minimal for steps of equal length in the metric Σ_k (d sin ϑ_k)²,
sin ϑ_k = √(N_k/V_k).

If the drift is learned, its edges inside (t_min, t_max) are always among the times. Steps are distributed over the
segments between edges so that the longest step (in the clock) is as short as possible, and are equal in each segment.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from anisodiff.models.score import ScoreModel
from anisodiff.tensors import interpolate, to_float64

Clock = Callable[[ScoreModel, Tensor, float], Tensor]
"""(model, ascending times [M], ρ) → clock [M], not descending."""


def _uniform(model: ScoreModel, t: Tensor, rho: float) -> Tensor:
    return t


def _level(model: ScoreModel, t: Tensor, rho: float) -> Tensor:
    statistics = model.statistics.to(t.device)
    level = torch.cummax(statistics.at(model.level.to(t.device), *statistics.locate(t)).double(), 0).values
    return level if rho == 1.0 else torch.exp(level / rho)


def _adapted(model: ScoreModel, t: Tensor, rho: float) -> Tensor:
    statistics = model.statistics.to(t.device)
    where, square = statistics.locate(t), torch.zeros(len(t) - 1, dtype=torch.float64)
    for row in (statistics.log_signal - statistics.log_noise).double().unbind(-2):  # one row at a time saves memory
        height = torch.rsqrt(1.0 + statistics.at(row, *where).exp())  # √(N/V)
        square += torch.cummax(height, 0).values.diff(dim=0).square().sum(1)  # estimates need not be monotone
    return torch.cat([square.new_zeros(1), square.sqrt().cumsum(0)])


GRIDS: dict[str, Clock] = {"uniform": _uniform, "level": _level, "adapted": _adapted}


def _inner_edges(model: ScoreModel, low: float, high: float) -> Tensor:
    edges = to_float64(model.statistics_edges).cpu()[1:-1]
    return edges[(edges > low) & (edges < high)] if model.learns_drift else edges[:0]


def segments(model: ScoreModel, t_min: float, t_max: float) -> int:
    """The number of segments between edges of the drift, and so of steps at least."""
    return len(_inner_edges(model, t_min, t_max)) + 1


def _distribute(lengths: list[float], steps: int) -> list[int]:
    """At least one step per segment; each further one goes to the segment with the longest steps."""
    counts = [1] * len(lengths)
    for _ in range(steps - len(lengths)):
        longest = max(range(len(lengths)), key=lambda k: lengths[k] / counts[k])
        counts[longest] += 1
    return counts


def grid_between(model: ScoreModel, kind: str, steps: int, t_min: float, t_max: float, *, rho: float = 1.0) -> Tensor:
    """``steps`` + 1 descending times t_max … t_min (float64, on the CPU); at least one step per segment."""
    low, high = (torch.tensor([x], dtype=torch.float64) for x in (t_min, t_max))
    inner = _inner_edges(model, t_min, t_max)
    part = torch.linspace(0, 1, 4001, dtype=torch.float64)
    fine = torch.cat([low + (high - low) * part, low * (high / low) ** part, inner, low, high])
    fine = torch.unique(fine.clamp(t_min, t_max))
    clock = GRIDS[kind](model, fine, rho)
    # make the clock strictly increasing
    clock = (clock - clock[0]) / (clock[-1] - clock[0]).clamp(min=1e-12) + 1e-6 * (fine - low) / (high - low)
    ends = torch.cat([low, inner, high])
    index = torch.searchsorted(fine, ends)
    counts = _distribute((clock[index[1:]] - clock[index[:-1]]).tolist(), steps)
    times = [low]
    for k, count in enumerate(counts):
        segment = slice(int(index[k]), int(index[k + 1]) + 1)
        x, y = clock[segment], fine[segment]
        steps_x = torch.linspace(float(x[0]), float(x[-1]), count + 1, dtype=torch.float64)[1:-1]
        times += [interpolate(steps_x, x, y), ends[k + 1 : k + 2]]
    return torch.cat(times).flip(0)
