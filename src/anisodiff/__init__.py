"""Diffusion models whose forward process is Perona–Malik anisotropic diffusion plus noise.

The public names are imported when they are first used: ``import anisodiff`` by itself does not even load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from anisodiff.version import __version__ as __version__

_PUBLIC = {
    "ClosedForm": "processes",
    "Equation": "equation",
    "Exponential": "integrators",
    "Generator": "generation",
    "Guidance": "generation",
    "Images": "generation",
    "Process": "processes",
    "ProcessConfig": "processes",
    "SPDE": "processes",
    "Signal": "integrators",
    "TamedEuler": "integrators",
    "TrainConfig": "training",
    "Transition": "schedules",
    "drift": "stencils",
    "edit": "editing",
    "evaluate": "metrics",
    "load": "generation",
    "noise_scale": "stencils",
    "process": "registry",
    "save_grid": "io.grids",
    "solve": "editing",
    "train": "generation",
    "transition": "schedules",
}
"""Public name → the module that defines it."""
_EXTRA = {"AnisoDiffPipeline": "pipelines.pipeline"}
"""The same for names that need an extra package: ``from anisodiff import *`` leaves them out."""

__all__ = [*_PUBLIC, "__version__"]  # noqa: PLE0604  (strings, every one)

if TYPE_CHECKING:
    from anisodiff.editing import edit as edit
    from anisodiff.editing import solve as solve
    from anisodiff.equation import Equation as Equation
    from anisodiff.generation import Generator as Generator
    from anisodiff.generation import Guidance as Guidance
    from anisodiff.generation import Images as Images
    from anisodiff.generation import load as load
    from anisodiff.generation import train as train
    from anisodiff.integrators import Exponential as Exponential
    from anisodiff.integrators import Signal as Signal
    from anisodiff.integrators import TamedEuler as TamedEuler
    from anisodiff.io.grids import save_grid as save_grid
    from anisodiff.metrics import evaluate as evaluate
    from anisodiff.pipelines.pipeline import AnisoDiffPipeline as AnisoDiffPipeline
    from anisodiff.processes import SPDE as SPDE
    from anisodiff.processes import ClosedForm as ClosedForm
    from anisodiff.processes import Process as Process
    from anisodiff.processes import ProcessConfig as ProcessConfig
    from anisodiff.registry import process as process
    from anisodiff.schedules import Transition as Transition
    from anisodiff.schedules import transition as transition
    from anisodiff.stencils import drift as drift
    from anisodiff.stencils import noise_scale as noise_scale
    from anisodiff.training import TrainConfig as TrainConfig


def __getattr__(name: str) -> Any:
    places = {**_PUBLIC, **_EXTRA}
    if name not in places:
        raise AttributeError(f"module 'anisodiff' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"anisodiff.{places[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
