"""Anisotropic diffusion, both meanings: Perona–Malik processes as the forward process of a diffusion model."""

from anisodiff.equation import Equation
from anisodiff.generation import Generator, load
from anisodiff.integrators import Exponential, Signal, TamedEuler
from anisodiff.processes import SPDE, ClosedForm, Process, ProcessConfig, process
from anisodiff.schedules import Transition, transition
from anisodiff.stencils import drift, noise_scale

__version__ = "0.1.0"

__all__ = [
    "SPDE",
    "ClosedForm",
    "Equation",
    "Exponential",
    "Generator",
    "Process",
    "ProcessConfig",
    "Signal",
    "TamedEuler",
    "Transition",
    "drift",
    "load",
    "noise_scale",
    "process",
    "transition",
]
