"""Editing with a checkpoint: SDEdit, restoration, paintings, cartoons, a sweep over strengths; inverse problems."""

from anisodiff.editing.painters import read_paint
from anisodiff.editing.sdedit import edit, from_cartoon, noised, restore
from anisodiff.editing.solving import degrade, solve, wiener
from anisodiff.editing.strength import noise_level, strength_of_t, strength_range, t_of_strength
from anisodiff.editing.strokes import strokes
from anisodiff.editing.sweep import Sweep, sweep

__all__ = [
    "Sweep", "degrade", "edit", "from_cartoon", "noise_level", "noised", "read_paint", "restore", "solve",
    "strength_of_t", "strength_range", "strokes", "sweep", "t_of_strength", "wiener",
]  # fmt: skip
