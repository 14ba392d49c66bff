"""What a run calls and what it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from anisodiff.io import tensor_files as files
from anisodiff.models.base import Model
from anisodiff.processes import Process

OnInterval = Callable[[Model, int, Mapping[str, Tensor] | None], None]


class Diverged(ValueError):
    """The loss is not finite any more."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What a run calls, all optional.

    say          a line for people
    progress     (done, total): images, or parts of the calibration before
    on_log       each record of the log
    on_interval  (averaged model, step, prior or None), every ``sample_every`` images: sample grids
    fit_prior    (process, images) → tensors, kept in every checkpoint as prior.safetensors
    observe      (name) before every effect of a checkpoint on the disk
    stop         asked after every step: True ends the run as a signal does, with a checkpoint
    """

    say: Callable[[str], None] = lambda _: None
    progress: Callable[[int, int], None] = lambda _, __: None
    on_log: Callable[[dict[str, Any]], None] = lambda _: None
    on_interval: OnInterval | None = None
    fit_prior: Callable[[Process, Tensor], Mapping[str, Tensor]] | None = None
    observe: files.Observe = files.unobserved
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended; not ``finished`` means it was asked to stop and can be continued."""

    step: int
    images: int
    finished: bool
    skipped: int
    """Batches left out because their loss or gradient was not finite."""
    loss: float | None
    """Mean since the last line of the log."""
    checkpoint: Path | None
