"""Checkpoints: folders that are complete or absent.

    RUN/checkpoints/step-00001000/   model.safetensors    first EMA of the weights, statistics of the preconditioning
                                     config.json          config, process identity, data fingerprint, version, step
                                     prior.safetensors    where sampling starts, if it was fitted
                                     state/               raw weights, other EMAs, optimizer: to continue only
                                     manifest.json        sha256 of every other file

Written into a hidden folder beside, synced file by file, renamed at the end; checked against the manifest when read.
Nothing is ever unpickled.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.io import hub
from anisodiff.io import tensor_files as files
from anisodiff.io.atomic import LOCK, clear_orphans, leaving_nothing, locked, sync_folder
from anisodiff.io.eight_bits import restored
from anisodiff.io.records import RecordKind, read_json
from anisodiff.io.schema import anything, fields, number, optional, require, rows, table, text, whole
from anisodiff.notation import alternatives, close_to
from anisodiff.pretrained import IN_REPOSITORY, SHIPPED, shipped

RUN = "config.yaml"
"""Describes a run, in its folder."""
MANIFEST = RecordKind("anisodiff checkpoint", 2, shape=fields(files=table(text)))
_CHANNELS = whole(1, 1 << 16)
META = fields(
    step=whole(0), images=whole(0), config=table(anything), process=table(anything),
    network=fields(name=text, in_channels=optional(_CHANNELS), out_channels=optional(_CHANNELS)),
    data=fields(
        fingerprint=text, images=optional(whole(0)), source=optional(text), labels=optional(text),
        class_counts=optional(rows(whole(0))),
    ),
    threads=optional(whole(1)), training_seconds=optional(number),
)  # fmt: skip
"""Of config.json; what it says of the run is checked where it is used."""
_PARTIAL, _STEP = ".partial-", "step-"


_FULL = (errno.ENOSPC, errno.EDQUOT)


class Damaged(ValueError):
    """A folder that is not a complete checkpoint."""


class NotFinite(ValueError):
    """Tensors with NaN or infinity: no checkpoint is made of them."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The contents of a checkpoint: ``model`` and ``prior`` to sample, ``state`` (files of tensors) to continue."""

    step: int
    meta: Mapping[str, Any]
    model: Mapping[str, Tensor]
    state: Mapping[str, Mapping[str, Tensor]]
    prior: Mapping[str, Tensor] | None = None


def require_finite(group: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors with NaN or infinity, by the name of the first."""
    for name, tensor in group.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFinite(f"{where}: {name} is not finite")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk, with every file checked."""

    path: Path
    meta: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.meta["step"])

    @property
    def codes(self) -> dict[str, str]:
        """The sha256 of every file, by name: model.safetensors, prior.safetensors, …"""
        listed: dict[str, str] = read_json(self.path / "manifest.json")["files"]
        return listed

    def tensors(self, name: str) -> dict[str, Tensor]:
        """One file of tensors, such as ``model`` or ``state/optimizer``; what is in 8 bits becomes float32."""
        return restored(files.get_tensors(self.path / f"{name}.safetensors"))

    def has(self, name: str) -> bool:
        return (self.path / f"{name}.safetensors").is_file()


def read(path: str | Path) -> Checkpoint:
    """Open a checkpoint and check every file; `Damaged` names the first that is wrong."""
    path = Path(path)
    try:
        manifest = MANIFEST.read(path / "manifest.json")
        if manifest is None:
            raise Damaged(f"{path}: manifest.json is missing")
        for name in ("config.json", "model.safetensors"):
            if name not in manifest["files"]:
                raise Damaged(f"{path}: manifest.json lists no {name}")
        for name, code in manifest["files"].items():
            if hub.is_outside(name):
                raise Damaged(f"{path}: manifest.json lists {name}, which is not inside")
            if not (path / name).is_file():
                raise Damaged(f"{path}: {name} is missing")
            if files.sha256(path / name) != code:
                raise Damaged(f"{path}: {name} is not what was written (checksum)")
        return Checkpoint(path, require(META, read_json(path / "config.json"), path / "config.json"))
    except Damaged:
        raise
    except (OSError, ValueError) as error:
        raise Damaged(" ".join(str(error).split())) from None


def folder_of(run: str | Path) -> Path:
    """The folder of a run's checkpoints."""
    return Path(run) / "checkpoints"


