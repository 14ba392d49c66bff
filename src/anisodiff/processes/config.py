"""A process of the SPDE from plain values: keys of a YAML file, of ``--set KEY=VALUE`` and of `anisodiff.process`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anisodiff import notation
from anisodiff.cartoons import read_filter
from anisodiff.equation import Equation
from anisodiff.integrators import Exponential, Signal, TamedEuler, TimeStep
from anisodiff.processes.base import Process
from anisodiff.processes.closed_form import ClosedForm
from anisodiff.processes.spde import SPDE
from anisodiff.stencils import STENCILS


@dataclass(frozen=True)
class Exact:
    """``exact``: no time steps; for linear equations (`ClosedForm`)."""

    def __str__(self) -> str:
        return "exact"


STEPS: dict[str, type] = {"tamed": TamedEuler, "exponential": Exponential, "signal": Signal, "exact": Exact}


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """All keys of a process; coefficients and ``step`` as numbers or in the notation of `schedules`."""

    diffusivity: Any
    intensity: Any
    drift_anisotropy: Any = "infinite"
    noise_anisotropy: Any = "infinite"
    correlation_length: Any = 0.0
    T: Any = 2.0
    stencil: Any = "flux"
    step: Any = "exponential"
    condition: Any = "none"
    """A filter of `cartoons`: the filtered image is a further input of the network. Or none."""

    def build(self) -> Process:
        equation = Equation(
            diffusivity=self.diffusivity,
            intensity=self.intensity,
            drift_anisotropy=self.drift_anisotropy,
            noise_anisotropy=self.noise_anisotropy,
            correlation_length=self.correlation_length,
            T=self.T,
        )
        notation.check_choice(self.stencil, STENCILS, "stencil")
        condition = None if self.condition in ("none", None) else read_filter(self.condition, "condition")
        step = self.step
        if not isinstance(step, TimeStep | Exact):
            step = notation.read(str(step), STEPS, "step")
        if isinstance(step, Exact):
            if self.stencil != "flux":
                raise ValueError(f"step 'exact' needs stencil='flux', got {self.stencil!r}; or step='tamed'")
            return ClosedForm(equation=equation, condition=condition)
        return SPDE(equation=equation, stencil=self.stencil, step=step, condition=condition)


KEYS = tuple(f.name for f in dataclasses.fields(ProcessConfig))


def check_keys(given: Mapping[Any, Any], valid: tuple[str, ...], what: str) -> dict[str, Any]:
    """``given``; a ValueError for an unknown key."""
    for key in given:
        if key not in valid:
            symbol = notation.SYMBOLS.get(str(key))
            hint = f"did you mean {symbol!r}?" if symbol in valid else notation.nearest(str(key), valid)
            raise ValueError(f"{what}: unknown key {key!r}; {hint}")
    return {str(k): v for k, v in given.items()}
