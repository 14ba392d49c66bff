"""Tables in the principal axes of the channels: closed forms for images whose channels are correlated."""

import dataclasses
import math

import pytest
import torch

import anisodiff
from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.models.base import ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.noise import KeyedNoise, combine
from anisodiff.registry import build_sampler
from anisodiff.statistics import principal_axes, rotate_channels
from anisodiff.training import Plan
from tests.support.oracles import Nothing, gaussian_images
from tests.support.score_models import wiener_model
from tests.training.conftest import tiny

F64 = torch.float64
MIX = torch.tensor([[1.0, 0.2, 0.1], [0.9, -0.3, 0.1], [0.8, 0.1, -0.3]], dtype=F64)


def colored_images(count: int, size: int = 8) -> torch.Tensor:
    """Three independent fields of one spectrum, mixed into channels."""
    fields = gaussian_images(count * 3, size).reshape(count, 3, size, size).to(F64)
    return 0.5 + 0.3 * rotate_channels(fields - fields.mean((0, 2, 3), keepdim=True), MIX)


def covariance(x: torch.Tensor) -> torch.Tensor:
    """Of the channels over all pixels about their means, [C, C]."""
    x = x - x.mean((0, 2, 3), keepdim=True)
    return torch.einsum("nchw,ndhw->cd", x, x) / (x.numel() / x.shape[1])


def build(name: str, images: torch.Tensor, **overrides):
    process = anisodiff.process(name, images.shape[-1], **overrides)
    return process, wiener_model(process, images.float(), channel_pca=True).double()


def test_axes_are_principal_and_shares_add_up():
    images = colored_images(400)
    found = principal_axes(dct2(images - images.mean((0, 2, 3), keepdim=True)))
    axes, shares = found["axes"].double(), found["shares"].double()
    torch.testing.assert_close(axes @ axes.mT, torch.eye(3, dtype=F64), atol=1e-6, rtol=0)
    spread = axes @ covariance(images) @ axes.mT
    values = spread.diagonal()
    assert float((spread - values.diag()).abs().max()) < 1e-6 * float(values[0])
    assert (values.diff() < 0).all()
    torch.testing.assert_close(shares.mean(0), torch.ones(8, 8, dtype=F64), atol=1e-6, rtol=0)
    wanted = values / values.mean()  # one spectrum for all: the same shares at all frequencies
    chance = (2 * 2 / 400) ** 0.5  # of a ratio of two sums of squares
    assert ((shares / wanted[:, None, None] - 1).abs() < 5 * chance).all()


@pytest.mark.parametrize("name", ["ve", "heat"])
def test_the_wiener_filter_is_the_score_of_images_with_correlated_channels(name):
    """Gaussian images: Cov û_k = D_k A diag(s) Aᵀ·decay² + φ 1, its inverse applied to the state, mode by mode."""
    images = colored_images(300)
    process, model = build(name, images)
    statistics, t = model.statistics, torch.full((5,), 0.8, dtype=F64)
    state = process.training_pair(images[:5], t, KeyedNoise(combine(3, torch.arange(5)))).state
    plain = model.coefficients(t[:1])
    axes = statistics.axes.double()
    signal = torch.einsum("ec,ehw,ed->cdhw", axes, plain.signal[0].double(), axes)
    whole = signal + torch.eye(3, dtype=F64)[:, :, None, None] * plain.noise[0, 0]
    z = dct2(state - statistics.mean[:, None, None])
    expected = -torch.linalg.solve(whole.permute(2, 3, 0, 1), z.permute(0, 2, 3, 1)[..., None])[..., 0]
    torch.testing.assert_close(
        model(state, t)[0], idct2(expected.permute(0, 3, 1, 2)), rtol=1e-4, atol=1e-5
    )  # axes are kept in float32


