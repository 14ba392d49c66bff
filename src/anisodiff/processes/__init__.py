"""Forward processes: the contract, the general equation, its closed forms, the baselines, and presets by name."""

from anisodiff.processes.base import Process
from anisodiff.processes.closed_form import ClosedForm
from anisodiff.processes.conditional import Conditional
from anisodiff.processes.config import ProcessConfig
from anisodiff.processes.edge_preserving import EdgePreserving
from anisodiff.processes.flow_matching import FlowMatching
from anisodiff.processes.heat_dissipation import HeatDissipation
from anisodiff.processes.presets import process
from anisodiff.processes.spde import SPDE

__all__ = [
    "SPDE",
    "ClosedForm",
    "Conditional",
    "EdgePreserving",
    "FlowMatching",
    "HeatDissipation",
    "Process",
    "ProcessConfig",
    "process",
]
