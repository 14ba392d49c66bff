"""Training: a config, a loop, checkpoints that survive anything."""

from anisodiff.train.checkpoint import Checkpoint, Damaged, Snapshot, Store, find, newest, read
from anisodiff.train.config import TrainConfig
from anisodiff.train.contract import Diverged, Hooks, Outcome
from anisodiff.train.logging import read_log
from anisodiff.train.loop import train
from anisodiff.train.model import Plan, Trained, load_model

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
