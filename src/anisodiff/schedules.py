"""Transitions of the coefficients α1, α2 (strengths) and λ1, λ2 (anisotropies) over the time 0 … T.

A transition has a value, 1/value and an integral, each a function of time in float64. The equation uses λ as 1/λ
only, so λ = ∞ (isotropy) is zero.

| kind | value at t | paper |
|---|---|---|
| `constant(a)`, or a bare number | a | figure of the design space |
| `geometric(a, b)` | a·(b/a)^(t/T) | Eq. 10 |
| `power(a, b, r)` | a + (b−a)·(t/T)^r | supplement, figure of the transitions (b) |
| `pulse(total, center, width)` | total/(4·width·cosh²((t−center)/(2·width))) | |
| `cutoff(total, end, r)` | d/dt of total·(t/end)^r for t ≤ end, 0 after it | |
| `exponential(λmin, k)` | λmin·(e^{kT}−1)/(e^{k(T−t)}−1), ∞ at T | Eq. 11 |
| `infinite` | ∞ | isotropy |

`transition` reads a number, text or object; `strength` accepts those that can be an α (finite, ≥ 0), `anisotropy`
those that can be a λ (> 0, or ∞).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from anisodiff import notation


def _positive(value: float, what: str, *, zero: bool = False) -> float:
    value = notation.number(value, what)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{what} must be finite and {'≥' if zero else '>'} 0, got {value:g}")
    if value and not 1e-12 <= value <= 1e12:
        raise ValueError(f"{what} must lie in [1e-12, 1e12], got {value:g}")
    return value


@dataclass(frozen=True)
class Transition(ABC):
    """A coefficient as a function of time; the fields of a subclass are its parameters."""

    word: ClassVar[str]
    """Its name in the notation."""
    may_be_zero: ClassVar[tuple[str, ...]] = ()
    """Parameters that need not be > 0."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = _positive(getattr(self, f.name), f"{f.name} of {self.word}", zero=f.name in self.may_be_zero)
            object.__setattr__(self, f.name, value)

    @abstractmethod
    def value(self, t: Tensor, T: float) -> Tensor:
        """The coefficient at times ``t`` (float64, any shape)."""

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """∫_s^t value(r) dr, without cancellation where s and t are close."""
        raise ValueError(f"{self.word} has no finite integral; use it for λ only")

    def inverse(self, t: Tensor, T: float) -> Tensor:
        """1/value at times ``t``."""
        return 1.0 / self.value(t, T)

    @property
    def jump(self) -> float | None:
        """The time of a discontinuity, where the value is the limit from the left; None without one."""
        return None

    def __str__(self) -> str:
        return notation.write(self.word, self)


def _power_gap(x: Tensor, y: Tensor, n: float) -> Tensor:
    """yⁿ − xⁿ for 0 ≤ x ≤ y, by expm1 of a logarithm."""
    ratio = torch.where(y > 0, x / torch.where(y > 0, y, 1.0), 0.0)  # in [0, 1]
    return -(y**n) * torch.expm1(n * torch.log(ratio))


@dataclass(frozen=True)
class Constant(Transition):
    """a."""

    word: ClassVar[str] = "constant"
    may_be_zero: ClassVar[tuple[str, ...]] = ("a",)

    a: float

    def value(self, t: Tensor, T: float) -> Tensor:
        return torch.full_like(t, self.a)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """a·(t−s)."""
        return self.a * (t - s)

    def __str__(self) -> str:
        return notation.plain(self.a)


@dataclass(frozen=True)
class Geometric(Transition):
    """a·(b/a)^(t/T) (paper, Eq. 10)."""

    word: ClassVar[str] = "geometric"

    a: float
    b: float

    def value(self, t: Tensor, T: float) -> Tensor:
        return self.a * torch.exp((math.log(self.b) - math.log(self.a)) / T * t)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """value(s)·(e^{κ(t−s)} − 1)/κ with κ = ln(b/a)/T; value·(t−s) when a = b."""
        rate = (math.log(self.b) - math.log(self.a)) / T
        if rate == 0.0:
            return self.a * (t - s)
        return self.value(s, T) * torch.expm1(rate * (t - s)) / rate


@dataclass(frozen=True)
class Power(Transition):
    """a + (b−a)·(t/T)^r."""

    word: ClassVar[str] = "power"
    may_be_zero: ClassVar[tuple[str, ...]] = ("a", "b")

    a: float
    b: float
    r: float = 1.0

    def value(self, t: Tensor, T: float) -> Tensor:
        return self.a + (self.b - self.a) * (t / T) ** self.r

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """a(t−s) + (b−a)·T/(r+1)·[(t/T)^{r+1} − (s/T)^{r+1}]."""
        n = self.r + 1.0
        return self.a * (t - s) + (self.b - self.a) * T / n * _power_gap(s / T, t / T, n)


