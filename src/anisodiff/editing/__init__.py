"""Editing with a checkpoint: SDEdit, restoration, strokes, and a sweep over strengths."""

from anisodiff.editing.sdedit import edit, restore
from anisodiff.editing.strength import noise_level, strength_of_t, strength_range, t_of_strength
from anisodiff.editing.strokes import strokes
from anisodiff.editing.sweep import Sweep, sweep

__all__ = [
    "Sweep", "edit", "noise_level", "restore", "strength_of_t", "strength_range", "strokes", "sweep", "t_of_strength",
]  # fmt: skip
