"""The folder of one's own runs: what is in it, how a run goes, and a training as a process of its own.

A run, a study or a set of images is known by its place below the folder; requests name places from these lists and
nothing else. A training is ``python -m anisodiff train``; stopped by SIGTERM it saves, and ``train -o RUN``
continues. (SIGINT is ignored by the children of a studio that was started in the background.)
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anisodiff import notation
from anisodiff.data import is_dataset
from anisodiff.io.archives import read_regular
from anisodiff.io.picture_files import is_picture
from anisodiff.metrics.protocol import Report
from anisodiff.registry import NETWORKS, TRAINED
from anisodiff.studio.models import latest
from anisodiff.training.config import FIELDS
from anisodiff.training.hooks import read_log
from anisodiff.training.run_folder import NAME, read_run

DEEPEST, MOST = 4, 2000
"""Levels below the folder that are looked at, and folders in all."""
POINTS, LINES = 400, 60
"""Of a curve that is sent, and of a training's output."""
FRESH = 60.0
"""Seconds since the last line of a log that a run of somebody else still counts as going on."""
LARGEST_REPORT, LARGEST_GRID = 1 << 20, 32 << 20
NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"(?P<group>[a-z_]+)(\.[A-Za-z0-9_]+)?")
_SETTINGS = tuple(name for name in FIELDS if name not in ("latent", "dataset"))
"""Of a training that a request starts."""


class Training:
    """A training as a child, with the last lines of what it said."""

    def __init__(self, words: Sequence[str]) -> None:
        self.lines: deque[str] = deque(maxlen=LINES)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "anisodiff", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        self._ears = threading.Thread(target=self._listen, daemon=True)
        self._ears.start()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append(line.rstrip()[:400])

    @property
    def runs(self) -> bool:
        """Until it has ended and its last line is here."""
        return self._child.poll() is None or self._ears.is_alive()

    @property
    def code(self) -> int | None:
        return self._child.poll()

    def stop(self) -> None:
        """Ask it to save and end."""
        if self.runs:
            self._child.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Until it has ended, at most that long; then it is ended."""
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Runs:
    """Runs, studies and sets of images below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._lock = threading.Lock()
        self._trainings: dict[str, Training] = {}

    def runs(self) -> dict[str, Path]:
        """Place → folder of every run."""
        return {place: path for place, path in self._walk() if _is_run(path)}

    def studies(self) -> dict[str, Path]:
        """Place → page of every comparison and sweep."""
        found = {}
        for place, path in self._walk():
            for name in ("page.md", "sweep.md"):
                if (page := path / "results" / name).is_file():
                    found[f"{place}/{name}"] = page
        return found

    def data(self) -> dict[str, Path]:
        """Place → images to train on: folders of pictures, zips, prepared datasets, next to the runs."""
        found = {}
        for entry in _entries(self.folder):
            path = Path(entry.path)
            picks = entry.is_file() and path.suffix.lower() == ".zip"
            if picks or (entry.is_dir() and not _is_run(path) and (is_dataset(path) or _has_pictures(path))):
                found[entry.name] = path
        return found

    def _walk(self) -> Iterator[tuple[str, Path]]:
        """Folders, breadth first; neither hidden ones nor links."""
        level, seen = [self.folder], 0
        for _ in range(DEEPEST):
            following = []
            for folder in level:
                for entry in _entries(folder):
                    if not entry.is_dir(follow_symlinks=False):
                        continue
                    seen += 1
                    if seen > MOST:
                        return
                    path = Path(entry.path)
                    yield path.relative_to(self.folder).as_posix(), path
                    if not _is_run(path):
                        following.append(path)
            level = following

    def overview(self) -> dict[str, Any]:
        """All lists, runs with their state."""
        rows = [{"name": name, **self._summary(name, path)} for name, path in self.runs().items()]
        return {
            "folder": str(self.folder), "runs": rows, "studies": list(self.studies()), "data": list(self.data()),
            "processes": list(TRAINED),
        }  # fmt: skip

    def _summary(self, name: str, path: Path) -> dict[str, Any]:
        last = next(iter(_log(path)[-1:]), {})
        samples = _samples(path)
        return {
            "state": self.state(name, path), "step": last.get("step"), "images": last.get("images"),
            "loss": last.get("loss"), "speed": last.get("images_per_second"), "grids": len(samples),
            "checkpoint": latest(path),
        }  # fmt: skip

    def state(self, name: str, path: Path) -> str:
        """training, finished, or stopped."""
        training = self._trainings.get(name)
        if training is not None and training.runs:
            return "training"
        log = path / "log.jsonl"
        if training is None and log.is_file() and time.time() - log.stat().st_mtime < FRESH and not _done(path):
            return "training elsewhere"
        return "finished" if _done(path) else "stopped"

    def find(self, name: str) -> Path:
        """The folder of a run."""
        found = self.runs()
        if name not in found:
            raise ValueError(f"no run {name!r}; {notation.nearest(name, found) if found else 'there is none yet'}")
        return found[name]

    def facts(self, name: str) -> dict[str, Any]:
        """Everything that the page shows of a run."""
        path = self.find(name)
        log = _log(path)
        training = self._trainings.get(name)
        try:
            config = read_run(path).to_dict(path)
            config.pop("data", None)
            target = config.get("images")
        except ValueError as error:
            config, target = {"damaged": str(error)}, None
        return {
            "name": name, **self._summary(name, path), "log": _thinned(log), "target": target, "config": config,
            "samples": _samples(path), "reports": _reports(path), "lines": list(training.lines) if training else [],
            "ended": training.code if training else None,
        }  # fmt: skip

    def stamp(self, name: str) -> tuple[Any, ...]:
        """What changes when a run has something new."""
        path = self.find(name)
        log, training = path / "log.jsonl", self._trainings.get(name)
        size = log.stat().st_size if log.is_file() else 0
        said = (len(training.lines), training.lines[-1] if training.lines else "") if training else ()
        return size, tuple(_samples(path)), self.state(name, path), said, len(_report_files(path))

    def sample(self, name: str, file: str) -> bytes:
        """A grid of a run."""
        path = self.find(name)
        if file not in _samples(path):
            raise ValueError(f"{name} has no samples {file!r}")
        return read_regular(path / "samples" / file, LARGEST_GRID)

    def start(self, name: str, data: str, process: str, settings: dict[str, Any], images: int | None) -> None:
        """Start a training on images of the list, in a new folder."""
        if not NAMES.fullmatch(name):
            raise ValueError(f"name: got {name!r}, expected letters, digits, dots and dashes")
        sets = self.data()
        if data not in sets:
            raise ValueError(f"no images {data!r}; {notation.nearest(data, sets) if sets else self._put_images()}")
        if process not in TRAINED:
            raise ValueError(f"unknown process {process!r}; {notation.nearest(process, TRAINED)}")
        if (self.folder / name).exists():
            raise ValueError(f"{name} exists already; choose another name, or resume it")
        words = ["train", process, "--data", str(sets[data]), "--output", str(self.folder / name)]
        for key, value in settings.items():
            _check_setting(key, value)
            words += ["--set", f"{key}={value}"]
        self._begin(name, [*words, *([] if images is None else ["--images", str(images)])])

    def _put_images(self) -> str:
        return f"put a folder or a zip of images into {self.folder}"

    def resume(self, name: str) -> None:
        """Continue a run."""
        path = self.find(name)
        if self.state(name, path).startswith("training"):
            raise ValueError(f"{name} is going on already")
        self._begin(name, ["train", "--output", str(path)])

    def _begin(self, name: str, words: list[str]) -> None:
        with self._lock:
            busy = [other for other, training in self._trainings.items() if training.runs]
            if busy:
                raise ValueError(f"one training at a time: stop {busy[0]} first")
            self._trainings[name] = Training(words)

    def stop(self, name: str) -> None:
        """Ask a training of this studio to save and end."""
        training = self._trainings.get(name)
        if training is None or not training.runs:
            raise ValueError(f"{name} was not started here, or has ended: there is nothing to stop")
        training.stop()

    def starting(self) -> list[dict[str, Any]]:
        """Trainings that have no folder yet, or ended before they had one."""
        known = self.runs()
        return [
            {"name": name, "state": "starting" if training.runs else "failed", "lines": list(training.lines)}
            for name, training in self._trainings.items() if name not in known
        ]  # fmt: skip

    def close(self, seconds: float = 30.0) -> None:
        """Stop all trainings, and wait until they have saved."""
        for training in self._trainings.values():
            training.stop()
        for training in self._trainings.values():
            training.wait(seconds)


