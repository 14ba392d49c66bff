"""Sampling from a checkpoint: reproducible, from any prior, from any time."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import anisodiff
from anisodiff import registry
from anisodiff.data import prepare
from anisodiff.generation import SamplingConfig
from anisodiff.generation.reverse import START, keys_of, parse_seeds, write_seeds
from anisodiff.io.grids import to_pixels
from anisodiff.noise import KeyedNoise
from anisodiff.priors import GaussianPrior
from anisodiff.training import Hooks, TrainConfig, find, train
from anisodiff.training.model import as_trained, load_model
from anisodiff.training.preview import fit_prior
from anisodiff.training.run_folder import NAME, read_run, write_run
from anisodiff.training.slim import slim
from tests.training.conftest import pixels, tiny

TOLERANCE = 2e-5
"""Between batch sizes, in units of the images' range, float32 on a CPU; a level of a PNG is 4e-3."""


def shake(generator) -> None:
    """Give the network something to say: it begins as zero, and ten steps of training hardly change that."""
    noise = torch.Generator().manual_seed(0)
    for weight in generator.model.network.parameters():
        weight.add_(0.1 * torch.randn(weight.shape, generator=noise))


@pytest.mark.parametrize("name", ["exponential", "ode", "euler", "ancestral"])
def test_a_sample_depends_on_its_seed_alone(runs, name):
    # the exact ancestral step is for linear processes
    generator = anisodiff.load(runs("heat" if name == "ancestral" else "anisotropic"), "cpu")
    options = {"steps": 22, "sampler": name}
    calm = generator.sample(6, seed=3, **options)
    shake(generator)
    together = generator.sample(6, seed=3, **options)
    assert (together - calm).abs().max() > 0.05
    assert together.shape == (6, 1, 8, 8)
    assert together.dtype == torch.float32
    assert together.min() >= 0
    assert together.max() <= 1
    pairs = generator.sample(6, seed=3, batch=2, **options)
    shuffled = generator.sample_seeds([8, 3, 5, 4, 7, 6], batch=4, **options)
    for other in (pairs, shuffled[[1, 3, 2, 5, 4, 0]]):
        torch.testing.assert_close(other, together, rtol=0, atol=TOLERANCE)
        levels = np.abs(to_pixels(other).astype(int) - to_pixels(together).astype(int))
        assert levels.max() <= 1
    assert (together[0] - together[1]).abs().max() > 0.01


@pytest.mark.parametrize("prior", ["simulate", "conditional"])
def test_priors_from_images_depend_on_the_seed_alone(runs, data, prior):
    generator = anisodiff.load(runs("anisotropic"), "cpu", data.path)
    together = generator.sample(5, steps=12, prior=prior)
    single = generator.sample_seeds([3], steps=12, prior=prior)
    torch.testing.assert_close(single[0], together[3], rtol=0, atol=TOLERANCE)


