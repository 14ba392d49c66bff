"""What surrounds the loop of a run: hooks it calls, its log, its end by a signal, its outcome."""

import io
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from anisodiff.io import schema
from anisodiff.io import tensor_files as files
from anisodiff.io.archives import LARGEST_BLOB, read_regular
from anisodiff.io.atomic import replacing
from anisodiff.models.base import Model
from anisodiff.processes import Process
from anisodiff.runtime.distributed import Distributed
from anisodiff.runtime.progress import StageProgress, no_stage_progress
from anisodiff.training.trackers import Trackers

MOST_VALUES = 8_000_000
"""Of a log, where a list or mapping counts for four: about 300,000 lines."""
_TOGETHER = 16  # steps between two questions among several processes: each costs a wait for the device

_LINE = schema.fields(
    step=schema.whole(0), images=schema.optional(schema.whole(0)), loss=schema.optional(schema.number),
    images_per_second=schema.optional(schema.number),
)  # fmt: skip

OnInterval = Callable[[Model, int, Mapping[str, Tensor] | None], Tensor | bool | None]


class Diverged(ValueError):
    """Loss or gradient is not finite any more."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What a run calls, all optional.

    say          a line of text
    progress     (stage, done, total, note): "calibrating", "compiling", images of "training", "sampling"
    on_log       each record of the log
    on_interval  (averaged model, step, prior or None), every ``sample_every`` images: sample grids, returned for
                 trackers; False: not yet
    first_after  seconds of training after which on_interval is called for the first time, if not earlier; None: never
    began        `time.perf_counter` when the command began; None: when `train` was called
    fit_prior    (process, images) → tensors, kept in every checkpoint as prior.safetensors
    observe      (name) before every effect of a checkpoint on the disk
    stop         asked after every step: True ends the run as a signal does, with a checkpoint
    stopped      (step, run) → the line that says why the run ends early
    """

    say: Callable[[str], None] = lambda _: None
    progress: StageProgress = no_stage_progress
    on_log: Callable[[dict[str, Any]], None] = lambda _: None
    on_interval: OnInterval | None = None
    first_after: float | None = None
    began: float | None = None
    fit_prior: Callable[[Process, Tensor], Mapping[str, Tensor]] | None = None
    observe: files.Observe = files.unobserved
    stop: Callable[[], bool] = lambda: False
    stopped: Callable[[int, Path], str] = lambda step, run: (
        f"asked to stop: saving at step {step}; continue with: anisodiff train -o {run}"
    )


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """How a run ended; one that is not ``finished`` was asked to stop and can be resumed."""

    step: int
    images: int
    finished: bool
    skipped: int
    """Steps skipped because their loss or gradient was not finite."""
    loss: float | None
    """Mean since the last line of the log; of an autoencoder, of the last step."""
    checkpoint: Path | None
    began: int = 0
    """The step that this call began with: the last one where nothing was left to train."""


class StopRequest:
    """Whether the run was asked to end."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once = True
        """Until the first step is done: it may take minutes (compilation), and there is nothing to save yet."""

    def now(self, step: int, distributed: Distributed) -> bool:
        """Whether to end after step number ``step``; the same answer in every process."""
        if distributed.world == 1:
            return self.asked
        if step % _TOGETHER:
            return False
        return bool(distributed.largest(torch.tensor(float(self.asked), device=distributed.device)).item())


@contextmanager
def on_signals() -> Iterator[StopRequest]:
    """Inside, the first SIGINT or SIGTERM sets ``asked``; a second one has its usual effect.

    As long as ``at_once`` is set, the first one raises KeyboardInterrupt.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set handlers
        return
    old: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.at_once:
            raise KeyboardInterrupt
        stop.asked = True
        signal.signal(number, old[number])

    for caught in (signal.SIGINT, signal.SIGTERM):
        old[caught] = signal.signal(caught, ask)
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _plain(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_plain(v) for v in value] if isinstance(value, list) else value


def read_log(run: str | Path) -> list[dict[str, Any]]:
    """All complete lines of a run's log; a line cut off by a kill is omitted. What cannot be read is refused."""
    path = Path(run) / "log.jsonl"
    records = []
    try:
        held = read_regular(path, LARGEST_BLOB) if os.path.lexists(path) else b""
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror})") from error
    if held.count(b",") + 4 * (held.count(b"{") + held.count(b"[")) > MOST_VALUES:  # before they take memory
        raise ValueError(
            f"{path} holds more than {MOST_VALUES:,} values, the most that is read of a log; move it away: the run "
            "then continues without it"
        )
    for line in io.BytesIO(held):
        try:
            record = json.loads(line)
            _LINE(record, "log")
        except (ValueError, RecursionError):
            continue
        records.append(record)
    return records


class Log:
    """One JSON object a line in log.jsonl, and the same for trackers.

    A run that is resumed at ``step`` drops what it had logged beyond it.
    """

    def __init__(self, run: Path, step: int, trackers: Trackers) -> None:
        self._path, self.trackers = run / "log.jsonl", trackers
        kept = [record for record in read_log(run) if record["step"] <= step]
        with replacing(self._path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """One line; a disk that is full loses the line, not the run."""
        record = {name: _plain(value) for name, value in record.items()}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError:
            pass
        self.trackers.log(record)
