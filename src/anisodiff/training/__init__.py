"""Training: configs, recipes, the loop, resumable checkpoints."""

from anisodiff.io.checkpoint import Checkpoint, Damaged, Snapshot, Store, find, newest, read
from anisodiff.training.config import TrainConfig
from anisodiff.training.hooks import Diverged, Hooks, TrainingOutcome, read_log
from anisodiff.training.loop import train
from anisodiff.training.model import Plan, Trained, load_model

__all__ = [
    "Checkpoint", "Damaged", "Diverged", "Hooks", "Plan", "Snapshot", "Store", "TrainConfig", "Trained",
    "TrainingOutcome", "find", "load_model", "newest", "read", "read_log", "train",
]  # fmt: skip
