"""The bound of a path across processes: limits, coordinates, flow matching, determinants, and what has no bound."""

import dataclasses

import pytest
import torch
from torch import Tensor

import anisodiff
from anisodiff.dct import dct2
from anisodiff.gaussian_kernel import variance
from anisodiff.models.base import ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.noise import KeyedNoise
from anisodiff.path_bound import PathBound, obstacle
from anisodiff.priors import GaussianPrior, fit_gaussian
from anisodiff.stencils import STENCILS
from anisodiff.stencils.flux import apply_edges
from tests.support.baselines import exact_model
from tests.support.exact_bound import SIZE, ExactModel, exact_prior
from tests.support.oracles import F64, Nothing, at, gaussian_images, generator, keys, spectrum
from tests.support.score_models import wiener_model

HEAT = {"diffusivity": "geometric(0.5, 2)", "intensity": "geometric(0.05, 1)"}
LIMITS = {
    "λ = ∞, one window": ("heat", {**HEAT, "step": "exponential(windows=1, tolerance=1e-11)"}, "heat", HEAT),
    "λ → ∞, one window": (
        "heat", {**HEAT, "step": "exponential(windows=1, tolerance=1e-11)", "drift_anisotropy": 1e7}, "heat", HEAT,
    ),
    "α1 → 0, one window": ("anisotropic-gentle", {"diffusivity": 1e-10}, "ve", {}),
    "α1 → 0, signal": ("anisotropic-gentle", {"diffusivity": 1e-10, "step": "signal"}, "ve", {}),
    "α1 = 0, one window": ("anisotropic-gentle", {"diffusivity": 0.0}, "ve", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_limits_agree_image_by_image(name):
    """The same noise is the same field for every process: path and last step are equal, not only their means.

    Of the prior the means are, where the determinant of the noise is estimated.
    """
    kind, given, limit, other = LIMITS[name]
    near, exact = anisodiff.process(kind, SIZE, **given), anisodiff.process(limit, SIZE, **other)
    model, x0 = ExactModel(exact), gaussian_images(500, SIZE, seed=2).clamp(0, 1)
    found, want = (
        PathBound(process=p, model=model, prior=exact_prior(model), t_min=0.05).terms(x0, keys(500))
        for p in (near, exact)
    )
    assert torch.allclose(found.path, want.path, rtol=1e-5, atol=1e-5)
    assert torch.allclose(found.last, want.last, rtol=1e-5, atol=1e-5)
    gap = found.prior - want.prior
    assert abs(gap.mean()) < 4.5 * gap.std() / 500**0.5 + 1e-6
    assert gap.std() < (1.0 if limit == "heat" else 1e-6)


def test_channel_axes_change_nothing():
    """A rotation of the channels, with equal shares: the same score in other coordinates."""
    made, images = anisodiff.process("ve", 4), gaussian_images(64, 4, channels=3)
    plain = wiener_model(made, images)
    axes = torch.linalg.qr(torch.randn(3, 3, generator=generator(1)))[0]
    rotated = ScoreModel.build(Nothing(), made, dataclasses.replace(plain.statistics, axes=axes), ModelOptions())
    assert rotated.rotates_channels
    x0 = (gaussian_images(8, 4, channels=3, seed=4).clamp(0, 1) * 255).round() / 255
    prior = fit_gaussian(made.draw(images, made.T, generator()))
    found, want = (
        PathBound(process=made, model=m, prior=prior, t_min=0.05).terms(x0, keys(8)) for m in (rotated, plain)
    )
    for one, two in zip(found, want):
        assert torch.allclose(one, two, rtol=1e-5)


def test_an_image_costs_the_same_in_any_batch():
    made, images = anisodiff.process("anisotropic-gentle", 4), gaussian_images(64, 4)
    bound = PathBound(process=made, model=wiener_model(made, images), prior=made.prior(images), t_min=0.02)
    x0, order = gaussian_images(6, 4, seed=4).clamp(0, 1), torch.tensor([3, 0, 5, 1, 4, 2])
    together = bound.terms(x0, keys(6)).total
    assert torch.allclose(bound.terms(x0[order], keys(6)[order]).total, together[order], rtol=1e-9)
    alone = torch.cat([bound.terms(x0[i : i + 1], keys(6)[i : i + 1]).total for i in range(6)])
    assert torch.allclose(alone, together, rtol=1e-9)
    assert not torch.allclose(bound.terms(x0, keys(6, seed=1)).total, together, rtol=1e-3)


@pytest.mark.parametrize("sigma_min", [0.0, 0.05])
def test_flow_matching_has_the_bound_of_its_diffusion(sigma_min):
    """Exact velocity of Gaussian images: on average the information at t_min, and nothing for the prior."""
    made, t_min, count = anisodiff.process("flow-matching", SIZE, sigma_min=sigma_min), 0.02, 4000
    model, x0 = exact_model(made, SIZE), gaussian_images(4000, SIZE, seed=3)
    bound = PathBound(process=made, model=model, prior=made.prior(x0), t_min=t_min)
    path, prior = bound.path(x0, keys(count)), bound.start(x0, keys(count))
    noise = (0.5 * made.noise(at(t_min))) ** 2
    want = 0.5 * torch.log1p((1 - t_min) ** 2 * spectrum(SIZE) / noise).sum()
    error = path.std() / count**0.5
    assert abs(path.mean() - want) < 4.5 * error
    assert error < 0.02 * want
    assert prior.abs().max() < 1e-5  # U_T is the prior itself, whatever the image


def dense(weights, size: int) -> Tensor:
    """−L(w) of one channel, [size², size²]."""
    pixels = torch.eye(size * size, dtype=F64).reshape(-1, size, size)
    return -apply_edges(type(weights)(weights.y[0, 0], weights.x[0, 0]), pixels).flatten(1)


def test_the_determinant_of_a_frozen_operator():
    """tr ln φ(−L) by eigenvalues; its estimate has no bias."""
    made = anisodiff.process("anisotropic", 5, step="exponential(windows=1)", diffusivity="geometric(0.5, 2)")
    x0, count = gaussian_images(1, 5), 4000
    many = x0.expand(count, -1, -1, -1)
    frozen = made.step.freeze(made.equation, STENCILS["flux"], many, 0)
    begin, end = torch.zeros(count, dtype=F64), torch.full((count,), 1.3, dtype=F64)
    probe = KeyedNoise(keys(count)).normal(many).sign()
    found = frozen.log_determinant(probe, begin, end)
    values = torch.linalg.eigvalsh(dense(frozen.weights, 5)).clamp(min=0)
    want = variance(made.equation, begin[:1], end[:1], values).log().sum()
    error = found.std() / count**0.5
    assert abs(found.mean() - want) < 4.5 * error
    assert error < 1e-3 * abs(want)


@pytest.mark.parametrize("name", ["exponential(windows=1)", "signal(windows=3)", "tamed(dt=2)"])
def test_determinants_give_normalized_densities(name):
    """−½ E‖ξ‖² − ln p(u) of the kernel is ½ ln det C, with C from draws; 9 numbers, 10,000 draws."""
    made = anisodiff.process("anisotropic", SIZE, step=name, diffusivity=1.0)
    x0 = gaussian_images(1, SIZE).expand(10000, -1, -1, -1)
    frozen = made.step.freeze(made.equation, STENCILS["flux"], x0, 0)
    begin, end = torch.zeros(10000, dtype=F64), torch.full((10000,), 2.0, dtype=F64)
    noise = KeyedNoise(keys(10000))
    states = frozen.advance(x0, noise.normal(x0), begin, end).flatten(1)
    found = frozen.log_determinant(noise.normal(x0).sign(), begin, end).mean()
    assert float(found) == pytest.approx(float(torch.logdet(states.mT.cov())), abs=0.15)


def test_the_density_of_a_prior():
    draws = torch.randn(500, 2, 4, 4, generator=generator(2), dtype=F64).cumsum(1)
    prior = fit_gaussian(draws, low=2)
    modes, want = dct2(draws[:5]) - prior.mean.double(), torch.zeros(5, dtype=F64)
    for h in range(4):
        for w in range(4):
            root = prior.root[h, w].double()
            law = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=F64), scale_tril=root)
            want += law.log_prob(modes[:, :, h, w])
    assert torch.allclose(prior.log_density(draws[:5]), want, rtol=1e-9)