def newest(path: str | Path, say: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
    """The newest complete checkpoint of a run; ``say`` gets a line for each damaged one that is skipped."""
    for candidate in reversed(_steps(folder_of(path))):
        try:
            return read(candidate)
        except Damaged as error:
            say(f"skipped a damaged checkpoint: {error}")
    return None


def described(run: str | Path) -> dict[str, Any] | None:
    """What config.json in the newest checkpoint of a run says; its other files are not read."""
    for candidate in reversed(_steps(folder_of(run))):
        try:
            return require(META, read_json(candidate / "config.json"), candidate / "config.json")
        except (OSError, ValueError):
            continue
    return None


def find(path: str | Path, say: Callable[[str], None] = lambda _: None) -> Checkpoint:
    """The checkpoint at ``path``: its own folder, a run (its newest), a shipped name, or ``hub:OWNER/NAME``."""
    name = str(path)
    path = hub.fetch(path) if hub.is_hub(path) else shipped(path) or Path(path)
    if not path.is_dir() and name in IN_REPOSITORY:
        raise ValueError(
            f"{name} is not part of the package; clone the repository and give the path of its folder models/{name}"
        )
    if not path.is_dir():
        expected = f"expected that of a run or a checkpoint, the name {alternatives(SHIPPED)}, or hub:OWNER/NAME"
        raise ValueError(f"no such folder: {path}; {close_to(name, SHIPPED) or expected}")
    skipped: list[str] = []
    if any((path / name).exists() for name in ("manifest.json", "model.safetensors", "config.json")):
        try:
            return read(path)
        except Damaged as error:
            skipped.append(str(error))
    elif (found := newest(path, skipped.append)) is not None:
        for line in skipped:
            say(line)
        return found
    if not skipped:
        if (path / RUN).is_file():
            raise ValueError(
                f"{path} has no checkpoint yet: the first comes after checkpoint_every images ({path / RUN}), at the "
                "end of the run, or when it is stopped with Ctrl-C"
            )
        raise ValueError(
            f"{path} holds no checkpoint: expected a run's folder ({folder_of('RUN')}/…) or a checkpoint's"
        )
    reason = skipped[0].removeprefix("skipped a damaged checkpoint: ")
    if "checkpoint version" in reason:
        raise ValueError(
            f"{reason}; this anisodiff reads version {MANIFEST.version}: install the version that wrote it"
        )
    raise ValueError(f"{reason}: the checkpoint is incomplete or damaged; copy it again, or take another")


def _steps(folder: Path) -> list[Path]:
    """Checkpoints by step, complete or not."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if p.name.startswith(_STEP) and p.name[len(_STEP) :].isdecimal()]
    return sorted(found, key=lambda p: _number(p.name))


def _number(name: str) -> int:
    """The step in a checkpoint's name: beyond eight digits names do not sort as numbers do."""
    return int(name.removeprefix(_STEP))


@dataclass
class Store:
    """Writes the checkpoints of one run and keeps the newest ``keep`` complete ones."""

    run: Path
    keep: int = 2
    observe: files.Observe = files.unobserved
    good: set[str] = field(default_factory=set)
    """Names written or checked by this process."""

    def newest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """As the function, with finite weights; what was checked counts as good."""
        for candidate in reversed(_steps(folder_of(self.run))):
            try:
                found = read(candidate)
                for name in filter(found.has, ("model", "state/weights")):
                    require_finite(found.tensors(name), f"{candidate}: {name}")
            except (Damaged, NotFinite) as error:
                say(f"skipped a damaged checkpoint: {error}")
                continue
            self.good.add(candidate.name)
            return found
        return None

    def save(self, snapshot: Snapshot) -> Path:
        """Write a checkpoint; a failure is an OSError and leaves the newest good one unchanged.

        On a disk that is full the older good ones make room. Tensors that are not finite are `NotFinite`, before
        anything is written: a good checkpoint is never given up for a bad one.
        """
        target = folder_of(self.run) / f"{_STEP}{snapshot.step:08d}"
        if target.name in self.good:
            return target
        for name, group in (("model", snapshot.model), ("prior", snapshot.prior or {}), *snapshot.state.items()):
            require_finite(group, name)
        try:
            self._write(snapshot, target)
        except OSError as error:
            if error.errno not in _FULL or not self._prune(keep=1):
                raise
            self._write(snapshot, target)
        self.good.add(target.name)
        self._prune(self.keep)
        return target

    def _write(self, snapshot: Snapshot, target: Path) -> None:
        folder = target.parent
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_PARTIAL}*"):  # of a run that was killed; the run's lock is ours
            shutil.rmtree(left, ignore_errors=True)
        self.observe("begin")
        partial = folder / f"{_PARTIAL}{secrets.token_hex(4)}"
        partial.mkdir()
        try:
            self._fill(partial, snapshot)
            if target.exists():  # not good, or we had returned: a damaged one that was skipped
                self.observe("remove damaged")
                shutil.rmtree(target)
            self.observe("rename")
            os.rename(partial, target)
            self.observe("sync checkpoints")
            sync_folder(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _fill(self, partial: Path, snapshot: Snapshot) -> None:
        (partial / "state").mkdir()
        tensors = {"model.safetensors": snapshot.model}
        if snapshot.prior is not None:
            tensors["prior.safetensors"] = snapshot.prior
        tensors |= {f"state/{name}.safetensors": group for name, group in snapshot.state.items()}
        codes = {name: files.put_tensors(partial / name, group, self.observe) for name, group in tensors.items()}
        codes["config.json"] = files.put_json(partial / "config.json", snapshot.meta, self.observe)
        files.put_json(partial / "manifest.json", MANIFEST.new({"files": codes}), self.observe)
        self.observe("sync folder")
        sync_folder(partial / "state")
        sync_folder(partial)

    def _prune(self, keep: int) -> bool:
        """Leave the newest ``keep`` good ones, and nothing older; whether any went. It never fails."""
        good, gone = sorted(self.good, key=_number)[-keep:], False
        if len(good) < keep:
            return False  # an older one may be complete, too: it was not checked
        for old in _steps(folder_of(self.run)):
            if _number(old.name) < _number(good[0]):
                try:
                    self.observe(f"prune {old.name}")
                    hidden = old.with_name(f"{_PARTIAL}{old.name}")  # a kill in between leaves no half checkpoint
                    os.rename(old, hidden)
                    shutil.rmtree(hidden, ignore_errors=True)
                except OSError:
                    continue
                self.good.discard(old.name)
                gone = True
        return gone


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Create ``folder`` if needed and hold its lock: two processes never write into one folder.

    What a killed one has left unfinished goes.
    """
    with leaving_nothing(folder, LOCK), ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = stack.enter_context(locked(folder / LOCK))
        except OSError as error:
            raise ValueError(f"cannot write below {folder} ({error.strerror}): choose another folder") from None
        if not free:
            raise ValueError(f"{folder} is in use by another run: wait for it, or choose another folder")
        clear_orphans(folder)
        yield
