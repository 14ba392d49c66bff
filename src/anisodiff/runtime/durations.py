"""Durations as text: given or measured (`span`), and estimated (`about`).

    90s, 10min, 1.5h  ──parse_span──▶  seconds  ──span──▶  90 s, 10 min, 90 min
                                       seconds  ──about──▶  58 s, 2.2 min, 12 h, 3.2 days

Experiments store the text of their budget and continue only with an equal one: ``span`` writes what ``parse_span``
reads. Estimates have two digits, or whole units.
"""

import re

_LENGTHS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_SPAN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$")
_DAY = 86400.0


def parse_span(text: str, what: str) -> float:
    """Seconds of ``90s``, ``10min``, ``1.5h``; without a unit: seconds."""
    match = _SPAN.match(str(text).lower())
    if match is None or (match[2] or "s") not in _LENGTHS or not float(match[1]):
        raise ValueError(f"{what}: got {text!r}, expected a time such as 90s, 10min or 1.5h")
    return float(match[1]) * _LENGTHS[match[2] or "s"]


def span(seconds: float) -> str:
    """Four digits; in hours or minutes from two of them on, and for exactly one."""
    for unit in ("h", "min"):
        length = _LENGTHS[unit]
        if seconds >= 2 * length or seconds == length:
            return f"{seconds / length:.4g} {unit}"
    return f"{seconds:.4g} s"


def about(seconds: float) -> str:
    """Two digits or whole units; in days, hours or minutes from two of them on."""
    for unit, length in (("days", _DAY), ("h", _LENGTHS["h"]), ("min", _LENGTHS["min"])):
        if seconds >= 2 * length:
            return _two_digits(seconds / length, unit)
    return _two_digits(seconds, "s")


def _two_digits(value: float, unit: str) -> str:
    return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"
