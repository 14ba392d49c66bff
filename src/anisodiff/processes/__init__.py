"""Forward processes: the contract, the SPDE, its linear closed form, and the baselines (by name: `registry`)."""

from anisodiff.processes.base import EquationProcess, Process, TrainingPair
from anisodiff.processes.closed_form import ClosedForm
from anisodiff.processes.conditional import ConditionalGaussian, ScaledGaussian
from anisodiff.processes.config import ProcessConfig
from anisodiff.processes.edge_preserving import EdgePreserving
from anisodiff.processes.flow_matching import FlowMatching
from anisodiff.processes.heat_dissipation import HeatDissipation
from anisodiff.processes.spde import SPDE

__all__ = [
    "SPDE",
    "ClosedForm",
    "ConditionalGaussian",
    "EdgePreserving",
    "EquationProcess",
    "FlowMatching",
    "HeatDissipation",
    "Process",
    "ProcessConfig",
    "ScaledGaussian",
    "TrainingPair",
]