def _check_setting(key: str, value: Any) -> None:
    """Refuse settings by which a request would name code or a place: a network of one's own, latents, a set."""
    found = _KEY.fullmatch(key)
    if found is None or found["group"] not in _SETTINGS:
        raise ValueError(f"unknown setting {key!r}; {notation.nearest(key, _SETTINGS)}")
    if key in ("network", "network.name") and (not isinstance(value, str) or value not in NETWORKS):
        raise ValueError(f"{key}: got {value!r}, expected {notation.alternatives(NETWORKS)}")


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    return (path / NAME).is_file() and ((path / "log.jsonl").is_file() or (path / "checkpoints").is_dir())


def _has_pictures(path: Path, deep: bool = True) -> bool:
    """Pictures in a folder, or in folders of classes below it."""
    some = _entries(path)[:50]
    return any(is_picture(entry.name) for entry in some) or (
        deep and any(_has_pictures(Path(entry.path), False) for entry in some if entry.is_dir(follow_symlinks=False))
    )


def _log(path: Path) -> list[dict[str, Any]]:
    """The log of a run; one that cannot be read has no lines."""
    try:
        return read_log(path)
    except (OSError, ValueError):
        return []


def _done(path: Path) -> bool:
    try:
        target = read_run(path).config.images
    except ValueError:
        return False
    last = next(iter(_log(path)[-1:]), {})
    return int(last.get("images") or 0) >= target


def _samples(path: Path) -> list[str]:
    return sorted(found.name for found in (path / "samples").glob("step-*.png") if found.is_file())


def _report_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.json"))[:20]


def _reports(path: Path) -> list[dict[str, Any]]:
    found = []
    for file in _report_files(path):
        try:
            report = Report.from_json(read_regular(file, LARGEST_REPORT).decode("utf-8"))
        except (OSError, ValueError):
            continue
        values = [{"name": v.name, "value": v.value, "error": v.error, "note": v.note} for v in report.values]
        found.append({"file": file.name, "protocol": report.protocol.line(), "values": values})
    return found


def _thinned(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `POINTS` of the lines, the last among them, with what is drawn."""
    kept = ("step", "images", "loss", "loss_by_level", "level_edges", "images_per_second")
    every = max(1, -(-len(log) // POINTS))
    chosen = [record for k, record in enumerate(log) if (len(log) - 1 - k) % every == 0]
    return [{key: record.get(key) for key in kept} for record in chosen]
