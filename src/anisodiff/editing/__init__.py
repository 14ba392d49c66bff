"""Editing with a checkpoint: strokes to images, restoration, and how strong an edit should be."""

from anisodiff.editing.realism import Realism, Unrest, denoising_error
from anisodiff.editing.sdedit import edit, restore
from anisodiff.editing.strength import reach, strength_of_t, t_of_strength
from anisodiff.editing.strokes import strokes
from anisodiff.editing.sweep import Sweep, elbow, sweep

__all__ = [
    "Realism",
    "Sweep",
    "Unrest",
    "denoising_error",
    "edit",
    "elbow",
    "reach",
    "restore",
    "strength_of_t",
    "strokes",
    "sweep",
    "t_of_strength",
]
