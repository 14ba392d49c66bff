"""One output where there could be two: for score and drift together, or the score alone."""

from functools import cache

import pytest
import torch

import anisodiff
from anisodiff.dct import frequencies
from anisodiff.models.time_density import draw_times
from anisodiff.noise import KeyedNoise
from anisodiff.registry import build_sampler, default_sampler
from anisodiff.training import TrainConfig
from anisodiff.training.model import Plan
from anisodiff.training.picking import Machine, for_images
from anisodiff.training.recipes import recipe
from tests.support.oracles import F64, gaussian_images, keys
from tests.support.score_models import wiener_model

IMAGE = {"diffusivity": "geometric(0.1, 4)", "intensity": "geometric(0.03, 30)", "step": "signal(windows=1)"}
CASES = {
    "image": IMAGE,
    "image, isotropic": {**IMAGE, "drift_anisotropy": "infinite"},
    "windows of the image": {**IMAGE, "step": "signal(windows=4)"},
    "one window": {**IMAGE, "step": "exponential(windows=1)"},
    "windows": {**IMAGE, "step": "exponential(windows=4)"},
}


class Smooth(torch.nn.Module):
    """A network that is wrong in a way of its own."""

    def forward(self, x, c, dropout_key=None):
        return torch.tanh(x + c[:, None, None, None])


class Doubled(Smooth):
    """The same for both."""

    def forward(self, x, c, dropout_key=None):
        return super().forward(x, c).repeat(1, 2, 1, 1)


def build(images, overrides, *, channel_pca=False, learns="reverse_drift"):
    process = anisodiff.process("anisotropic", images.shape[-1], **overrides)
    return process, wiener_model(process, images, channel_pca=channel_pca, learns=learns)


def targets(model, drawn, t):
    """F and G of every sample."""
    z, c = model.to_coordinates(drawn.state), model.coefficients(t)
    rate = c.alpha1 * c.weight * frequencies(*z.shape[-2:], z.dtype, z.device)
    score = (model.modes(drawn.target) + z / c.power) / c.scale
    return score, (model.modes(drawn.drift) + rate * z) / c.alpha2.square() / c.residual


@cache
def many(channel_pca):
    """Images, and the process and model of their isotropic smoothing; estimated once for all times."""
    images = gaussian_images(300, 8, channels=3)
    if channel_pca:  # correlated, the gray axis by far the largest
        images = images.mean(1, keepdim=True) + 0.2 * (images - 0.5)
    process, model = build(images, CASES["image, isotropic"], channel_pca=channel_pca)
    return images, process, model.double()


@pytest.mark.parametrize("channel_pca", [False, True])
@pytest.mark.parametrize("time", [0.4, 0.8, 1.2])
def test_where_the_image_alone_is_smoothed_isotropically_one_output_says_both(time, channel_pca):
    """G = −F sample by sample, but for what chance does to statistics of 300 images."""
    images, process, model = many(channel_pca)
    t = torch.full((300,), time, dtype=F64)
    f, g = targets(model, process.training_pair(images, t, KeyedNoise(keys(300, 3))), t)
    there = model.coefficients(t[:1])
    loud = (there.signal > 0.02 * there.noise).expand_as(f[:1]) & (frequencies(8, 8, F64, f.device) > 0)
    assert int(loud.sum()) > 8
    off = ((f + g).square().mean(0) / f.square().mean(0))[loud[0]]
    assert float(off.max()) < 0.003


@pytest.mark.parametrize("case", CASES)
def test_loss_of_the_wiener_filter_is_at_most_one(case):
    """One where score and drift go together; less where they do not: their powers are taken to add up."""
    images = gaussian_images(600, 8).float()
    process, model = build(images, CASES[case])
    noise = KeyedNoise(keys(600, 5))
    t = draw_times(*model.time_density(mean=-0.5, std=1.2, t_min=0.02), noise.uniform())
    loss = float(model.loss(process.training_pair(images, t, noise), t).mean())
    assert 0.5 < loss < 1.1
    if case == "image, isotropic":
        assert loss == pytest.approx(1.0, abs=0.1)


@cache
def few(learns):
    """64 images, and the process and model of one window."""
    images = gaussian_images(64, 8).float()
    return images, *build(images, CASES["one window"], learns=learns)


REFUSED = [
    ("reverse_drift", "ode"), ("reverse_drift", "euler"), ("reverse_drift", "exponential(corrector=0.1)"),
    ("score", "exponential"), ("score", "ode"), ("score", "euler(drift=projected)"),
]  # fmt: skip


