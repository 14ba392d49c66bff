"""Where in a cell of time the tables are measured, as fractions of the cell, ascending to 1; below the first, values
are held."""

import math

import torch
from torch import Tensor

_SHORT = (0.04, 0.15, 0.3, 0.5, 0.75, 1.0)
_POINTS, _MANY = 40, 8


def table_phases(cells: int) -> Tensor:
    """For ``cells`` windows, [P] float64. The first place lies where a target's variance begins to diverge.

    Short cells (eight or more) need six places. Fewer and longer ones need more: half of them even in ln(phase), for
    the noise begins as a power of t, half even in phase.
    """
    if cells >= _MANY:
        return torch.tensor(_SHORT, dtype=torch.float64)
    first, count = _SHORT[0] * cells / 10, max(len(_SHORT), _POINTS // cells)
    fine = torch.exp(torch.linspace(math.log(first), 0.0, 4001, dtype=torch.float64))
    place = torch.linspace(0.0, 1.0, 4001, dtype=torch.float64) + (fine - first) / (1 - first)
    index = torch.searchsorted(place, torch.linspace(0.0, 2.0, count, dtype=torch.float64)).clamp(max=4000)
    index[-1] = 4000
    return fine[index]


def from_the_start(phases: Tensor) -> Tensor:
    """The same places and one at the very beginning, for cells in which nothing diverges."""
    return torch.cat([phases.new_tensor([1e-3]), phases])


def step_phases(steps: int) -> Tensor:
    """For cells of ``steps`` time steps each: ends of steps, six at most, where single steps are learned."""
    chosen = {max(1, round(steps * phase)) for phase in _SHORT}
    return torch.tensor(sorted(chosen), dtype=torch.float64) / steps


def smooth_phases() -> Tensor:
    """Where nothing diverges: even, but for the very beginning of a cell, where the first has no noise yet."""
    return torch.tensor([1e-3, 0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64)
