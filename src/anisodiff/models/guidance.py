"""Classifier-free guidance (Ho and Salimans 2022), in an interval of noise levels (Kynkäänniemi et al. 2024).

    s_w = s_∅ + w (s_c − s_∅)

with the predictions s_c for a class and s_∅ for the null label. w = 1 is the conditional model, w = 0 the
unconditional one, w > 1 amplifies the class. Outside the interval w is 1.

Guidance is applied to the output F of the network. Score, drift, velocity, noise and denoised image are affine in F,
A + L F with A and L functions of state and time, so this is the same as guidance of each of them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff import notation

LARGEST = 100.0


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """Weight and interval of classifier-free guidance."""

    weight: float = 1.0
    """w."""
    interval: tuple[float, float] | None = None
    """Noise levels σ/σ_data, low < … ≤ high, at which guidance is applied; None: all."""

    def __post_init__(self) -> None:
        weight = notation.number(self.weight, "guidance")
        if not 0 <= weight <= LARGEST:
            raise ValueError(f"guidance: got {weight:g}, expected a number from 0 to {LARGEST:g}; 1 is none")
        object.__setattr__(self, "weight", weight)
        if self.interval is None:
            return
        given = tuple(self.interval) if isinstance(self.interval, tuple | list) else ()
        ends = tuple(notation.number(end, "guidance interval") for end in given)
        if len(ends) != 2 or not 0 <= ends[0] < ends[1]:
            raise ValueError(
                f"guidance interval: got {self.interval!r}, expected two noise levels σ/σ_data, low < high"
            )
        object.__setattr__(self, "interval", ends)

    @property
    def acts(self) -> bool:
        """Whether w ≠ 1."""
        return self.weight != 1.0

    def inside(self, level: Tensor) -> Tensor:
        """Whether guidance is applied at noise ``level`` = ln(σ/σ_data), bool."""
        if self.interval is None:
            return torch.ones_like(level, dtype=torch.bool)
        low, high = (math.log(end) if end > 0 else -math.inf for end in self.interval)
        return (level > low) & (level <= high)

    def evaluations(self, level: Tensor) -> Tensor:
        """Network evaluations of a prediction at these levels, int64: 2 with guidance, else 1."""
        both = self.acts and self.weight != 0.0
        return 1 + (self.inside(level) if both else torch.zeros_like(level, dtype=torch.bool)).to(torch.int64)

    def __str__(self) -> str:
        where = "" if self.interval is None else f" for σ/σ_data in ({self.interval[0]:g}, {self.interval[1]:g}]"
        return f"guidance {self.weight:g}{where}"
