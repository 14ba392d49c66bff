"""Batches prepared ahead of the step that uses them: nothing but the moment of the work is different."""

import os
import signal

import pytest
import torch

from anisodiff.data import Loader
from anisodiff.training import Hooks, find, train
from anisodiff.training import loop as loop_module
from anisodiff.training.step import Stepper
from tests.training.conftest import WINDOWS, assert_equal, tiny
from tests.training.test_step import run_steps, stepper


def everything_of(made: Stepper) -> dict[str, torch.Tensor]:
    """All that a step moves."""
    files = made.state() | {"ema-0": made.ema_weights.of(0)}
    found = {f"{file}:{name}": value for file, tensors in files.items() for name, value in tensors.items()}
    return found | {f"tally:{name}": value for name, value in vars(made.sums).items()}


@pytest.mark.parametrize(("process", "accumulation"), [("heat", 1), (WINDOWS, 2)])
def test_a_batch_prepared_before_the_last_step_makes_the_same_step(dataset, process, accumulation):
    """To the bit: what is prepared knows neither the weights nor what was prepared before it."""
    config = tiny(process=process, batch=8, accumulation=accumulation)
    plain, made = run_steps(config, dataset, 3), stepper(config, dataset)
    loader = Loader(dataset, batch=config.batch, seed=config.seed, flip=config.flip)
    following = made.prepare(0, loader.batch(0)[0])
    for k in range(3):
        prepared = following
        assert len(prepared.parts) == accumulation
        with made.ahead():
            following = made.prepare(k + 1, loader.batch(k + 1)[0])
        made.step(k, prepared)
    expected, found = everything_of(plain), everything_of(made)
    assert expected.keys() == found.keys()
    assert len(found) > 100
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


def test_a_step_takes_only_what_was_prepared_for_it(dataset):
    made = stepper(tiny(), dataset)
    prepared = made.prepare(3, torch.rand(4, 1, 8, 8))
    with pytest.raises(AssertionError, match="step 2 was given what was prepared for step 3"):
        made.step(2, prepared)


@pytest.fixture
def calls(monkeypatch) -> dict[str, list[int]]:
    """Which batches a run takes from the loader, prepares, and makes steps of, in the order of the work."""
    seen: dict[str, list[int]] = {"taken": [], "prepared": [], "made": []}
    prepare, step, iterate = Stepper.prepare, Stepper.step, Loader.iterate

    def noted_prepare(self, k, images, labels=None):
        seen["prepared"].append(k)
        return prepare(self, k, images, labels)

    def noted_step(self, k, images):
        seen["made"].append(k)
        step(self, k, images)

    def noted_iterate(self, start=0):
        for k, batch in enumerate(iterate(self, start), start):
            seen["taken"].append(k)
            yield batch

    monkeypatch.setattr(Stepper, "prepare", noted_prepare)
    monkeypatch.setattr(Stepper, "step", noted_step)
    monkeypatch.setattr(loop_module.Loader, "iterate", noted_iterate)
    return seen


@pytest.mark.parametrize("how", ["asked", "signal"])
def test_a_stop_leaves_the_state_of_the_steps_made(dataset, tmp_path, calls, how):
    """And nothing is taken or prepared that no step is made of; neither then, nor at the end of the run.

    The signal comes while the run asks its hook, whose "no" must not take it back.
    """
    config = tiny()

    def stop() -> bool:
        if len(calls["made"]) < 4:
            return False
        if how == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        return how == "asked"

    outcome = train(config, dataset, tmp_path / "run", hooks=Hooks(stop=stop), track=())
    assert (outcome.finished, outcome.step) == (False, 4)
    assert calls == {name: [0, 1, 2, 3] for name in ("taken", "prepared", "made")}
    saved, made = find(tmp_path / "run"), run_steps(config, dataset, 4)
    for file, tensors in made.state().items():
        found = saved.tensors(f"state/{file}")
        assert found.keys() == tensors.keys()
        for name, value in tensors.items():
            assert torch.equal(found[name], value), f"{file}: {name}"
    for seen in calls.values():
        seen.clear()
    assert train(config, dataset, tmp_path / "run", track=()).finished
    assert calls == {name: [4, 5, 6, 7, 8, 9] for name in ("taken", "prepared", "made")}
    train(config, dataset, tmp_path / "calm", track=())
    assert_equal(tmp_path / "run", tmp_path / "calm")


def test_images_that_cannot_be_read_end_a_run_after_the_steps_before_them(dataset, tmp_path, calls, monkeypatch):
    iterate = Loader.iterate

    def until_the_disk_fails(self, start=0):
        for k, batch in enumerate(iterate(self, start), start):
            if k == 6:
                raise OSError("cannot read")
            yield batch

    monkeypatch.setattr(loop_module.Loader, "iterate", until_the_disk_fails)
    with pytest.raises(OSError, match="cannot read"):
        train(tiny(), dataset, tmp_path, track=())
    assert calls["made"] == calls["prepared"] == list(range(6))
    assert find(tmp_path).step == 6  # checkpoints after steps 3, 6, 9
