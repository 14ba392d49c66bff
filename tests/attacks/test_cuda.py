"""On a GPU: kill and resume in deterministic mode, memory that ends in the middle of a step, NaN in one batch."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import anisodiff
from anisodiff.io.checkpoint import folder_of, read
from anisodiff.training import train
from anisodiff.training.hooks import Hooks
from tests.training.conftest import assert_equal, dataset, tiny  # noqa: F401  # a fixture
from tests.training.test_step import spoil

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = needs_cuda
SETTINGS = (
    "network.nf=8",
    "network.blocks=1",
    "batch=4",
    "calibration=16",
    "warm_up=20",
    "log_every=40",
    "sample_every=0",
)


@pytest.fixture(autouse=True)
def switches(monkeypatch):
    """What a run sets is the process's own affair: no test finds the switches of another."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    benchmark, tf32 = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = benchmark, tf32


def test_kill_and_resume_in_deterministic_mode(dataset, tmp_path):  # noqa: F811
    settings = [f"--set={item}" for item in (*SETTINGS, "deterministic=true", "compile=false", "checkpoint_every=20")]
    words = ["train", "ve", "--data", str(dataset.path), "--images", "240", "--device", "cuda", *settings]

    def start(run: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "anisodiff", *words, "-o", str(tmp_path / run)], text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(anisodiff.__file__).parents[1])},
        )  # fmt: skip

    calm = start("calm")
    _, said = calm.communicate(timeout=300)
    assert calm.returncode == 0, said

    def written() -> list[str]:
        return sorted(path.name for path in folder_of(tmp_path / "run").glob("step-*"))

    rng, kills = random.Random(0), 0
    while True:
        before, child = written(), start("run")
        while child.poll() is None and written()[-1:] == before[-1:]:
            time.sleep(0.01)  # until it has written again
        if kills < 2 and child.poll() is None:
            time.sleep(rng.uniform(0, 0.3))
            child.send_signal(signal.SIGKILL)
            child.communicate()
            kills += 1
            continue
        _, said = child.communicate(timeout=300)
        assert child.returncode == 0, said
        break
    assert kills == 2
    assert_equal(tmp_path / "run", tmp_path / "calm")


def test_memory_that_ends_in_the_middle_of_a_step(dataset, tmp_path):  # noqa: F811
    config = tiny(process="anisotropic", deterministic=True, accumulation=2)  # recorded steps allocate nothing
    train(config, dataset, tmp_path / "calm", device="cuda", track=())
    steps: list[int] = []
    held: list[torch.Tensor] = []

    def shrink() -> bool:
        steps.append(1)
        if len(steps) == 5:  # behind the checkpoint of step 3
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
            for size in (1 << 20, 1 << 14, 1 << 9):  # a neighbor takes what is left
                with suppress(torch.OutOfMemoryError):
                    while True:
                        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        return False

    try:
        with pytest.raises(MemoryError, match="not enough memory for") as caught:
            train(config, dataset, tmp_path / "run", device="cuda", hooks=Hooks(stop=shrink), track=())
    finally:
        held.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "\n" not in str(caught.value)
    for step in folder_of(tmp_path / "run").glob("step-*"):
        read(step)
    outcome = train(config, dataset, tmp_path / "run", device="cuda", track=())
    assert outcome.finished
    assert_equal(tmp_path / "run", tmp_path / "calm")


def test_nan_in_one_batch(dataset, tmp_path, monkeypatch):  # noqa: F811
    spoil(monkeypatch, (4,))
    outcome = train(tiny(deterministic=True), dataset, tmp_path, device="cuda", track=())
    assert (outcome.finished, outcome.skipped) == (True, 1)
    for step in folder_of(tmp_path).glob("step-*"):
        for name in ("model", "state/weights", "state/optimizer"):
            for key, value in read(step).tensors(name).items():
                assert bool(torch.isfinite(value.float()).all()), (step.name, key)
