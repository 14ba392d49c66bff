"""Training: a config, a loop, checkpoints that survive anything."""

from anisodiff.io.checkpoint import Checkpoint, Damaged, Snapshot, Store, find, newest, read
from anisodiff.training.config import TrainConfig
from anisodiff.training.contract import Diverged, Hooks, Outcome
from anisodiff.training.logging import read_log
from anisodiff.training.loop import train
from anisodiff.training.model import Plan, Trained, load_model

__all__ = [
    "Checkpoint",
    "Damaged",
    "Diverged",
    "Hooks",
    "Outcome",
    "Plan",
    "Snapshot",
    "Store",
    "TrainConfig",
    "Trained",
    "find",
    "load_model",
    "newest",
    "read",
    "read_log",
    "train",
]
