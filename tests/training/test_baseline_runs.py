"""Each baseline from training to images through the same trainer, generator and commands as every other process."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.editing.sdedit import edit
from anisodiff.editing.strength import strength_of_t
from anisodiff.noise import KeyedNoise, combine
from anisodiff.priors import GaussianPrior
from anisodiff.registry import PROCESSES
from anisodiff.samplers import Sampler
from anisodiff.training import Hooks, Plan, load_model, read_log, train
from anisodiff.training.estimate import estimate
from anisodiff.training.model import process_of
from anisodiff.training.preview import fit_prior, sample_grid, showing, start_states
from anisodiff.training.recipes import recipe
from tests.generation.conftest import data  # noqa: F401
from tests.processes.test_baseline_processes import kind_of
from tests.training.conftest import assert_equal, tiny

FEWER = {"heat-dissipation": {"levels": 12}, "edge-preserving": {"levels": 40}}
every_baseline = pytest.mark.parametrize("name", PROCESSES)


def config(name: str, **changes):
    return tiny(process={"preset": name, **FEWER.get(name, {})}, t_min=1e-3, images=20, **changes)


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):  # noqa: F811
    """Run folders by name, each trained once, in two parts."""
    made = {}

    def run(name: str):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "run"
            for images in (8, 20):
                part = dataclasses.replace(config(name), images=images)
                train(part, data, made[name], hooks=Hooks(fit_prior=fit_prior), track=())
        return made[name]

    return run


@every_baseline
def test_continuing_is_bitwise_equal_to_never_having_stopped(name, data, trained, tmp_path):  # noqa: F811
    train(config(name), data, tmp_path / "calm", hooks=Hooks(fit_prior=fit_prior), track=())
    assert_equal(trained(name), tmp_path / "calm")
    records = read_log(trained(name))
    assert records[-1]["images"] == 20
    assert all(np.isfinite(record["loss"]) for record in records if record["loss"] is not None)


@every_baseline
def test_images_from_a_checkpoint(name, trained, data):  # noqa: F811
    """In [0, 1], functions of their seed alone, from the usual sampler; the grid of a run while it trains, too."""
    generator = anisodiff.load(trained(name), "cpu")
    images = generator.sample(3, seed=4, steps=12)
    assert images.shape == (3, 1, 8, 8)
    assert bool(((images >= 0) & (images <= 1)).all())
    torch.testing.assert_close(images[1:2], generator.sample(1, seed=5, steps=12), rtol=0, atol=2e-5)
    assert generator.reverse_process(steps=12).nfe == 12
    if name == "flow-matching-uniform":
        fine = generator.sample(3, seed=4, steps=400, sampler="dopri5")
        torch.testing.assert_close(fine, generator.sample(3, seed=4, steps=100), rtol=0, atol=0.02)
    with pytest.raises(ValueError, match="the sampler 'exponential' needs a process of the SPDE"):
        generator.sample(1, sampler="exponential")
    stored = load_model(trained(name))
    process = stored.plan.process
    start = start_states(process, stored.prior, stored.plan.config, data, 4, torch.device("cpu"))
    grid = sample_grid(stored.model, start, t_min=1e-3, process=process, nfe=8)
    assert grid.shape == (4, 1, 8, 8)
    assert grid.isfinite().all()


@pytest.mark.parametrize("name", ["heat-dissipation", "edge-preserving"])
def test_grids_start_from_the_prior_of_the_method(name, data, tmp_path, monkeypatch):  # noqa: F811
    """Of inverse heat dissipation blurred training images, one a place; of the others the fitted Gaussian."""
    starts, run = [], Sampler.run
    monkeypatch.setattr(
        Sampler, "run", lambda self, model, u, *rest, **keys: starts.append(u) or run(self, model, u, *rest, **keys)
    )
    changed = config(name, sample_every=20)
    train(changed, data, tmp_path, hooks=showing(tmp_path, changed, data), track=())
    if name == "heat-dissipation":
        process, images = process_of(changed), data.first(len(data))
        blurred = process.mean(images, torch.full((len(images),), process.T).double())
        nearest = (starts[0][:, None] - blurred).square().mean((2, 3, 4)).min(1).values
        assert float(nearest.mean()) == pytest.approx(process.noise**2, rel=0.1)
    else:
        fitted = GaussianPrior(**load_model(tmp_path).prior)
        expected = fitted.draw(len(starts[0]), KeyedNoise(combine(0, 1, torch.arange(len(starts[0])))))
        torch.testing.assert_close(starts[0], expected, rtol=0, atol=0)


def test_inverse_heat_starts_from_blurred_training_images(trained, tmp_path):
    """Its own prior is the default and says so; the Gaussian says that it is another method."""
    generator = anisodiff.load(trained("heat-dissipation"), "cpu")
    own, other = generator.named_prior(), generator.named_prior("gaussian")
    assert own.name == "simulate"
    assert "(the training set)" in own.description
    assert own.note(None).startswith("the method's own prior; leakage: ")
    assert other.note(None) == "another method than published, whose prior is simulate"
    images, noise = own.pool.images, generator.process.noise
    drawn = own.prior.draw(64, KeyedNoise(combine(1, torch.arange(64))))
    blurred = generator.process.mean(
        torch.from_numpy(images[:].copy()).float() / 255, torch.ones(len(images)).double()
    )
    nearest = (drawn[:, None] - blurred).square().mean((2, 3, 4)).min(1).values
    assert float(nearest.mean()) == pytest.approx(noise**2, rel=0.1)
    torch.testing.assert_close(generator.sample(2, steps=12), generator.sample(2, steps=12, prior="simulate"))
    alone = tmp_path / "alone"
    shutil.copytree(trained("heat-dissipation") / "checkpoints", alone / "checkpoints")
    with pytest.raises(
        ValueError, match="prior 'simulate', that of this method, starts from images: give them with --images"
    ):
        anisodiff.load(alone, "cpu").sample(1, steps=12)
    assert anisodiff.load(trained("edge-preserving"), "cpu").named_prior().note(None) is None


@every_baseline
def test_edits_keep_what_the_mask_keeps(name, trained, data):  # noqa: F811
    generator = anisodiff.load(trained(name), "cpu")
    images = torch.from_numpy(data.images[:2].copy()).float() / 255
    mask = torch.zeros(8, 8)
    mask[:4] = 1
    new = edit(generator, images, seeds=[1, 2], t=0.5, steps=12, mask=mask)
    torch.testing.assert_close(new[:, :, 4:], images[:, :, 4:])
    assert float((new - images)[:, :, :4].abs().max()) > 0.01
    assert 0 < strength_of_t(generator.model, 0.2) < strength_of_t(generator.model, 0.9) < 1


@every_baseline
def test_a_batch_may_be_cut(name, data, tmp_path):  # noqa: F811
    whole = config(name, batch=8, precision="fp64")
    outcomes = [
        train(dataclasses.replace(whole, accumulation=parts), data, tmp_path / str(parts), track=())
        for parts in (1, 2)
    ]
    assert outcomes[0].loss == pytest.approx(outcomes[1].loss, rel=1e-9)


def test_it_learns(data, tmp_path):  # noqa: F811
    """Flow matching: the loss falls below that of the best constant velocity field, E|ξ|² + E|2x − 1|²."""
    long = tiny(process="flow-matching", images=320, batch=16, lr=1e-2, warm_up=80, log_every=160)
    train(long, data, tmp_path, track=())
    images = torch.from_numpy(data.images[:].copy()).float() / 255
    constant = 1 + float((2 * images - 1).square().mean())
    losses = [record["loss"] for record in read_log(tmp_path)]
    assert losses[-1] < 0.5 * constant, losses


def test_estimates_need_no_data():
    found = estimate(config("edge-preserving"), torch.device("cpu"), torch.rand(16, 1, 8, 8))
    assert found.parameters > 0
    assert found.seconds_per_thousand > 0


@every_baseline
def test_commands(name, command, trained, tmp_path):
    """sample, edit and forward; the protocol says which sampler and how many evaluations."""
    run = trained(name)
    code, out, err = command("sample", run, "--n", 2, "--steps", 12, "--out", "made", "--json", "--device", "cpu")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["process"]["kind"] == kind_of(name)
    assert facts["nfe"] == 12
    assert facts["prior"] == ("simulate" if name == "heat-dissipation" else "gaussian")
    assert facts["sampler"].split("(")[0] in {"heun", "deblurring", "posterior"}
    assert len(list((tmp_path / "made").glob("*.png"))) == 2
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 3).save(tmp_path / "picture.png")
    words = ("edit", run, "picture.png", "--t", 0.5, "--steps", 12, "--figure", "edit.png", "--device", "cpu")
    code, out, err = command(*words)
    assert code == 0, err
    assert (tmp_path / "edit.png").is_file()
    code, out, err = command("forward", "--process", name, "--size", 16, "--output", "way.png", "--device", "cpu")
    assert code == 0, err


@every_baseline
def test_recipes(name):
    """The long ones have their authors' settings, the short ones differ from ours in the process alone."""
    ours, short = recipe("cifar10-anisotropic-base").to_dict(), recipe(f"cifar10-{name}-base").to_dict()
    different = {key for key in ours if ours[key] != short[key]}
    assert different == {"process", "t_min", "channel_pca"}
    features = Plan.of(recipe(f"cifar10-{name}-base")).network.arguments["embedding"]
    assert features == ("positional" if kind_of(name) == "flow-matching" else "fourier")
    lengths = {"flow-matching": 97 * 1800 * 512, "flow-matching-uniform": 400_000 * 128}
    assert recipe(f"cifar10-{name}").images == lengths.get(name, 1_300_000 * 128)
    assert recipe(f"celeba64-{name}").process["preset"] == name