NO_BOUND = {
    "several windows": ("anisotropic", {"step": "exponential(windows=4)"}, {}, "kernel from the last node is known"),
    "tamed": ("anisotropic-paper", {"step": "tamed(dt=0.4)"}, {}, "kernel from the last node is known"),
    "the score alone": (
        "anisotropic", {"step": "exponential(windows=1)", "diffusivity": 1.0}, {"learns": "score"}, "has no drift",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_BOUND)
def test_what_has_no_bound_is_refused_with_the_reason(name):
    kind, given, options, reason = NO_BOUND[name]
    made, images = anisodiff.process(kind, 4, **given), gaussian_images(16, 4).float()
    model, prior = wiener_model(made, images, **options), GaussianPrior(images[0], torch.ones(4, 4, 1, 1))
    with pytest.raises(ValueError, match=f"no bound on the likelihood: .*{reason}"):
        PathBound(process=made, model=model, prior=prior, t_min=0.02)


@pytest.mark.parametrize(
    ("name", "reason"), [("heat-dissipation", "independent noise"), ("edge-preserving", "depends on the image")]
)
def test_baselines_without_a_path_say_so(name, reason):
    made = anisodiff.process(name, SIZE)
    assert reason in obstacle(made, exact_model(made, SIZE))
    with pytest.raises(ValueError, match=reason):
        made.draw_with_density(gaussian_images(1, SIZE), 0.5)
