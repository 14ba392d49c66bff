"""The coefficients α1, α2 (strengths) and λ1, λ2 (anisotropies), from what a user gives.

    0.3, "geometric(0.5, 64)", inf, Power(0, 8)  ──transition──▶  a transition  ──strength──▶    α: finite, ≥ 0
                                                                                ──anisotropy──▶  λ: > 0, or ∞

The kinds of transitions, their formulas and their table stand in `transitions`; here is how one is read, and which of
them may be what.
"""

import math

from anisodiff import notation
from anisodiff.transitions import (
    KINDS,
    Constant,
    ExponentialToIsotropic,
    Geometric,
    Infinite,
    Power,
    Pulse,
    Transition,
)

__all__ = [
    "KINDS",
    "Constant",
    "ExponentialToIsotropic",
    "Geometric",
    "Infinite",
    "Power",
    "Pulse",
    "Transition",
    "anisotropy",
    "strength",
    "transition",
]


def transition(value: Transition | float | str, what: str = "transition") -> Transition:
    """Read a transition: an object as it is, a number as a constant (inf as infinite), a text as in `transitions`."""
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
        raise ValueError(f"{what} must stay finite, got {found}; use a number, geometric, power or pulse")
    return found


def anisotropy(value: Transition | float | str, what: str) -> Transition:
    """A transition that can be a λ: > 0 at all times, ∞ allowed."""
    found = transition(value, what)
    if isinstance(found, Pulse):
        raise ValueError(f"{what} must stay > 0, but a pulse comes and goes, got {found}; it is for α only")
    zero = (isinstance(found, Constant) and found.a == 0) or (isinstance(found, Power) and found.a * found.b == 0)
    if zero:
        raise ValueError(f"{what} must stay > 0, got {found}; isotropy is written infinite")
    return found
