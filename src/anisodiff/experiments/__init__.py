"""Experiments: several methods compared under equal conditions, and sweeps over the settings of one."""

from anisodiff.experiments.budget import Budget, Deadline
from anisodiff.experiments.compare import missing, run_study
from anisodiff.experiments.edits import EditTask
from anisodiff.experiments.evaluator import Evaluator
from anisodiff.experiments.forecast import Forecast, Round, forecast, sweep_rounds
from anisodiff.experiments.layout import check_out, open_study, read_study
from anisodiff.experiments.page import write_page
from anisodiff.experiments.results import Summary, compared_by
from anisodiff.experiments.runs import Run, check_names, configs, parse_run, parse_steps
from anisodiff.experiments.speeds import Speeds, time_metrics
from anisodiff.experiments.study import STAGES, SeededRun, Study, StudySettings, check_runs, describe_runs, seed_runs
from anisodiff.experiments.sweep import Halving, choose_metric, parse_axis, points, run_sweep, rungs
from anisodiff.experiments.sweep_page import write_sweep

__all__ = [
    "STAGES", "Budget", "Deadline", "EditTask", "Evaluator", "Forecast", "Halving", "Round", "Run", "SeededRun",
    "Speeds", "Study", "StudySettings", "Summary", "check_names", "check_out", "check_runs", "choose_metric",
    "compared_by", "configs", "describe_runs", "forecast", "missing", "open_study", "parse_axis", "parse_run",
    "parse_steps", "points", "read_study", "run_study", "run_sweep", "rungs", "seed_runs", "sweep_rounds",
    "time_metrics", "write_page", "write_sweep",
]  # fmt: skip
