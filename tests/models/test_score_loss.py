"""The loss of a score model: its unit, its weightings, times and coefficients, and those of others (Song, EDM)."""

from functools import cache

import pytest
import torch

from anisodiff.dct import dct2, idct2
from anisodiff.models.time_density import draw_times
from anisodiff.noise import KeyedNoise
from anisodiff.samplers.predictor_corrector import noise_variance
from anisodiff.training.recipes import recipe
from tests.support.oracles import F64, Nothing, gaussian_images, keys
from tests.support.score_models import T_MIN, build

CASES = {
    "ve": ("ve", {}),
    "heat": ("heat", {}),
    "gentle": ("anisotropic", {"diffusivity": "geometric(0.1, 1)", "step": "exponential(windows=4)"}),
    "one window": ("anisotropic", {"intensity": "geometric(0.03, 30)", "step": "exponential(windows=1)"}),
    "paper's parameters": ("anisotropic", {"diffusivity": "geometric(0.5, 64)", "step": "exponential(windows=4)"}),
}


@cache
def measured(case):
    """Images, process and model of a case; estimated once."""
    name, overrides = CASES[case]
    images = gaussian_images(600, 8).float()
    return images, *build(name, images, **overrides)


@pytest.mark.parametrize("case", CASES)
def test_loss_of_the_wiener_filter_is_one(case):
    images, process, model = measured(case)
    times, cumulative = model.time_density(mean=-0.5, std=1.2, t_min=T_MIN)
    noise = KeyedNoise(keys(600, 5))
    t = draw_times(times, cumulative, noise.uniform())
    assert ((t >= T_MIN) & (t <= 2.0)).all()
    loss = model.loss(process.training_pair(images, t, noise), t)
    assert loss.shape == (600,)
    assert float(loss.mean()) == pytest.approx(1.0, abs=0.1)


class Smooth(torch.nn.Module):
    """A network that is wrong in a way of its own, both outputs."""

    def forward(self, x, c, dropout_key=None):
        return torch.tanh(x + c[:, None, None, None]).repeat(1, 2, 1, 1)


@pytest.mark.parametrize("case", ["ve", "gentle"])
def test_uniform_times(case):
    """Even between t_min and T, but for the beginnings of windows, where nothing is drawn."""
    name, overrides = CASES[case]
    _, model = build(name, gaussian_images(64, 8).float(), **overrides)
    model.times = "uniform"
    times, cumulative = model.time_density(mean=-0.5, std=1.2, t_min=T_MIN)
    t = draw_times(times, cumulative, torch.linspace(0, 1, 20_001, dtype=F64))
    assert T_MIN <= float(t[0]) < T_MIN + 0.01
    if case == "ve":
        torch.testing.assert_close(t, torch.linspace(float(t[0]), 2.0, 20_001, dtype=F64), rtol=1e-6, atol=1e-6)
    else:
        steps, begins = t.diff(), model.statistics.phases[0].item()
        assert int((steps > 2 * steps.median()).sum()) == 3  # the three inner edges
        assert float(steps.max() - steps.median()) == pytest.approx(0.5 * begins, rel=1e-3)


def test_the_times_of_song():
    """Their noise σ_min·r^t, t ~ U(1e-5, 1), r = σ_max/σ_min, is the noise of our states at the times drawn."""
    config = recipe("cifar10-song")
    process, model = build("ve", gaussian_images(64, 8))
    model.times = config.times
    uniform = torch.linspace(0, 1, 20_001, dtype=F64)
    t = draw_times(*model.time_density(mean=-0.5, std=1.2, t_min=config.t_min), uniform)
    theirs = 0.01 * 5000 ** (1e-5 + (1 - 1e-5) * uniform)
    torch.testing.assert_close(noise_variance(process.equation, t).sqrt().log(), theirs.log(), rtol=0, atol=2e-3)
    assert float(noise_variance(process.equation, t[:1])) == pytest.approx(float(theirs[0]) ** 2, rel=1e-6)


def test_the_loss_of_song():
    """`ve`: half the sum over pixels of (σ s + ξ)²; the Wiener filter leaves S/V of it."""
    images = gaussian_images(64, 8)
    process, model = build("ve", images)
    model = model.double()
    model.network, model.weighting = Smooth(), "noise"
    t = torch.linspace(0.1, 1.9, 64, dtype=F64)
    drawn = process.training_pair(images, t, KeyedNoise(keys(64, 2)))
    sigma = model.coefficients(t).noise[..., :1, :1].sqrt()
    noise = -sigma * drawn.target
    expected = 0.5 * (sigma * model(drawn.state, t)[0] + noise).square().sum((-3, -2, -1))
    torch.testing.assert_close(model.loss(drawn, t), expected, rtol=1e-6, atol=0)

    many = gaussian_images(2000, 8)
    t = torch.full((2000,), 0.9, dtype=F64)
    c = model.coefficients(t[:1])
    model.network = Nothing()
    found = model.loss(process.training_pair(many, t, KeyedNoise(keys(2000, 3))), t)
    assert float(found.mean()) == pytest.approx(
        0.5 * float((c.signal / c.power).sum()), abs=4 * float(found.std()) / 2000**0.5
    )


