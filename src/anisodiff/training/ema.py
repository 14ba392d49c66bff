"""Moving averages of the weights, several at once, after update number n = 1, 2, …:

    θ̂ ← θ̂ + (1 − β_n)(θ − θ̂)

constant   β_n = min(β, n/(n + 9)): short at first, so that the random start is soon forgotten (Song et al. 2021)
power      β_n = (1 − 1/n)^(γ+1): weights θ_n ∝ n^γ, a profile that grows with the run (Karras et al. 2024);
           γ from the profile's width relative to the run, σ_rel = (γ+1)^{1/2} (γ+2)^{−1} (γ+3)^{−1/2}
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff import notation


@dataclass(frozen=True)
class Constant:
    """One decay per update."""

    decay: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "decay", notation.number(self.decay, "decay"))
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay: got {self.decay:g}, expected 0 ≤ decay < 1")

    def beta(self, n: int) -> float:
        """β_n."""
        return min(self.decay, n / (n + 9))

    def __str__(self) -> str:
        return notation.write("constant", self)


@dataclass(frozen=True)
class Power:
    """A power-function profile of relative width ``std`` = σ_rel."""

    std: float

    def __post_init__(self) -> None:
        notation.check_number(self, "std", 0.001, 0.28, what="std in units of the run's length")

    @property
    def exponent(self) -> float:
        """γ, by bisection: σ_rel falls strictly with γ."""
        low, high = 0.0, 2.0 / self.std
        for _ in range(200):
            middle = 0.5 * (low + high)
            wide = (middle + 1) ** 0.5 / ((middle + 2) * (middle + 3) ** 0.5) > self.std
            low, high = (middle, high) if wide else (low, middle)
        return 0.5 * (low + high)

    def beta(self, n: int) -> float:
        """β_n."""
        return float((1.0 - 1.0 / n) ** (self.exponent + 1.0))

    def __str__(self) -> str:
        return notation.write("power", self)


Profile = Constant | Power
PROFILES: dict[str, type] = {"constant": Constant, "power": Power}


def profile(text: str) -> Profile:
    """A profile in the notation ``constant(0.999)``, ``power(0.05)``."""
    found = notation.read(text, PROFILES, "ema")
    assert isinstance(found, Constant | Power)
    return found


class EMA:
    """The averages of some weights, one set of tensors per profile; all start at the weights themselves."""

    def __init__(self, weights: Mapping[str, Tensor], profiles: tuple[Profile, ...]) -> None:
        self.names, self.profiles = tuple(weights), profiles
        self._weights = [w.detach() for w in weights.values()]
        self._sets = [[w.clone() for w in self._weights] for _ in profiles]

    @torch.no_grad()
    def update(self, n: int, good: Tensor) -> None:
        """Update number ``n``, where ``good`` (a tensor, 0 or 1: never looked at by the host) is 1."""
        for shape, ema_weights in zip(self.profiles, self._sets):
            change = torch._foreach_sub(self._weights, ema_weights)
            torch._foreach_mul_(change, good.to(self._weights[0].dtype) * (1.0 - shape.beta(n)))
            torch._foreach_add_(ema_weights, change)

    def of(self, number: int) -> dict[str, Tensor]:
        """The average of one profile, by name."""
        return dict(zip(self.names, self._sets[number]))

    @torch.no_grad()
    def load(self, number: int, weights: Mapping[str, Tensor]) -> None:
        """Take over an average."""
        for name, mine in self.of(number).items():
            mine.copy_(weights[name])
