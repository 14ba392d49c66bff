"""Ways to learn a score: (process, x0, t) → (u_t, target)."""

from anisodiff.objectives.closed_form import Exact
from anisodiff.objectives.contract import Draw, Objective
from anisodiff.objectives.local import Local
from anisodiff.processes import SPDE, ClosedForm, Process

__all__ = ["Draw", "Exact", "Local", "Objective", "objective_for"]


def objective_for(process: Process) -> Objective:
    """The objective of least variance that is unbiased for ``process``."""
    if isinstance(process, ClosedForm):
        return Exact(process)
    if isinstance(process, SPDE):
        return Local(process)
    raise ValueError(f"no objective is known for a {type(process).__name__}")
