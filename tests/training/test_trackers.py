"""Trackers: what they are given, how they go on, and what is said where one is missing."""

import importlib.util
import json
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from anisodiff.training import Hooks, read_log, train
from anisodiff.training.hooks import Log
from anisodiff.training.trackers import Trackers, parse
from tests.training.conftest import folder, tiny


def write(name: str, run: Path, start: int, steps: tuple[int, ...]) -> None:
    """Lines and one grid of a run that begins after step ``start``."""
    said: list[str] = []
    log = Log(run, start, Trackers((name,), run, start, {"batch": 4, "ema": ["constant(0.9)"]}, said.append))
    for step in steps:
        log.write({"step": step, "loss": float(10 * start + step), "loss_by_level": [0.5, None, float("nan"), 2.0]})
    log.trackers.images(torch.linspace(0, 1, 4 * 64).reshape(4, 1, 8, 8), steps[-1])
    log.trackers.close()
    assert not said


def test_tensorboard_has_levels_grids_and_the_last_line_before_a_restart(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, steps in ((0, (2, 4, 6)), (4, (6, 8))):  # stopped after step 6, continued from a checkpoint at step 4
        write("tensorboard", tmp_path, start, steps)
        made = max((tmp_path / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        made.rename(made.with_name(f"events.out.tfevents.{start}"))  # a second apart they would sort as written
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("loss")] == [(2, 2.0), (4, 4.0), (6, 46.0), (8, 48.0)]
    assert [(r["step"], r["loss"]) for r in read_log(tmp_path)] == [(2, 2.0), (4, 4.0), (6, 46.0), (8, 48.0)]
    assert [tag for tag in board.Tags()["scalars"] if "level" in tag] == ["loss_by_level/0", "loss_by_level/3"]
    assert [(e.step, e.height, e.width) for e in board.Images("samples")] == [(8, 8, 32)]


def logged(path: Path) -> list[dict[str, Any]]:
    """The numbers of a file of wandb, line by line: records in LevelDB's log format (CRC, length, kind, data)."""
    import wandb

    wandb.teardown()  # its service writes the file, and may still be at it
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, found = path.read_bytes(), 7, []
    assert len(data) < 32768  # one block
    while place < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record = Record()
        record.ParseFromString(data[place + 7 : place + 7 + length])
        place += 7 + length
        assert kind == 1  # a whole record
        if record.WhichOneof("record_type") == "history":
            items = [(item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item]
            found.append({key: json.loads(value) for key, value in items})
    return found


def test_wandb_offline_has_levels_and_grids_and_goes_on_as_the_same_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    write("wandb", tmp_path, 0, (2, 4))
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    lines = logged(file)
    assert [(line["_step"], line["loss"]) for line in lines if "loss" in line] == [(2, 2.0), (4, 4.0)]
    assert lines[0]["loss_by_level/3"] == 2.0
    assert "loss_by_level/1" not in lines[0]
    assert lines[-1]["samples/count"] == 4
    write("wandb", tmp_path, 4, (6,))
    names = {path.name for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb")}
    assert names == {file.name}  # run-ID.wandb: one id


def hidden(monkeypatch, *names: str) -> None:
    """As if packages were not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in names else found(name, *rest)
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def test_a_tracker_that_is_asked_for_and_missing_is_one_line_before_anything(train_command, tmp_path, monkeypatch):
    hidden(monkeypatch, "wandb")
    folder(tmp_path / "photos")
    told = train_command("train", "--data", "photos", "-o", "run", "--track", "tensorboard,wandb")
    assert isinstance(told.exception, ValueError)
    assert str(told.exception) == "the tracker wandb needs wandb: pip install 'anisodiff[track]'"
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"unknown tracker 'wandv'.*'wandb'"):
        parse("wandv")


@pytest.mark.parametrize("lacks", ["tensorboard", "accelerate"])
def test_a_default_tracker_that_is_missing_is_said_once(dataset, tmp_path, monkeypatch, lacks):
    hidden(monkeypatch, lacks)
    said: list[str] = []
    assert train(tiny(images=8), dataset, tmp_path, hooks=Hooks(say=said.append)).finished
    (line,) = (line for line in said if "tensorboard" in line)
    assert line == f"no tensorboard/ beside log.jsonl: {lacks} is not installed; pip install 'anisodiff[train]'"
    assert not (tmp_path / "tensorboard").exists()
    assert parse("none") == ()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_run_that_ends_before_its_first_step_leaves_the_hook_of_threads(dataset, tmp_path, monkeypatch, error):
    """A disk that is full when the log is begun, and Ctrl-C while TensorBoard starts."""
    pytest.importorskip("tensorboard")
    from accelerate.tracking import TensorBoardTracker

    write, hook = Path.write_text, threading.excepthook

    def ends(*_: Any, **__: Any) -> None:
        assert threading.excepthook is not hook
        raise error

    if error is OSError:
        monkeypatch.setattr(Path, "write_text", lambda p, *a, **k: (ends if "log" in p.name else write)(p, *a, **k))
    else:
        monkeypatch.setattr(TensorBoardTracker, "start", ends)
    with pytest.raises((ValueError, error)):
        train(tiny(images=8), dataset, tmp_path, track=("tensorboard",))
    assert threading.excepthook is hook
