"""One step: what it depends on, what it leaves out, and that it learns."""

import dataclasses

import numpy as np
import pytest
import torch

from anisodiff.data import Loader, prepare
from anisodiff.processes import TrainingPair
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import Diverged, Hooks, Plan, read_log, train
from anisodiff.training import loop as loop_module
from anisodiff.training.model import assemble, calibration_images
from anisodiff.training.step import BINS, Stepper
from tests.training.conftest import everything, tiny

CPU = torch.device("cpu")


def stepper(config, dataset, process=None) -> Stepper:
    plan = Plan.of(config)
    distributed = Distributed(CPU)
    statistics = plan.statistics(calibration_images(config, dataset, CPU))
    network, execution, model = assemble(plan, statistics, distributed)
    plan = plan if process is None else dataclasses.replace(plan, process=process)
    return Stepper(plan, model, network, execution, distributed)


def run_steps(config, dataset, steps=2, process=None) -> Stepper:
    """Steps one after the other, each with its images."""
    made = stepper(config, dataset, process)
    loader = Loader(dataset, batch=config.batch, seed=config.seed, flip=config.flip)
    for k in range(steps):
        made.step(k, loader.batch(k)[0].to(Plan.of(config).dtype))
    return made


def weights(made: Stepper) -> torch.Tensor:
    return torch.cat([w.detach().flatten() for w in made.weights.values()])


@pytest.mark.parametrize("process", ["heat", "anisotropic", "anisotropic-paper"])
def test_accumulation_changes_nothing(dataset, process):
    config = tiny(process=process, precision="fp64", batch=8)
    if process != "heat":
        step = "tamed(dt=0.25)" if process == "anisotropic-paper" else "exponential(windows=2)"
        config = config.changed({"process.step": step, "level_mean": 0.0})
    whole = run_steps(config, dataset)
    parts = run_steps(dataclasses.replace(config, accumulation=4), dataset)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=1e-9)
    torch.testing.assert_close(whole.sums.loss, parts.sums.loss, rtol=1e-9, atol=1e-9)
    assert float(whole.sums.count.sum()) == 16


def test_the_seed_decides(dataset):
    first = weights(run_steps(tiny(), dataset))
    assert torch.equal(first, weights(run_steps(tiny(), dataset)))
    other = run_steps(tiny(), dataset)
    other.step(2, torch.zeros(4, 1, 8, 8))
    assert not torch.equal(first, weights(other))


def test_dropout_is_on_while_training(dataset):
    with_mask = run_steps(tiny(), dataset, 4)
    without = run_steps(tiny().changed({"network.dropout": 0.0}), dataset, 4)
    assert not torch.allclose(with_mask.sums.loss, without.sums.loss, rtol=1e-4)


def test_adam_clips_and_warms_up_as_written(dataset):
    """Adam's first step is lr·g/(|g| + ε): the same length for all weights, however much is clipped."""
    config = tiny(warm_up=80, clip=1e-3, lr=1e-2)
    made = stepper(config, dataset)
    before = weights(made).clone()
    made.step(0, torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    moved = (weights(made) - before).abs()
    lr = 1e-2 * 4 / 80
    assert made.lr(0) == pytest.approx(lr)
    assert float(moved.max()) == pytest.approx(lr, rel=1e-2)
    grads = torch.cat([w.grad.flatten() for w in made.weights.values()])
    assert float(grads.norm()) == pytest.approx(1e-3, rel=1e-3)
    assert float(made.sums.norm[0]) > 1e-3
    assert [made.lr(k) for k in (9, 19, 500)] == pytest.approx([5e-3, 1e-2, 1e-2])


@dataclasses.dataclass(frozen=True)
class Spoiled:
    """A process whose training pairs are not finite in some of the steps."""

    inner: object
    bad: tuple[int, ...]
    calls: list

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def training_pair(self, x0, t, rng):
        drawn = self.inner.training_pair(x0, t, rng)
        self.calls.append(None)
        if len(self.calls) - 1 not in self.bad:
            return drawn
        score = drawn.target.clone()
        score[1] = torch.nan
        return TrainingPair(drawn.state, score, drawn.drift)


def test_a_bad_batch_is_left_out_and_counted(dataset):
    config = tiny()
    process = Plan.of(config).process
    made = stepper(config, dataset, Spoiled(process, (1, 2), []))
    loader = Loader(dataset, batch=4, seed=0)
    seen = []
    for k in range(4):
        made.step(k, loader.batch(k)[0])
        step = {float(made.adam.state[w]["step"]) for w in made.weights.values()}
        ema_weights = torch.cat([value.flatten() for value in made.ema_weights.of(0).values()])
        seen.append((weights(made).clone(), ema_weights, step, [float(x) for x in made.sums.skipped]))
    for k in (1, 2):
        assert torch.equal(seen[k][0], seen[0][0])
        assert torch.equal(seen[k][1], seen[0][1])
    assert [s[2] for s in seen] == [{1.0}, {1.0}, {1.0}, {2.0}]
    assert [s[3] for s in seen] == [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 0, 2]]
    assert not torch.equal(seen[3][0], seen[2][0])
    assert weights(made).isfinite().all()
    t = made.draw(2).t_host[1].item()  # the sample that was spoiled in the third step
    assert made.sums.where.tolist() == pytest.approx([3, t, t])
    assert float(made.sums.count.sum()) == 8


