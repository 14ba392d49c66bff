"""Backward in time: from a terminal state to an image."""

from anisodiff import notation
from anisodiff.processes import Process
from anisodiff.samplers.ancestral import Ancestral
from anisodiff.samplers.contract import Sampler
from anisodiff.samplers.euler import Euler
from anisodiff.samplers.exponential import Exponential
from anisodiff.samplers.ode import Ode

__all__ = ["SAMPLERS", "Ancestral", "Euler", "Exponential", "Ode", "Sampler", "sampler"]

_KINDS: dict[str, type[Sampler]] = {kind.word: kind for kind in (Exponential, Ode, Euler, Ancestral)}
SAMPLERS = tuple(_KINDS)
"""The names."""


def sampler(text: str, process: Process) -> Sampler:
    """A sampler for ``process`` from its notation: ``exponential(order=2)``, ``euler(corrector=0.16)``, ``ode``.

    Unknown names and options are refused with the nearest valid one, and so is a process it cannot integrate.
    """
    found: Sampler = notation.read(text, _KINDS, "sampler")
    return found.prepared(process)