def test_reverse_from_the_terminal_time_is_sampling(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    seeds = (4, 9, 11)
    states = generator.prior("gaussian").draw(3, KeyedNoise(keys_of(seeds, START, generator.device)))
    again = generator.reverse(states, generator.process.T, seeds=seeds, steps=10)
    torch.testing.assert_close(again, generator.sample_seeds(seeds, steps=10), rtol=0, atol=TOLERANCE)


def test_a_config_and_its_keys_are_one(runs):
    generator = anisodiff.load(runs("ve"), "cpu")
    config = SamplingConfig(steps=9, sampler="euler")
    expected = generator.sample(2, seed=3, steps=9, sampler="ode")
    for found in (
        generator.sample_seeds([3, 4], replace(config, sampler="ode")),
        generator.sample_seeds([3, 4], config, sampler="ode"),  # a key goes before the config
    ):
        assert torch.equal(found, expected)
    states = torch.full((2, *generator.state_shape), 0.5)
    for call in (partial(generator.reverse, states, 1.0), partial(anisodiff.edit, generator, states, t=1.0)):
        assert torch.equal(call(config, seeds=0), call(seeds=0, steps=9, sampler="euler"))
        with pytest.raises(ValueError, match="starts from a given state here; leave the prior out"):
            call(config, seeds=0, prior="simulate")
        with pytest.raises(TypeError, match="step_count"):
            call(config, seeds=0, step_count=3)


@pytest.mark.parametrize("process", ["ve", "anisotropic"])
def test_reverse_from_the_middle_restores(runs, data, process):
    generator = anisodiff.load(runs(process), "cpu")
    images = torch.from_numpy(data.images[:8].copy()).float() / 255
    t = 1.4
    noisy = generator.process.simulate(images, t, torch.Generator().manual_seed(0))
    restored = generator.reverse(noisy, t, seeds=range(8), steps=20)
    assert (restored - images).square().mean() < 0.5 * (noisy - images).square().mean()


def test_a_callback_sees_the_way_from_noise_to_image(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    seen = []
    images = generator.sample(3, steps=7, batch=2, callback=seen.append)
    first = [step for step in seen if step.seeds == (0, 1)]
    assert [step.number for step in first] == list(range(first[0].of + 1))
    assert [step.seeds for step in seen[-len(first) :]] == [(2,)] * len(first)
    times = [step.t for step in first]
    assert times[0] == generator.process.T
    assert times[-2:] == [pytest.approx(0.02), 0.0]
    assert times == sorted(times, reverse=True)
    torch.testing.assert_close(first[-1].state, images[:2])
    start = generator.prior("gaussian").draw(2, KeyedNoise(keys_of((0, 1), START, generator.device)))
    torch.testing.assert_close(first[0].state, start)


def test_where_the_noise_stops_at_edges_auto_is_a_sampler_that_can_follow_it(data, tmp_path):
    process = {"preset": "anisotropic-paper", "noise_anisotropy": 1.0, "step": "tamed(dt=0.1)"}
    train(tiny(process=process), data, tmp_path, hooks=Hooks(fit_prior=fit_prior), track=())
    generator = anisodiff.load(tmp_path, "cpu")
    reverse = generator.reverse_process(steps=25)
    assert str(reverse.sampler).startswith("euler(")
    assert "drift=projected" in str(reverse.sampler)
    assert generator.sample(2, steps=25).isfinite().all()
    with pytest.raises(ValueError, match="use 'euler'"):
        generator.reverse_process(steps=25, sampler="exponential")
    again = anisodiff.load(tmp_path, "cpu").reverse_process(steps=25, sampler=reverse.sampler)
    assert str(again.sampler) == str(reverse.sampler)


def test_loads_runs_checkpoints_and_exports(runs, tmp_path):
    run = runs("heat")
    slim(run, tmp_path / "half")
    expected = anisodiff.load(run, "cpu").sample(3, steps=6)
    torch.testing.assert_close(anisodiff.load(find(run).path, "cpu").sample(3, steps=6), expected)
    half = anisodiff.load(tmp_path / "half", "cpu").sample(3, steps=6)
    torch.testing.assert_close(half, expected, rtol=0, atol=5e-3)  # weights rounded to 11 bits
    assert not torch.equal(half, expected)
    slim(run, tmp_path / "eight", torch.int8)
    eight = anisodiff.load(tmp_path / "eight", "cpu").sample(3, steps=6)
    torch.testing.assert_close(eight, expected, rtol=0, atol=0.02)  # weights rounded to 8 bits
    assert not torch.equal(eight, half)
    sizes = [(find(tmp_path / name).path / "model.safetensors").stat().st_size for name in ("half", "eight")]
    assert sizes[1] < sizes[0]
    rough = anisodiff.load(run, "cpu", precision="bf16").sample(3, steps=6)
    torch.testing.assert_close(rough, expected, rtol=0, atol=0.05)
    assert not torch.equal(rough, expected)


def test_a_checkpoint_without_a_prior_fits_one_to_images(runs, data, tmp_path):
    from anisodiff.training import train
    from tests.training.conftest import tiny

    train(tiny(images=4), data, tmp_path / "bare", track=())
    (tmp_path / "bare" / NAME).unlink()  # it says where the images are
    with pytest.raises(ValueError, match="no fitted prior, images are needed"):
        anisodiff.load(tmp_path / "bare", "cpu").sample(1)
    start = anisodiff.load(tmp_path / "bare", "cpu", data).named_prior("gaussian")
    assert isinstance(start.prior, GaussianPrior)
    assert start.leakage(torch.device("cpu")) is None
    assert "fitted just now" in start.description


def test_heldout_images_are_told_by_their_pixels(runs, data, tmp_path):
    np.save(tmp_path / "others.npy", pixels(12, seed=5))
    others = prepare(tmp_path / "others.npy", tmp_path / "others", size=8, channels=1).dataset
    generator = anisodiff.load(runs("heat"), "cpu")
    start = generator.named_prior("heldout", others)
    leakage = start.leakage(torch.device("cpu"))
    assert leakage.images == 12
    assert "held-out" in start.note(leakage)
    same = torch.from_numpy(data.images.copy()).float() / 255
    shutil.copytree(runs("heat"), tmp_path / "run")
    write_run(tmp_path / "run", replace(read_run(runs("heat")), heldout=others.path))
    step = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    for path in (tmp_path / "run", step):  # it finds its images by itself
        own = anisodiff.load(path, "cpu")
        assert own.named_prior("heldout").description.endswith("from 12 images of others, which the run kept aside")
    for name in ("simulate", "conditional"):
        assert "40 images of data (the training set)" in own.named_prior(name).description
    for training in (data, data.path, data.path.parent / "raw.npy", same):
        with pytest.raises(ValueError, match="outside the training set"):
            generator.prior("heldout", training)
    assert "the training set" in generator.named_prior("simulate", same).description
    note = generator.named_prior("simulate", same).note(
        generator.named_prior("simulate", same).leakage(torch.device("cpu"))
    )
    assert note.startswith("leakage: ")
    assert "correlation 0." in note


def test_mistakes_are_named(runs, data):
    generator = anisodiff.load(runs("heat"), "cpu")
    states = torch.zeros(2, 1, 8, 8)
    for t in (0.0, -1.0, 2.5, float("nan"), 0.02):
        with pytest.raises(ValueError, match=r"expected a time in \(t_min, T\] = \(0.02, 2\]"):
            generator.reverse(states, t, seeds=[0, 1])
    mistakes = [
        (lambda: generator.sample(2, steps=0), "steps: got 0"),
        (lambda: generator.sample("2"), "n: got '2', expected a whole number, 1 or more"),
        (lambda: generator.sample(2, steps="4"), "steps: got '4', expected a whole number, 1 or more"),
        (lambda: generator.sample(0), "n: got 0, expected a whole number, 1 or more"),
        (lambda: generator.sample(2, seed=-1), "got -1"),
        (lambda: generator.sample(2, batch=0), "batch: got 0"),
        (lambda: generator.sample(2, prior="gausian"), "did you mean 'gaussian'"),
        (lambda: generator.sample(2, prior="heldout"), "starts from images"),
        (lambda: generator.sample(2, sampler="exponentail"), "exponential"),
        (lambda: generator.sample_seeds([1.7]), "seeds must be whole numbers"),
        (lambda: generator.reverse(states, 1.0, seeds=[0]), "one for every seed"),
        (lambda: generator.reverse(states / 0, 1.0, seeds=[0, 1]), "states: they hold NaN or infinite values"),
        (lambda: generator.prior("simulate", torch.zeros(2, 3, 8, 8)), "the model makes 1×8×8"),
        (lambda: generator.prior("simulate", torch.full((2, 1, 8, 8), 2.0)), r"in \[0, 1\]"),
        (lambda: anisodiff.load(runs("heat"), "cpu", precision="fp8"), "precision"),
        (lambda: anisodiff.load(runs("heat"), "tpu"), "unknown device"),
    ]
    for call, says in mistakes:
        with pytest.raises(ValueError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)


class Broken(nn.Module):
    """A network that has lost its mind."""

    def forward(self, x, condition, dropout_key=None):
        return torch.full_like(x, float("inf"))


def test_a_diverging_sample_is_said_and_not_written(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    generator.model.network = Broken()
    with pytest.raises(ValueError, match="seeds 5 to 6 are not finite"):
        generator.sample(2, seed=5, steps=4)


def test_a_generator_says_what_it_is(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    count = sum(weight.numel() for weight in generator.model.network.parameters())
    assert repr(generator) == f"Generator({runs('heat')}: process heat, images 1×8×8, {count:,} parameters, on cpu)"


def test_seeds_read_back():
    assert parse_seeds("0-3") == (0, 1, 2, 3)
    assert parse_seeds("7, 9-10,3") == (3, 7, 9, 10)
    assert write_seeds(parse_seeds("9-10,3,7-8")) == "3,7-10"
    for text in ("", "a", "3-1", "-3", "1,1", "0-2,2", "1-", "0-99999999999", str(2**62)):
        with pytest.raises(ValueError, match="seed"):
            parse_seeds(text)


def test_a_model_has_the_process_it_was_trained_with(runs):
    """Also where its preset has other parameters today."""
    saved = find(runs("heat"))
    assert load_model(saved).plan.process.T == 2.0
    other = {**saved.meta["process"], "T": 3.0}
    loaded = load_model(replace(saved, meta={**saved.meta, "process": other})).plan
    assert loaded.process.identity() == other
    assert loaded.config.process == {"preset": "heat", "T": 3.0}
    fixed = TrainConfig(process={"preset": "flow-matching-uniform"})  # its density belongs to its name
    trained = registry.process("flow-matching-uniform", 32, sigma_min=0.125).identity()
    assert trained["density"] == "uniform"
    kept = as_trained(fixed, {"process": trained, "config": fixed.to_dict()})
    assert kept.process == {"preset": "flow-matching-uniform", "sigma_min": 0.125}
    foreign = {"kind": "flow-matching", "T": 1.0}
    with pytest.raises(ValueError, match="was trained with another process than its config describes: "):
        load_model(replace(saved, meta={**saved.meta, "process": foreign}))
