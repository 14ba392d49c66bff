"""Transitions of the coefficients α1, α2 (strengths) and λ1, λ2 (anisotropies) over the time 0 … T.

Every transition is a value, 1/value and an integral, each a function of time in float64. Anisotropies are only
ever used as 1/λ, so that λ = ∞ (isotropy) is an ordinary zero.

| kind | value at t | paper |
|---|---|---|
| `constant(a)`, or a bare number | a | design figure |
| `geometric(a, b)` | a·(b/a)^(t/T) | Eq. geometric transition |
| `power(a, b, r)` | a + (b−a)·(t/T)^r | supplement, figure of the transitions (b) |
| `pulse(total, center, width)` | total/(4·width·cosh²((t−center)/(2·width))), whose integral is a logistic step | |
| `cutoff(total, end, r)` | rate of total·(t/end)^r up to the time end, 0 after it | |
| `exponential(λmin, k)` | λmin·(e^{kT}−1)/(e^{k(T−t)}−1), ∞ at T | supplement, figure of the transitions (a) |
| `infinite` | ∞ | isotropy |

What a user gives is read by `transition`; `strength` and `anisotropy` say which kinds may be an α or a λ:

    0.3, "geometric(0.5, 64)", inf, Power(0, 8)  ──transition──▶  a transition  ──strength──▶    α: finite, ≥ 0
                                                                                ──anisotropy──▶  λ: > 0, or ∞
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff import notation


class Transition(ABC):
    """A coefficient as a function of time; subclasses are frozen dataclasses."""

    @abstractmethod
    def value(self, t: Tensor, T: float) -> Tensor:
        """The coefficient at times ``t`` (float64, any shape)."""

    @abstractmethod
    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """∫_s^t value(r) dr, without cancellation where s and t are close."""

    def inverse(self, t: Tensor, T: float) -> Tensor:
        """1/value at times ``t``."""
        return 1.0 / self.value(t, T)

    @property
    def jump(self) -> float | None:
        """The time at which the value jumps, where it does; the value there is the limit from the left."""
        return None


def _positive(value: float, what: str, *, zero: bool = False) -> float:
    value = notation.number(value, what)
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{what} must be finite and {'≥' if zero else '>'} 0, got {value:g}")
    if value and not 1e-12 <= value <= 1e12:
        raise ValueError(f"{what} must lie in [1e-12, 1e12], got {value:g}")
    return value


def _power_gap(x: Tensor, y: Tensor, n: float) -> Tensor:
    """yⁿ − xⁿ for 0 ≤ x ≤ y, by expm1 of a logarithm."""
    ratio = torch.where(y > 0, x / torch.where(y > 0, y, 1.0), 0.0)  # in [0, 1]
    return -(y**n) * torch.expm1(n * torch.log(ratio))


@dataclass(frozen=True)
class Constant(Transition):
    """a, at all times."""

    a: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", _positive(self.a, "a constant", zero=True))

    def value(self, t: Tensor, T: float) -> Tensor:
        return torch.full_like(t, self.a)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """a·(t−s)."""
        return self.a * (t - s)

    def __str__(self) -> str:
        return notation.plain(self.a)


@dataclass(frozen=True)
class Geometric(Transition):
    """a·(b/a)^(t/T)."""

    a: float
    b: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", _positive(self.a, "the start of a geometric transition"))
        object.__setattr__(self, "b", _positive(self.b, "the end of a geometric transition"))

    def value(self, t: Tensor, T: float) -> Tensor:
        return self.a * torch.exp((math.log(self.b) - math.log(self.a)) / T * t)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """value(s)·(e^{κ(t−s)} − 1)/κ with κ = ln(b/a)/T; value·(t−s) when a = b."""
        rate = (math.log(self.b) - math.log(self.a)) / T
        if rate == 0.0:
            return self.a * (t - s)
        return self.value(s, T) * torch.expm1(rate * (t - s)) / rate

    def __str__(self) -> str:
        return notation.write("geometric", self)


@dataclass(frozen=True)
class Power(Transition):
    """a + (b−a)·(t/T)^r."""

    a: float
    b: float
    r: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", _positive(self.a, "the start of a power transition", zero=True))
        object.__setattr__(self, "b", _positive(self.b, "the end of a power transition", zero=True))
        object.__setattr__(self, "r", _positive(self.r, "the order r of a power transition"))

    def value(self, t: Tensor, T: float) -> Tensor:
        return self.a + (self.b - self.a) * (t / T) ** self.r

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """a(t−s) + (b−a)·T/(r+1)·[(t/T)^{r+1} − (s/T)^{r+1}], the bracket by expm1 of a logarithm."""
        n = self.r + 1.0
        return self.a * (t - s) + (self.b - self.a) * T / n * _power_gap(s / T, t / T, n)

    def __str__(self) -> str:
        return notation.write("power", self)


@dataclass(frozen=True)
class Pulse(Transition):
    """total·l'(t), l(t) = 1/(1 + e^{−(t−center)/width}): grows as e^{t/width} before ``center``, is gone after it.

    With noise σ(t) ∝ e^{ct} and width = 1/(pc) the smoothing ∫α1 grows as σ^p until it has reached ``total``.
    """

    total: float
    center: float
    width: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", _positive(self.total, "the total of a pulse"))
        object.__setattr__(self, "center", _positive(self.center, "the center of a pulse", zero=True))
        object.__setattr__(self, "width", _positive(self.width, "the width of a pulse"))

    def value(self, t: Tensor, T: float) -> Tensor:
        x = (t - self.center) / self.width
        return self.total / self.width * torch.sigmoid(x) * torch.sigmoid(-x)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """total·(l(t) − l(s)) = total·l(t)·(1 − l(s))·(1 − e^{−(t−s)/width})."""
        x, y = (s - self.center) / self.width, (t - self.center) / self.width
        return -self.total * torch.sigmoid(y) * torch.sigmoid(-x) * torch.expm1(x - y)

    def __str__(self) -> str:
        return notation.write("pulse", self)


@dataclass(frozen=True)
class Cutoff(Transition):
    """r·total/end·(t/end)^{r−1} for t ≤ end, 0 after it: ∫_0^t = total·(t/end)^r until ``end``, then ``total``."""

    total: float
    end: float
    r: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", _positive(self.total, "the total of a cutoff"))
        object.__setattr__(self, "end", _positive(self.end, "the end of a cutoff"))
        object.__setattr__(self, "r", _positive(self.r, "the order r of a cutoff"))
        if self.r < 1:
            raise ValueError(f"the order r of a cutoff must be ≥ 1, got {self.r:g}")

    def value(self, t: Tensor, T: float) -> Tensor:
        rate = self.r * self.total / self.end * (t.clamp(max=self.end) / self.end) ** (self.r - 1)
        return torch.where(t <= self.end, rate, 0.0)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """total·[(t/end)^r − (s/end)^r], both no later than ``end``, without cancellation."""
        return self.total * _power_gap(s.clamp(max=self.end) / self.end, t.clamp(max=self.end) / self.end, self.r)

    @property
    def jump(self) -> float:
        return self.end

    def __str__(self) -> str:
        return notation.write("cutoff", self)


@dataclass(frozen=True)
class ExponentialToIsotropic(Transition):
    """λmin·(e^{kT}−1)/(e^{k(T−t)}−1): anisotropic at 0, isotropic (∞) at T. For λ only."""

    a: float
    k: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", _positive(self.a, "λmin of an exponential transition"))
        object.__setattr__(self, "k", _positive(self.k, "the rate k of an exponential transition"))

    def value(self, t: Tensor, T: float) -> Tensor:
        return 1.0 / self.inverse(t, T)

    def inverse(self, t: Tensor, T: float) -> Tensor:
        """(e^{k(T−t)}−1)/(λmin·(e^{kT}−1)): exactly 0 at T. Written with decaying exponentials: no overflow."""
        decayed = torch.exp(-self.k * t) * torch.expm1(-self.k * (T - t)) / math.expm1(-self.k * T)
        return decayed / self.a

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """Not defined up to T, and never needed: strengths refuse this transition."""
        raise ValueError("an exponential-to-isotropic transition has no finite integral; use it for λ only")

    def __str__(self) -> str:
        return notation.write("exponential", self)


@dataclass(frozen=True)
class Infinite(Transition):
    """λ = ∞: isotropy. For λ only."""

    def value(self, t: Tensor, T: float) -> Tensor:
        return torch.full_like(t, math.inf)

    def inverse(self, t: Tensor, T: float) -> Tensor:
        return torch.zeros_like(t)

    def integral(self, s: Tensor, t: Tensor, T: float) -> Tensor:
        """Not defined: strengths refuse this transition."""
        raise ValueError("an infinite transition has no finite integral; use it for λ only")

    def __str__(self) -> str:
        return "infinite"


KINDS: dict[str, type[Transition]] = {
    "constant": Constant,
    "geometric": Geometric,
    "power": Power,
    "pulse": Pulse,
    "cutoff": Cutoff,
    "exponential": ExponentialToIsotropic,
    "infinite": Infinite,
}


def transition(value: Transition | float | str, what: str = "transition") -> Transition:
    """Read a transition: an object as it is, a number as a constant (inf as infinite), a text as above."""
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
    try:
        return Constant(value)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def strength(value: Transition | float | str, what: str) -> Transition:
    """A transition that can be an α: finite and ≥ 0 at all times."""
    found = transition(value, what)
    if isinstance(found, Infinite | ExponentialToIsotropic):
        raise ValueError(f"{what} must stay finite, got {found}; use a number, geometric, power, pulse or cutoff")
    return found


def anisotropy(value: Transition | float | str, what: str) -> Transition:
    """A transition that can be a λ: > 0 at all times, ∞ allowed."""
    found = transition(value, what)
    if isinstance(found, Pulse | Cutoff):
        raise ValueError(f"{what} must stay > 0, got {found}, which vanishes; it is for α only")
    zero = (isinstance(found, Constant) and found.a == 0) or (isinstance(found, Power) and found.a * found.b == 0)
    if zero:
        raise ValueError(f"{what} must stay > 0, got {found}; isotropy is written infinite")
    return found