@pytest.mark.parametrize(("learns", "text"), REFUSED)
def test_samplers_refuse_what_has_not_been_learned(learns, text):
    images, process, model = few(learns)
    chosen = build_sampler(text, process)
    missing = "the score by itself" if learns == "reverse_drift" else "the drift"
    with pytest.raises(ValueError, match=missing):
        chosen.run(model, images[:2], chosen.times(model, 41, t_min=0.02), KeyedNoise(keys(2)))


@pytest.mark.parametrize(
    ("learns", "word"), [("reverse_drift", "exponential"), ("score", "euler"), ("score_and_drift", "exponential")]
)
def test_the_usual_sampler_is_one_that_can(learns, word):
    images, process, model = few(learns)
    chosen = default_sampler(type(model), process, model.provided)
    assert chosen.name == ("euler" if learns == "score" else "exponential")
    made = chosen.run(model, images[:2], chosen.times(model, 21, t_min=0.02), KeyedNoise(keys(2))).images
    assert made.isfinite().all()


def test_the_score_alone_is_the_first_of_two_outputs():
    """Two outputs add the drift's error, divided by the powers of both targets."""
    images = gaussian_images(64, 8)
    t = torch.linspace(0.1, 1.5, 64, dtype=F64)
    found, c = {}, None
    for learns in ("score", "score_and_drift"):
        process, model = build(images, CASES["one window"], learns=learns)
        model = model.double()
        model.network, model.weighting = (Doubled() if learns == "score_and_drift" else Smooth()), "noise"
        drawn, c = process.training_pair(images, t, KeyedNoise(keys(64, 2))), model.coefficients(t)
        found[learns] = model(drawn.state, t), model.loss(drawn, t)
    torch.testing.assert_close(found["score"][0][0], found["score_and_drift"][0][0])
    z, (score, tilde) = model.to_coordinates(drawn.state), found["score_and_drift"][0]
    rate = c.alpha1 * c.weight * frequencies(8, 8, F64, images.device)
    drift = (model.modes(drawn.drift) + rate * z) / c.alpha2.square() - model.modes(score - tilde)
    expected = 0.5 * (c.noise * drift.square()).sum((-3, -2, -1))
    torch.testing.assert_close(found["score_and_drift"][1] - found["score"][1], expected)


@pytest.mark.parametrize("case", CASES)
def test_songs_loss_of_one_output(case):
    """``noise``: half the sum of (√N·error of s̃)², as Song et al. have it."""
    images = gaussian_images(64, 8)
    process, model = build(images, CASES[case])
    model = model.double()
    model.network, model.weighting = Smooth(), "noise"
    t = torch.linspace(0.3, 1.5, 64, dtype=F64)
    drawn, c = process.training_pair(images, t, KeyedNoise(keys(64, 2))), model.coefficients(t)
    rate = c.alpha1 * c.weight * frequencies(8, 8, F64, images.device)
    target = model.modes(drawn.target) - (model.modes(drawn.drift) + rate * model.to_coordinates(drawn.state)) / (
        c.alpha2.square()
    )
    expected = 0.5 * (c.noise * (model.modes(model(drawn.state, t)[1]) - target).square()).sum((-3, -2, -1))
    torch.testing.assert_close(model.loss(drawn, t), expected)


def test_settings():
    """As many outputs as channels; nothing to join where the drift is known."""
    settings = {"network": {"name": "tiny"}, "process": {"preset": "anisotropic"}}
    assert Plan.of(TrainConfig(**settings)).network.arguments["out_channels"] == 6
    for learns in ("reverse_drift", "score"):
        assert Plan.of(TrainConfig(**settings, learns=learns)).network.arguments["out_channels"] == 3
    assert recipe("cifar10-anisotropic-paper").learns == "score"
    for name, learns in (("anisotropic-paper", "score"), ("anisotropic", "score_and_drift")):
        assert for_images(100, 3, (8, 8), Machine.of("cpu"), name)[0].learns == learns
    for wrong, reason in (
        ({"process": "ve"}, "the drift is known"),
        ({"parameterization": "scalar"}, "two outputs"),
        ({"process": "flow-matching"}, "has its own"),
        ({"process": {"preset": "anisotropic", "step": "signal(windows=2)"}, "learns": "score"}, "step=signal"),
    ):
        with pytest.raises(ValueError, match=reason):
            Plan.of(TrainConfig(**{**settings, "learns": "reverse_drift", **wrong}))
    with pytest.raises(ValueError, match="learns: unknown 'together'"):
        TrainConfig(learns="together")
