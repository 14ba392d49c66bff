"""Trackers of a run, TensorBoard and Weights & Biases, through accelerate.

A tracker is an addition to log.jsonl and never ends a run: where one fails, whatever it raises, the run goes on
without it. Only rank 0 has any.
"""

import importlib.util
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from anisodiff import notation
from anisodiff.io.archives import one_line

TRACKERS = {"tensorboard": "anisodiff[train]", "wandb": "anisodiff[track]"}
"""Name, which is also that of the package, and the extra to install."""
DEFAULT = ("tensorboard",)
_SCALARS = ("loss", "grad_norm", "lr", "images_per_second", "skipped")


def parse(text: str) -> tuple[str, ...]:
    """The names in ``tensorboard,wandb``; ``none`` is no tracker."""
    names = [name for item in text.split(",") if (name := item.strip())]
    return () if names == ["none"] else check(names)


def check(names: Sequence[str]) -> tuple[str, ...]:
    """Names without repetitions; those unknown or not installed are refused."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"unknown tracker {name!r}; {notation.nearest(name, [*TRACKERS, 'none'])}")
        if lacks := _missing(name):
            raise ValueError(f"the tracker {name} needs {lacks}: pip install '{TRACKERS[name]}'")
    return tuple(dict.fromkeys(names))


def installed(say: Callable[[str], None]) -> tuple[str, ...]:
    """The trackers of a run that asks for none in particular; what is missing is said in one line."""
    for name in DEFAULT:
        if lacks := _missing(name):
            say(f"no {name}/ beside log.jsonl: {lacks} is not installed; pip install '{TRACKERS[name]}'")
    return tuple(name for name in DEFAULT if not _missing(name))


def _missing(name: str) -> str | None:
    return next((part for part in ("accelerate", name) if importlib.util.find_spec(part) is None), None)


class Trackers:
    """The trackers of one run in its folder; a run that is resumed at ``step`` goes on after it."""

    def __init__(
        self, names: Sequence[str], run: Path, step: int, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._active: dict[str, Any] = {}
        self._hook = threading.excepthook
        if "tensorboard" in names:
            threading.excepthook = self._in_thread
        try:
            for name in names:
                with self._optional(name):
                    tracker = _made(name, run, step, config)
                    tracker.start()
                    self._active[name] = tracker
        except BaseException:  # Ctrl-C
            self.close()
            raise

    def log(self, record: Mapping[str, Any]) -> None:
        """The numbers of a line of the log."""
        values = {name: record[name] for name in _SCALARS if record.get(name) is not None}
        levels = enumerate(record.get("loss_by_level") or [])
        values |= {f"loss_by_level/{number}": value for number, value in levels if value is not None}
        for name, tracker in [*self._active.items()]:
            with self._optional(name):
                tracker.log(values, step=record["step"])

    def images(self, images: Tensor, step: int) -> None:
        """A grid of samples: images [N, C, H, W] in [0, 1], on the CPU."""
        pixels = images.clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
        for name, tracker in [*self._active.items()]:
            with self._optional(name):
                places = {"dataformats": "NHWC"} if name == "tensorboard" else {}
                tracker.log_images({"samples": pixels}, step=step, **places)

    def close(self) -> None:
        """Write what is left."""
        for name, tracker in [*self._active.items()]:
            with self._optional(name):
                tracker.finish()
        threading.excepthook = self._hook

    def _in_thread(self, error: threading.ExceptHookArgs) -> None:
        """TensorBoard writes in a thread, which ends with a full disk and keeps the error for the next call."""
        if not type(error.thread).__module__.startswith("tensorboard"):
            self._hook(error)

    @contextmanager
    def _optional(self, name: str) -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the libraries, about themselves
                yield
        except Exception as error:
            self._active.pop(name, None)
            self._say(f"{name} stopped ({one_line(error)}); training continues without it")


def _made(name: str, run: Path, step: int, config: Mapping[str, Any]) -> Any:
    from accelerate import PartialState
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    PartialState()  # accelerate's trackers ask it which process this is
    if name == "tensorboard":
        return TensorBoardTracker("tensorboard", run, purge_step=step + 1)
    # a run that goes on is the same run there: its id is the end of the name of the folder that wandb made
    before = sorted((run / "wandb").glob("*run-*-*"))
    known = {"id": before[-1].name.rpartition("-")[2], "resume": "allow"} if before else {}
    return WandBTracker("anisodiff", dir=run, name=run.resolve().name, config=dict(config), **known)
