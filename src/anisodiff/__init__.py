"""Anisotropic diffusion, both meanings: Perona–Malik processes as the forward process of a diffusion model."""

import os

# Threads of a convolution that wait for each other should sleep: spinning, as OpenMP does by default, a step takes
# thirty times as long as soon as another process keeps a core busy. Read when torch is loaded, if it is not yet.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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
