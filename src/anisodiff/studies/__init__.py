"""Studies: several methods under one roof, and one method with many values."""

from anisodiff.durations import parse_span
from anisodiff.studies.budget import Budget, Deadline, Meter
from anisodiff.studies.compare import STAGES, Study, Terms, check, describe, entries
from anisodiff.studies.contender import Contender, check_names, configs, parse_contender, parse_steps
from anisodiff.studies.edits import Task
from anisodiff.studies.halving import rungs, survivors
from anisodiff.studies.layout import check_out, open_study, read_study
from anisodiff.studies.measuring import Yardstick
from anisodiff.studies.page import write_page
from anisodiff.studies.sweep import Axis, Halving, check_metric, parse_axis, points, run_sweep, tags
from anisodiff.studies.sweep_page import write_sweep

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
