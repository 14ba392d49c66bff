"""What goes wrong beside the training itself: pictures, memory, logs, very long runs."""

import shutil

import pytest
import torch

from anisodiff.io.checkpoint import Store, folder_of
from anisodiff.training import Hooks, newest, train
from anisodiff.training.estimate import estimate
from anisodiff.training.model import Execution
from anisodiff.training.step import Stepper
from tests.training.conftest import assert_equal, tiny


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("cannot write grid.png")])
def test_a_grid_that_cannot_be_made_does_not_end_a_run(dataset, calm, tmp_path, error):
    """Where the disk is full, or a picture fails for another reason, the weights are worth more than the picture."""
    said = []

    def fail(model, step, prior):
        raise error

    hooks = Hooks(on_interval=fail, say=said.append)
    assert train(tiny(sample_every=8), dataset, tmp_path, hooks=hooks, track=()).finished
    assert_equal(tmp_path, calm)
    told = [line for line in said if line.startswith("no samples at step")]
    assert len(told) == 5
    assert str(error) in told[0]


def test_checkpoints_are_ordered_by_number(dataset, calm, tmp_path):
    """Beyond 99,999,999 steps a name has nine digits and sorts before those of eight."""
    source = newest(calm)
    for step in (99_999_998, 99_999_999, 100_000_000):
        shutil.copytree(source.path, folder_of(tmp_path) / f"step-{step:08d}")
    assert newest(tmp_path).path.name == "step-100000000"
    store = Store(tmp_path, good={"step-99999998", "step-99999999", "step-100000000"})
    store._prune(keep=2)
    assert sorted(p.name for p in folder_of(tmp_path).iterdir()) == ["step-100000000", "step-99999999"]


FULL = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has\n a capacity"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried"),
)


@pytest.mark.parametrize("error", FULL, ids=["cuda", "cpu"])
@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "--set accumulation=2"),
        ({"accumulation": 2}, "--set accumulation=4"),
        ({"batch": 6, "images": 60}, "--set accumulation=2"),
        ({"batch": 6, "images": 60, "accumulation": 2}, "--set accumulation=3"),
        ({"accumulation": 4}, "--set recompute=true"),
        ({"accumulation": 4, "recompute": True}, "a smaller network"),
    ],
)
def test_too_little_memory_is_one_line_with_a_remedy(dataset, tmp_path, monkeypatch, error, changes, remedy):
    """The remedies change no result, so the run can be continued with them."""

    def fail(*_):
        raise error

    monkeypatch.setattr(Stepper, "step", fail)
    with pytest.raises(MemoryError) as told:
        train(tiny(**changes), dataset, tmp_path, track=())
    assert remedy in str(told.value)
    assert "\n" not in str(told.value)
    monkeypatch.setattr(Execution, "forward", fail)
    with pytest.raises(MemoryError, match=remedy):
        estimate(tiny(**changes), torch.device("cpu"), torch.rand(8, 1, 8, 8))


def test_other_failures_are_left_as_they_are(dataset, tmp_path, monkeypatch):
    def fail(self, k, images):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Stepper, "step", fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(tiny(), dataset, tmp_path, track=())
