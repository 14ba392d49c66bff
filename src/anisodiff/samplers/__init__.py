"""Backward in time: from a terminal state to an image."""

from anisodiff import notation
from anisodiff.models.base import Model
from anisodiff.processes import Process
from anisodiff.samplers.ancestral import Ancestral
from anisodiff.samplers.base import Sampler
from anisodiff.samplers.deblurring import Deblurring
from anisodiff.samplers.dopri5 import Dopri5
from anisodiff.samplers.euler import PROJECTED, Euler
from anisodiff.samplers.exponential import Exponential
from anisodiff.samplers.flow import Heun, Midpoint
from anisodiff.samplers.ode import Ode
from anisodiff.samplers.posterior import Posterior
from anisodiff.samplers.predictor_corrector import PredictorCorrector

__all__ = [
    "BASELINE_SAMPLERS",
    "SAMPLERS",
    "Ancestral",
    "Deblurring",
    "Dopri5",
    "Euler",
    "Exponential",
    "Heun",
    "Midpoint",
    "Ode",
    "Posterior",
    "PredictorCorrector",
    "Sampler",
    "sampler",
    "usual",
]

_SCORE: tuple[type[Sampler], ...] = (Exponential, Ode, Euler, Ancestral)
_BASELINE: tuple[type[Sampler], ...] = (PredictorCorrector, Heun, Midpoint, Dopri5, Deblurring, Posterior)
_KINDS = {kind.name: kind for kind in (*_SCORE, *_BASELINE)}
SAMPLERS = tuple(kind.name for kind in _SCORE)
"""The names of ours."""
BASELINE_SAMPLERS = tuple(kind.name for kind in _BASELINE)
"""Those of the baselines, each for its own process."""


def sampler(text: str, process: Process) -> Sampler:
    """A sampler for ``process`` from its notation: ``exponential(order=2)``, ``euler(corrector=0.16)``, ``ode``.

    Unknown names and options are refused with the nearest valid one, and so is a process it cannot integrate.
    """
    found: Sampler = notation.read(text, _KINDS, "sampler")
    if not isinstance(process, found.serves):
        known = [word for word, kind in _KINDS.items() if _suits(kind, process)]
        raise ValueError(
            f"the sampler {found.name!r} is not for a {type(process).__name__}; take {' or '.join(map(repr, known))}"
        )
    return found.prepared(process)


def _suits(kind: type[Sampler], process: Process) -> bool:
    """Whether a sampler with its usual options can integrate ``process``."""
    if not isinstance(process, kind.serves):
        return False
    try:
        kind().prepared(process)
    except ValueError:
        return False
    return True


def usual(model: Model, process: Process | None = None) -> Sampler:
    """The sampler that is meant for a model where none is named; with ``process``, made ready for it.

    Where the noise stops at edges (λ2 < ∞) only explicit steps can follow it, along the drift that was learned; where
    none was, along the process's own.
    """
    own = Euler if model.learns == "score" else _KINDS[model.usual]
    if process is None:
        return own()
    return (own() if _suits(own, process) else Euler(drift=PROJECTED)).prepared(process)
