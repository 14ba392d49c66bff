"""Texture for cartoons: with the process `cartoon`, and with a network that is told the cartoon."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from anisodiff.cartoons import Median
from anisodiff.editing import edit, from_cartoon
from anisodiff.generation import load
from anisodiff.metrics.bits import BitsSettings, bits_per_dimension
from anisodiff.models.base import ModelOptions
from anisodiff.registry import process as process_named
from anisodiff.training import Hooks, Plan, train
from anisodiff.training.estimate import estimate
from anisodiff.training.preview import evaluation_seconds, fit_prior
from tests.training.conftest import assert_equal, pixels, tiny

CPU = ["--device", "cpu"]
TOLD = {"preset": "ve", "condition": "median(radius=1)"}


@pytest.fixture(scope="session")
def told(data, tmp_path_factory) -> Path:
    """A run of `ve` whose network is told a median-filtered image."""
    run = tmp_path_factory.mktemp("told") / "run"
    train(tiny(process=TOLD), data, run, hooks=Hooks(fit_prior=fit_prior), track=())
    return run


@pytest.fixture
def cartoons() -> torch.Tensor:
    return Median(radius=1)(torch.from_numpy(pixels(4, seed=3)).float() / 255)


def test_a_cartoon_starts_as_it_is(runs, cartoons):
    """The first state is the picture with white noise of σ = 0.1, not smoothed; a seed does not see its batch."""
    generator = load(runs("cartoon"), "cpu")
    seen = []
    made = from_cartoon(generator, cartoons, seeds=range(4), steps=5, callback=seen.append)
    assert made.shape == cartoons.shape
    first = seen[0]
    assert (first.number, first.t) == (0, generator.process.smoothing_end)
    off = first.state - cartoons
    assert float(off.std()) == pytest.approx(0.1, rel=0.2)
    assert abs(float(off.mean())) < 4 * 0.1 / off.numel() ** 0.5
    alone = from_cartoon(runs("cartoon"), cartoons[2:3], seeds=[2], steps=5)  # the path of the model
    torch.testing.assert_close(alone, made[2:3], rtol=0, atol=2e-5)
    later = []
    from_cartoon(generator, cartoons, seeds=range(4), t=1.0, steps=5, callback=later.append)
    assert later[0].t == 1.0
    for t, words in ((0.1, "where nothing is smoothed"), (2.5, "where nothing is smoothed")):
        with pytest.raises(ValueError, match=words):
            from_cartoon(generator, cartoons, seeds=range(4), t=t)
    with pytest.raises(ValueError, match="never ends its smoothing"):
        from_cartoon(load(runs("ve"), "cpu"), cartoons, seeds=range(4))


def test_the_command(command, runs, refused):
    Image.fromarray(pixels(3)[2, 0]).save("ramp.png")
    words = ["edit", runs("cartoon"), "ramp.png", "--cartoon", "--steps", 4, "--out", "made", *CPU]
    code, out, err = command(*words, "--paint", "flat(colors=3, area=5)", "-n", 2, "--figure", "f.png")
    assert code == 0, err
    assert "cartoon at t = 0.54" in out
    assert "2 of 2 results made: 8 network evaluations" in out
    record = json.loads(Path("made/edit.json").read_text())
    assert record["cartoon"] is True
    assert record["strokes"] == "flat(colors=3, area=5)"
    (folder,) = [p for p in Path("made").iterdir() if p.name.startswith("t")]
    assert len(list(folder.iterdir())) == 2
    assert Path("f.png").is_file()
    later = [*words[:-3], "later", *CPU]
    assert command(*later, "--t", 1.2)[0] == 0
    for more, says in (
        (["--t", "0.1"], "where nothing is smoothed"),
        (["--mask", "ramp.png"], "drop --restore, --mask, --repeats and --sweep"),
        (["--repeats", "2"], "drop --restore, --mask, --repeats and --sweep"),
        (["--paint", "flta"], "unknown --paint 'flta'; did you mean 'flat'?"),
        (["--paint", "median", "--strokes", "3"], "--paint excludes --strokes"),
    ):
        refused(*later, *more, says=says)
    refused("edit", runs("ve"), "ramp.png", "--cartoon", "--out", "other", *CPU, says="never ends its smoothing")


def test_a_conditional_model_is_told_the_cartoon(told, cartoons, command, refused):
    generator = load(told, "cpu")
    assert generator.plan.network.arguments["in_channels"] == 2
    assert generator.plan.network.arguments["out_channels"] == 1
    made = from_cartoon(generator, cartoons, seeds=range(4), steps=5)
    other = from_cartoon(generator, cartoons.flip(0), seeds=range(4), steps=5)
    assert not torch.allclose(made, other)
    torch.testing.assert_close(
        from_cartoon(generator, cartoons[1:2], seeds=[1], steps=5), made[1:2], rtol=0, atol=2e-5
    )
    torch.testing.assert_close(
        generator.sample_seeds(range(4), steps=5, condition=cartoons, batch=3), made, rtol=0, atol=2e-5
    )
    for call, words in (
        (lambda: generator.sample(4), "makes images from cartoons: anisodiff edit MODEL"),
        (lambda: edit(generator, cartoons, seeds=range(4), strength=0.5), "makes images from cartoons"),
        (lambda: generator.sample_seeds([0], condition=cartoons), r"condition: got \[4, 1, 8, 8\], expected \[1,"),
        (lambda: from_cartoon(generator, cartoons, seeds=range(4), t=2.5), r"expected a time in \(t_min, T\]"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert not refused(
        "sample", told, "--n", "2", "--steps", "4", "--out", "x.zip", *CPU, says="makes images from cartoons"
    )
    refused("evaluate", told, "--n", "2", "--network", "none", *CPU, says="makes images from cartoons")
    Image.fromarray(pixels(3)[2, 0]).save("ramp.png")
    code, out, err = command("edit", told, "ramp.png", "--cartoon", "--steps", 4, "--out", "made", *CPU)
    assert code == 0, err
    assert "cartoon at t = 2 " in out
    assert len(list(Path("made/t2").iterdir())) == 1


def test_a_conditional_model_may_start_from_the_cartoon(told, cartoons):
    """At t the state is the picture with the noise of t, as in SDEdit, and the network sees the picture as well."""
    generator, seen = load(told, "cpu"), []
    made = from_cartoon(generator, cartoons, seeds=range(4), t=0.3, steps=5, callback=seen.append)
    sigma = 0.01 * (5000**0.3 - 1) ** 0.5  # of `ve`, 0.01 to 50
    off = seen[0].state - cartoons
    assert (seen[0].t, float(off.std())) == (0.3, pytest.approx(sigma, rel=0.2))
    states = seen[0].state
    told_other = generator.reverse(states, 0.3, seeds=range(4), steps=5, condition=cartoons.flip(0))
    assert not torch.allclose(made, told_other)
    again = generator.reverse(states, 0.3, seeds=range(4), steps=5, condition=cartoons, batch=3)
    torch.testing.assert_close(again, made, rtol=0, atol=2e-5)
    with pytest.raises(ValueError, match="makes images from cartoons"):
        generator.reverse(states, 0.3, seeds=range(4), steps=5)


def test_a_condition_is_refused_where_there_is_none(runs, cartoons):
    with pytest.raises(ValueError, match="condition: got some, and it was trained without"):
        load(runs("ve"), "cpu").sample_seeds(range(4), condition=cartoons, steps=4)
    with pytest.raises(ValueError, match="parameterization=ve has no input for one"):
        Plan.of(tiny(process=TOLD, parameterization="ve"))


def test_a_conditional_run_continues_bit_by_bit(data, told, tmp_path):
    config = tiny(process=TOLD)
    for images in (12, 28, 40):
        train(
            dataclasses.replace(config, images=images), data, tmp_path / "run", hooks=Hooks(fit_prior=fit_prior),
            track=(),
        )  # fmt: skip
    assert_equal(tmp_path / "run", told)


def test_the_condition_is_part_of_the_process():
    one, two = (
        process_named("ve", 8, condition=text).identity() for text in ("median(radius=1)", "median(radius=2)")
    )
    assert one["condition"] == "median(radius=1)" != two["condition"]
    assert "condition" not in process_named("ve", 8).identity()
    with pytest.raises(ValueError, match="unknown condition 'medain'"):
        process_named("ve", 8, condition="medain")


def test_the_network_sees_the_condition_at_unit_scale(data, told):
    """Training and sampling hand the network the same thing: (cartoon − mean)/σ_d beside the state."""
    generator = load(told, "cpu")
    seen = []

    class Look(torch.nn.Module):
        def forward(self, x, noise_level, labels=None, dropout_key=None):
            seen.append(x)
            return torch.zeros_like(x[:, :1])

    model = generator.plan.kind.build(Look(), generator.process, generator.model.statistics, ModelOptions())
    x0 = torch.from_numpy(data.images[:6].copy()).float() / 255
    t = torch.full((6,), 0.8, dtype=torch.float64)
    pair = generator.process.training_pair(x0, t)
    assert torch.equal(pair.condition, Median(radius=1)(x0))
    model.loss(pair, t)
    model.conditioned(pair.condition).score(model.to_coordinates(pair.state), t[:1])
    model.path_rate(pair, t)
    assert len(seen) == 3
    statistics = model.statistics
    want = (pair.condition - statistics.mean[:, None, None]) / statistics.data.mean().sqrt()
    for x in seen:
        torch.testing.assert_close(x[:, 1:], want)
    assert float(want.std()) == pytest.approx(1.0, abs=0.4)
    with pytest.raises(ValueError, match="condition: got none"):
        model.loss(dataclasses.replace(pair, condition=None), t)


def test_a_conditional_run_has_a_cost_and_no_bits(told, data):
    generator = load(told, "cpu")
    with pytest.raises(ValueError, match="bits does not apply: the model sees a cartoon"):
        bits_per_dimension(generator, data.path, settings=BitsSettings(images=8, times=2))
    images = torch.from_numpy(data.images[:4].copy()).float() / 255
    assert estimate(tiny(process=TOLD), torch.device("cpu"), images).seconds_per_thousand > 0
    prior = {"mean": torch.zeros(1, 8, 8)}
    assert evaluation_seconds(generator.model, prior) > 0
