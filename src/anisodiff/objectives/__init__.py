"""Ways to learn a score: (process, x0, t) → (u_t, target)."""

from collections.abc import Callable

from anisodiff import notation
from anisodiff.objectives.ablations import InitialState, TotalNoise
from anisodiff.objectives.closed_form import Exact
from anisodiff.objectives.conditional import Deblurring, OfImage, ScaledNoise, Velocity
from anisodiff.objectives.contract import Draw, Objective, Regression
from anisodiff.objectives.local import Local
from anisodiff.processes import SPDE, ClosedForm, Process

__all__ = [
    "NAMES",
    "Deblurring",
    "Draw",
    "Exact",
    "InitialState",
    "Local",
    "Objective",
    "OfImage",
    "Regression",
    "ScaledNoise",
    "TotalNoise",
    "Velocity",
    "objective_for",
]

_SIMULATED: dict[str, Callable[[SPDE], Objective]] = {"local": Local, "total-noise": TotalNoise, "x0": InitialState}
NAMES = ("auto", "exact", *_SIMULATED)
"""`auto` is `exact` or `local`: unbiased, with the least variance. `total-noise` and `x0` are ablations."""


def objective_for(process: Process, name: str = "auto") -> Objective:
    """The objective called ``name`` for ``process``; one that does not fit the process is refused."""
    if name not in NAMES:
        raise ValueError(f"unknown objective {name!r}; {notation.nearest(str(name), NAMES)}")
    if isinstance(process, ClosedForm):
        if name in _SIMULATED:
            raise ValueError(
                f"objective {name!r} is for processes that are simulated, and this one is solved exactly; "
                "set objective='exact', or the process's step='exponential'"
            )
        return Exact(process)
    if isinstance(process, SPDE):
        if name == "exact":
            raise ValueError(
                f"objective 'exact' is for linear processes with step='exact', got step='{process.step}'; "
                "set objective='local'"
            )
        if process.step.plain_noise and name not in ("auto", "local"):
            raise ValueError(
                f"objective {name!r} takes the noise for smoothed, which step='{process.step}' does not; "
                "set objective='local'"
            )
        return _SIMULATED["local" if name == "auto" else name](process)
    raise ValueError(f"no objective is known for a {type(process).__name__}")