@pytest.mark.parametrize("name", ["ve", "anisotropic"])
def test_less_is_left_to_learn(name):
    """In the same units, and with a loss that the Wiener filter still has 1 of."""
    images = colored_images(500)
    overrides = {} if name == "ve" else {"diffusivity": "geometric(0.1, 1)", "step": "exponential(windows=2)"}
    process, model = build(name, images, **overrides)
    axes = {"axes": torch.eye(3, dtype=F64), "shares": torch.ones(1, 8, 8, dtype=F64)}
    plain = dataclasses.replace(model.statistics, **axes)
    without = ScoreModel.build(Nothing(), process, plain, ModelOptions()).double()
    t = torch.full((500,), 0.9, dtype=F64)
    drawn = process.training_pair(images, t, KeyedNoise(combine(7, torch.arange(500))))
    errors = [(m(drawn.state, t)[0] - drawn.target).square().mean() for m in (model, without)]
    assert float(errors[0]) < 0.9 * float(errors[1])
    assert float(model.loss(drawn, t).mean()) == pytest.approx(1.0, abs=0.1)


SAMPLERS = ["exponential", "exponential(order=1, wiener=1)", "ancestral", "ode", "euler", "pc"]


@pytest.mark.parametrize("text", SAMPLERS)
def test_samples_have_the_covariance_of_the_channels(text):
    images = colored_images(2000, 4)
    process, model = build("ve", images, sigma_max=5)
    count, made = 3000, build_sampler(text, process)
    times = made.times(model, 160 * made.cost, t_min=0.02)
    c = model.coefficients(torch.full((1,), process.T, dtype=F64))
    noise = KeyedNoise(combine(11, torch.arange(count)))
    start = model.from_coordinates(c.power.sqrt() * noise.normal(torch.zeros(count, 3, 4, 4, dtype=F64)))
    states = made.run(model, start, times, noise).images
    got, wanted = covariance(states), covariance(images)
    scale = wanted.diagonal().sqrt()
    gap = (got - wanted).abs() / (scale[:, None] * scale)
    limit = 0.06 if text in ("euler", "ancestral", "pc") else 0.03  # of first order
    assert float(gap.max()) < limit + 4 * math.sqrt(2 / (count * 4))


IMAGE = {
    "diffusivity": "geometric(0.2, 2)", "intensity": "geometric(0.03, 6)", "drift_anisotropy": "infinite",
    "step": "signal(windows=1)",
}  # fmt: skip


def test_colors_are_pulled_by_what_is_known_of_them():
    """The image alone is smoothed: per axis the drift's linear part is −λ S/V; the tables hold only its mean."""
    images = colored_images(2000, 4)
    process, model = build("anisotropic", images, **IMAGE)
    t = torch.full((2000,), 0.8, dtype=F64)
    drawn, c = (
        process.training_pair(images, t, KeyedNoise(combine(5, torch.arange(2000)))),
        model.coefficients(t[:1]),
    )
    z, drift = model.to_coordinates(drawn.state), model.modes(drawn.drift)
    slope = (z * drift).mean(0) / z.square().mean(0)
    known = -(c.alpha1 * c.weight * frequencies(4, 4, F64, z.device))[0]
    chance = (drift.square().mean(0) / z.square().mean(0) / 2000).sqrt()
    assert ((slope - known).abs() < 0.05 * known.abs() + 4 * chance).all()
    assert float(known[0, 0, 1] / known[2, 0, 1]) > 1.5  # the axes differ

    count, made = 3000, build_sampler("exponential", process)
    noise = KeyedNoise(combine(11, torch.arange(count)))
    top = model.coefficients(torch.full((1,), process.T, dtype=F64)).power.sqrt()
    start = model.from_coordinates(top * noise.normal(torch.zeros(count, 3, 4, 4, dtype=F64)))
    got, wanted = (
        covariance(x) for x in (made.run(model, start, made.times(model, 160, t_min=0.02), noise).images, images)
    )
    axes = model.statistics.axes.double()
    powers = [(axes @ x @ axes.mT).diagonal() for x in (got, wanted)]
    assert ((powers[0] / powers[1] - 1).abs() < 0.04 + 4 * math.sqrt(2 / (count * 4))).all()


def test_contradictions_are_refused():
    config = tiny(process="ve", parameterization="ve", channel_pca=True)
    with pytest.raises(ValueError, match="in the channels of the image; set channel_pca=false"):
        Plan.of(config)
    with pytest.raises(ValueError, match="channel_pca: flow-matching has its own"):
        Plan.of(tiny(process="flow-matching", channel_pca=True))
