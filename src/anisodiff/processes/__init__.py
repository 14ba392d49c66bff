"""Forward processes: the contract, the general equation, its closed forms, and presets by name."""

from anisodiff.processes.base import Process
from anisodiff.processes.closed_form import ClosedForm
from anisodiff.processes.config import ProcessConfig
from anisodiff.processes.presets import process
from anisodiff.processes.spde import SPDE

__all__ = ["SPDE", "ClosedForm", "Process", "ProcessConfig", "process"]