def spoil(monkeypatch, bad):
    """Let a whole run meet bad batches."""
    calls = []
    original = loop_module.Stepper
    monkeypatch.setattr(
        loop_module,
        "Stepper",
        lambda plan, *rest: original(dataclasses.replace(plan, process=Spoiled(plan.process, bad, calls)), *rest),
    )


def test_one_bad_batch_does_not_stop_a_run(dataset, tmp_path, monkeypatch):
    spoil(monkeypatch, (3, 6))
    outcome = train(tiny(), dataset, tmp_path, track=())
    assert (outcome.finished, outcome.skipped, outcome.step) == (True, 2, 10)
    assert read_log(tmp_path)[-1]["skipped"] == 2
    assert all(value.isfinite().all() for value in everything(tmp_path).values())


def test_many_bad_batches_stop_a_run_and_say_where(dataset, tmp_path, monkeypatch):
    spoil(monkeypatch, tuple(range(4, 100)))
    with pytest.raises(
        Diverged, match=r"non-finite loss in 5 steps in a row, last in step 9 for t from .* noise level from"
    ) as told:
        train(tiny(), dataset, tmp_path, track=())
    assert everything(tmp_path)  # the checkpoint of step 3 or 6 stands
    # a run cannot be continued with another lr or precision: the way that is left must be named
    assert "a new run --from this one" in str(told.value)


def test_a_bad_gradient_of_finite_losses_is_named_as_such(dataset):
    """The times of the batch tell nothing then."""
    made = stepper(tiny(), dataset)
    next(iter(made.weights.values())).register_hook(lambda gradient: gradient * torch.nan)
    loader = Loader(dataset, batch=4, seed=0)
    before = weights(made).clone()
    for k in range(6):
        made.step(k, loader.batch(k)[0])
        if k < 4:
            made.check()
    assert torch.equal(weights(made), before)
    with pytest.raises(Diverged) as told:
        made.check()
    assert "non-finite gradient (losses are finite) in 6 steps in a row, last in step 6; " in str(told.value)
    assert "noise level" not in str(told.value)


def test_it_learns(tmp_path):
    """Two pictures are far from Gaussian: a network that tells them apart beats the Wiener filter by far."""
    picture = np.random.default_rng(0).integers(0, 2, (1, 1, 8, 8)) * 255
    np.save(tmp_path / "raw.npy", np.concatenate([picture, 255 - picture] * 16).astype(np.uint8))
    dataset = prepare(tmp_path / "raw.npy", tmp_path / "data", size=8, channels=1).dataset
    config = tiny(
        network={"name": "small", "nf": 16, "multipliers": [1, 1], "blocks": 1, "dropout": 0.0}, process="ve",
        batch=16, images=16 * 80, warm_up=160, lr=2e-3, calibration=32, log_every=320, checkpoint_every=0,
        flip=False, level_mean=0.0, level_std=0.5,
    )  # fmt: skip
    train(config, dataset, tmp_path / "run", track=())
    losses = [record["loss"] for record in read_log(tmp_path / "run")]
    assert losses[-1] < 0.7 * losses[0]


def test_the_log_says_what_it_should(dataset, tmp_path):
    shown = []
    train(tiny(), dataset, tmp_path, hooks=Hooks(on_log=shown.append), track=())
    records = read_log(tmp_path)
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10]
    last = records[-1]
    assert last["images"] == 40
    assert last["lr"] == pytest.approx(1e-3)
    assert last["images_per_second"] > 0
    assert last["grad_norm"] > 0
    assert len(last["loss_by_level"]) == BINS == len(last["level_edges"]) + 1
    assert [r["loss"] for r in shown] == [r["loss"] for r in records]