def test_scalars_are_those_of_edm():
    """`ve`: the network sees û/√(σ² + σ_d²), and the image is c_skip û + c_out F (Karras et al. 2022, table 1)."""
    images = gaussian_images(64, 8)
    process, model = build("ve", images)
    model = model.double()
    model.network, model.scalar = Smooth(), True
    t = torch.linspace(0.1, 1.9, 64, dtype=F64)
    state = process.training_pair(images, t, KeyedNoise(keys(64, 2))).state
    c, mean = model.coefficients(t), model.statistics.mean[:, None, None]
    noise, data = c.noise.mean((-2, -1), keepdim=True), model.statistics.data.double().mean()
    power = noise + data
    seen = (state - mean) / power.sqrt()
    out = model.network(seen, model.condition(c.interval, c.phase))[:, : state.shape[1]]
    image = data / power * (state - mean) + (noise * data / power).sqrt() * out
    score, _ = model(state, t)
    torch.testing.assert_close(state - mean + noise * score, image, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", ["heat", "gentle"])
def test_scalars_change_only_what_a_network_has_to_learn(case):
    """A network that makes up for the other coefficients gives the same residuals, and so the same loss."""
    name, overrides = CASES[case]
    images = gaussian_images(64, 8)
    process, model = build(name, images, **overrides)
    model = model.double()
    t = torch.full((64,), 0.9, dtype=F64)
    c, drawn = model.coefficients(t), process.training_pair(images, t, KeyedNoise(keys(64, 2)))
    around = c.scalars()

    class Translated(torch.nn.Module):
        def forward(self, x, condition, dropout_key=None):
            z = dct2(x) / around.input
            first, second = dct2(Smooth()(idct2(c.input * z), condition)).chunk(2, 1)
            score = (c.scale * first + (1 / around.power - 1 / c.power) * z) / around.scale
            return idct2(torch.cat([score, c.residual / around.residual.clamp(min=1e-300) * second], 1))

    model.network = Smooth()
    expected, values = model.loss(drawn, t), model(drawn.state, t)
    model.network, model.scalar = Translated(), True
    torch.testing.assert_close(model.loss(drawn, t), expected)
    torch.testing.assert_close(model(drawn.state, t), values)
    model.network = Nothing()
    assert float(model.loss(drawn, t).mean()) > 1.5  # without the Wiener filter more is left to learn


def test_modes_without_signal_have_no_more_weight_than_their_signal():
    """One window and a strong drift: the shape of the noise must not be most of the loss."""
    images = gaussian_images(600, 8).float()
    process, model = build("anisotropic", images, **CASES["one window"][1], drift_anisotropy=0.05)
    t = torch.full((600,), 1.6, dtype=F64)
    drawn, c = process.training_pair(images, t, KeyedNoise(keys(600, 6))), model.coefficients(t[:1])
    silent = (c.signal < 1e-2 * c.noise)[0, 0]
    assert float(silent.float().mean()) > 0.5
    target = (dct2(drawn.target) + model.to_coordinates(drawn.state) / c.power) / c.scale
    assert float(target.square().mean((0, 1))[silent].mean()) > 3  # their targets are mostly shape
    errors = []
    for known in (silent, ~silent):  # a network that predicts the targets of these modes, and 0 elsewhere
        model.residuals = lambda z, c, key=None, labels=None, known=known: (target * known, torch.zeros_like(z))
        errors.append(float(model.loss(drawn, t).mean()))
    assert errors[0] > 0.75  # as much as their share of the signal
    assert errors[1] < 0.5


def test_without_drift_the_measured_loss_is_that_of_the_closed_form():
    images = gaussian_images(2000, 8).float()
    noise = {"diffusivity": 0, "intensity": "geometric(0.02918, 145.9)"}
    losses = []
    for name, step in (("ve", "exact"), ("anisotropic", "exponential(windows=1)")):
        process, model = build(name, images, **noise, step=step)
        model.residuals = lambda z, c, key=None, labels=None: (
            0.3 * z / c.power.sqrt(),
            None,
        )  # wrong, but the same for both
        found = []
        for level in (0.3, 0.8, 1.3):  # beyond, the error of V is as large as the signal
            t = torch.full((2000,), level, dtype=F64)
            found.append(float(model.loss(process.training_pair(images, t, KeyedNoise(keys(2000, 7))), t).mean()))
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
