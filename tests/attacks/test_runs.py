"""A run on a bad disk, with bad numbers, on changed images, with another number of threads, or interrupted."""

import errno
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

from anisodiff.data import open_dataset, prepare
from anisodiff.data.memory import in_memory
from anisodiff.io.checkpoint import NotFinite, Snapshot, Store, folder_of, read
from anisodiff.training import TrainConfig, train
from anisodiff.training.hooks import Diverged, Hooks
from tests.support.forged import forge

TINY = TrainConfig(
    process={"preset": "ve"}, network={"name": "tiny", "nf": 4, "blocks": 1, "multipliers": [1]},
    size=(8, 8), channels=1, batch=4, images=24, calibration=16, warm_up=0,
    log_every=4, checkpoint_every=8, sample_every=0,
)  # fmt: skip


@pytest.fixture
def images(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8), np.uint8)
    return prepare(in_memory(pixels), tmp_path / "data", size=8, channels=1).dataset


def poison(folder) -> None:
    """NaN in the weights of a checkpoint, with checksums that fit."""
    data = (folder / "model.safetensors").read_bytes()
    forge(folder, "model.safetensors", data[:-4] + np.float32(np.nan).tobytes())


def test_weights_that_are_not_finite_are_never_written(tmp_path):
    store = Store(tmp_path)
    good = torch.ones(3)

    def snapshot(step: int, weights: torch.Tensor, moments: torch.Tensor) -> Snapshot:
        return Snapshot(step=step, meta={"step": step}, model={"w": weights}, state={"optimizer": {"m": moments}})

    for step in (1, 2):
        store.save(snapshot(step, good, good))
    for bad in (float("nan"), float("inf")):
        for tensors in ((good * bad, good), (good, good * bad)):
            with pytest.raises(NotFinite, match="is not finite"):
                store.save(snapshot(3, *tensors))
    assert sorted(p.name for p in folder_of(tmp_path).iterdir()) == ["step-00000001", "step-00000002"]


def test_a_run_that_becomes_nan_ends_with_its_last_good_checkpoint(tmp_path, images, monkeypatch):
    with pytest.raises(ValueError, match="eps: got 0"):
        TINY.changed({"eps": 0})
    run, steps, step = tmp_path / "run", [], torch.optim.Adam.step

    def divided_by_zero(self: torch.optim.Adam, *words: object) -> None:
        step(self, *words)
        steps.append(1)
        if len(steps) == 5:  # between two checkpoints
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(float("nan"))

    monkeypatch.setattr(torch.optim.Adam, "step", divided_by_zero)
    with pytest.raises(Diverged, match=r"not finite at step 6 .*not written; last good: step-00000004"):
        train(TINY, images, run, track=())
    assert [p.name for p in sorted(folder_of(run).iterdir())] == ["step-00000002", "step-00000004"]
    assert read(folder_of(run) / "step-00000004").step == 4


def test_a_poisoned_checkpoint_is_passed_over(tmp_path, images):
    run, said = tmp_path / "run", []
    train(TINY, images, run, track=())
    poison(folder_of(run) / "step-00000006")
    outcome = train(TINY, images, run, hooks=Hooks(say=said.append), track=())
    assert any("skipped a damaged checkpoint" in line and "not finite" in line for line in said)
    assert any("continuing from step-00000004" in line for line in said)
    assert outcome.finished
    assert len(list(folder_of(run).iterdir())) == 2


@pytest.mark.parametrize("fails", ["__init__", "add_scalar", "close"])
def test_tensorboard_on_a_full_disk_never_ends_a_run(tmp_path, images, monkeypatch, fails):
    import torch.utils.tensorboard as boards

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(boards.SummaryWriter, fails, full)
    said: list[str] = []
    assert train(TINY, images, tmp_path / "run", hooks=Hooks(say=said.append)).finished
    (line,) = (line for line in said if "tensorboard stopped" in line)
    assert "No space left" in line


def test_the_last_save_on_a_disk_of_two_checkpoints(tmp_path):
    """The third does not fit: the older of two good ones makes room, the newer one stays until the end."""
    held: list[list[str]] = []

    def observe(effect: str) -> None:
        complete = sorted(p.name for p in folder_of(tmp_path).iterdir() if p.name.startswith("step-"))
        held.append(complete)
        if effect.startswith("create model") and len(complete) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store, group = Store(tmp_path, observe=observe), {"w": torch.ones(3)}
    for step in (1, 2, 3):
        store.save(Snapshot(step=step, meta={"step": step}, model=group, state={"optimizer": group}))
    assert sorted(p.name for p in folder_of(tmp_path).iterdir()) == ["step-00000002", "step-00000003"]
    first = held.index(["step-00000001", "step-00000002"])
    assert all("step-00000002" in complete for complete in held[first:])


def test_a_dataset_changed_under_a_run_is_noticed(tmp_path, images):
    train(TINY.changed({"images": 8}), images, tmp_path / "run", track=())
    with (images.path / "images.npy").open("r+b") as file:
        file.seek(200)
        file.write(bytes([255 - images.images.reshape(-1)[200 - 128]]))
    described = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(ValueError, match="damaged or changed"):
        train(TINY, open_dataset(images.path), tmp_path / "run", track=())
    assert (tmp_path / "run" / "config.yaml").read_bytes() == described


def test_another_number_of_threads_is_said(tmp_path, images, monkeypatch):
    said: list[str] = []
    train(TINY.changed({"images": 8}), images, tmp_path / "run", track=())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    train(TINY, images, tmp_path / "run", hooks=Hooks(say=said.append), track=())
    assert any("trained with 1 threads so far, now with 3" in line for line in said)
    assert any("OMP_NUM_THREADS=1" in line for line in said)


def test_an_interrupted_run_does_not_look_finished(tmp_path, images, command):
    """So that `train && sample` does not go on."""
    log = tmp_path / "run" / "log.jsonl"

    def interrupt() -> None:
        while not (log.is_file() and log.stat().st_size):  # the first step is done
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    sets = [
        f"--set={item}" for item in ("network.nf=4", "batch=4", "log_every=4", "sample_every=0", "calibration=16")
    ]
    words = ("train", "ve", "--data", images.path, "-o", "run", "--device", "cpu", "--images", 10**6)
    code, out, err = command(*words, *sets)
    assert code == 130, err
    assert out.startswith("stopped at step")


def test_folders_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        store, group = Store(tmp_path), {"w": torch.ones(3)}
        path = store.save(Snapshot(step=1, meta={"step": 1}, model=group, state={}))
        made = prepare(in_memory(np.zeros((2, 8, 8), np.uint8)), tmp_path / "data", size=8, channels=1).dataset.path
    finally:
        os.umask(before)
    assert {folder.stat().st_mode & 0o777 for folder in (path, made)} == {0o750}