@dataclass(frozen=True)
class Pulse(Transition):
    """total·l'(t), l(t) = 1/(1 + e^{−(t−center)/width}): ∝ e^{t/width} before ``center``, ∝ e^{−t/width} after it.

    With noise σ(t) ∝ e^{ct} and width = 1/(pc) the smoothing ∫α1 grows as σ^p until it reaches ``total``.
    """

    word: ClassVar[str] = "pulse"
    may_be_zero: ClassVar[tuple[str, ...]] = ("center",)

    total: float
    center: float
    width: float

    def value(self, t: Tensor, T: float) -> Tensor:
        x = (t - self.center) / self.width
        return self.total / self.width * torch.sigmoid(x) * torch.sigmoid(-x)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """total·(l(t) − l(s)) = total·l(t)·(1 − l(s))·(1 − e^{−(t−s)/width})."""
        x, y = (s - self.center) / self.width, (t - self.center) / self.width
        return -self.total * torch.sigmoid(y) * torch.sigmoid(-x) * torch.expm1(x - y)


@dataclass(frozen=True)
class Cutoff(Transition):
    """r·total/end·(t/end)^{r−1} for t ≤ end, 0 after it: ∫_0^t = total·(t/end)^r until ``end``, then ``total``."""

    word: ClassVar[str] = "cutoff"

    total: float
    end: float
    r: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.r < 1:
            raise ValueError(f"r of cutoff must be ≥ 1, got {self.r:g}")

    def value(self, t: Tensor, T: float) -> Tensor:
        rate = self.r * self.total / self.end * (t.clamp(max=self.end) / self.end) ** (self.r - 1)
        return torch.where(t <= self.end, rate, 0.0)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """total·[(t/end)^r − (s/end)^r], both no later than ``end``."""
        return self.total * _power_gap(s.clamp(max=self.end) / self.end, t.clamp(max=self.end) / self.end, self.r)

    @property
    def jump(self) -> float:
        return self.end


@dataclass(frozen=True)
class ExponentialToIsotropic(Transition):
    """λmin·(e^{kT}−1)/(e^{k(T−t)}−1) (paper, Eq. 11): λmin at 0, isotropic (∞) at T. For λ only."""

    word: ClassVar[str] = "exponential"

    a: float
    """λmin."""
    k: float = 0.5

    def value(self, t: Tensor, T: float) -> Tensor:
        return 1.0 / self.inverse(t, T)

    def inverse(self, t: Tensor, T: float) -> Tensor:
        """(e^{k(T−t)}−1)/(λmin·(e^{kT}−1)): exactly 0 at T. In decaying exponentials, which do not overflow."""
        decayed = torch.exp(-self.k * t) * torch.expm1(-self.k * (T - t)) / math.expm1(-self.k * T)
        return decayed / self.a


@dataclass(frozen=True)
class Infinite(Transition):
    """λ = ∞: isotropy. For λ only."""

    word: ClassVar[str] = "infinite"

    def value(self, t: Tensor, T: float) -> Tensor:
        return torch.full_like(t, math.inf)

    def inverse(self, t: Tensor, T: float) -> Tensor:
        return torch.zeros_like(t)


KINDS: dict[str, type[Transition]] = {
    kind.word: kind for kind in (Constant, Geometric, Power, Pulse, Cutoff, ExponentialToIsotropic, Infinite)
}


def transition(value: Transition | float | str, what: str = "transition", rule: str = "must be ≥ 0") -> Transition:
    """A transition from an object, a number (inf: infinite), or text in the notation above.

    ``what`` and ``rule`` are for the message about a negative number.
    """
    if isinstance(value, Transition):
        return value
    if isinstance(value, str):
        if value.strip() == "zero":
            return Constant(0.0)
        try:
            value = float(value)
        except ValueError:
            result: Transition = notation.read(str(value), KINDS, what)
            return result
    value = notation.number(value, what)
    if value == math.inf:
        return Infinite()
    if value < 0:
        raise ValueError(f"{what} {rule}, got {value:g}")
    return Constant(_positive(value, what, zero=True))


def strength(value: Transition | float | str, what: str) -> Transition:
    """As `transition`, for an α: finite and ≥ 0 at all times."""
    result = transition(value, what)
    if isinstance(result, Infinite | ExponentialToIsotropic):
        raise ValueError(f"{what} must stay finite, got {result}; use a number, geometric, power, pulse or cutoff")
    return result


def anisotropy(value: Transition | float | str, what: str) -> Transition:
    """As `transition`, for a λ: > 0 at all times, ∞ allowed."""
    rule = "must stay > 0 (infinite: isotropy)"
    result = transition(value, what, rule)
    if isinstance(result, Pulse | Cutoff):
        raise ValueError(f"{what} must stay > 0, got {result}, which vanishes; it is for α only")
    if (isinstance(result, Constant) and result.a == 0) or (isinstance(result, Power) and result.a * result.b == 0):
        raise ValueError(f"{what} {rule}, got {result}")
    return result
