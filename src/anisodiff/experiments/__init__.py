"""Studies: several methods under one roof, and one method with many values."""

from anisodiff.experiments.budget import Budget, Deadline, Meter
from anisodiff.experiments.compare import STAGES, Study, Terms, check, describe, entries
from anisodiff.experiments.contender import Contender, check_names, configs, parse_contender, parse_steps
from anisodiff.experiments.edits import Task
from anisodiff.experiments.halving import rungs, survivors
from anisodiff.experiments.layout import check_out, open_study, read_study
from anisodiff.experiments.measuring import Yardstick
from anisodiff.experiments.page import write_page
from anisodiff.experiments.sweep import Axis, Halving, check_metric, parse_axis, points, run_sweep, tags
from anisodiff.experiments.sweep_page import write_sweep
from anisodiff.runtime.durations import parse_span

__all__ = [
    "STAGES",
    "Axis",
    "Budget",
    "Contender",
    "Deadline",
    "Halving",
    "Meter",
    "Study",
    "Task",
    "Terms",
    "Yardstick",
    "check",
    "check_metric",
    "check_names",
    "check_out",
    "configs",
    "describe",
    "entries",
    "open_study",
    "parse_axis",
    "parse_contender",
    "parse_span",
    "parse_steps",
    "points",
    "read_study",
    "run_sweep",
    "rungs",
    "survivors",
    "tags",
    "write_page",
    "write_sweep",
]
