"""What the baselines regress on, and that their models mean by it what their samplers take it for."""

import math

import pytest
import torch
from torch import Tensor

import anisodiff
from anisodiff.dct import dct2
from anisodiff.models.time_density import draw_times
from anisodiff.registry import PROCESSES, model_of
from anisodiff.training import Plan
from anisodiff.training.recipes import recipe
from tests.processes.test_baseline_processes import kind_of
from tests.support.baselines import GAINS, exact_model
from tests.support.oracles import F64, at, gaussian_images, generator, spectrum
from tests.training.conftest import tiny

SIZE = 4
KEYS = {
    "flow-matching": {"sigma_min": 0.05},
    "flow-matching-uniform": {"sigma_min": 0.05},
    "heat-dissipation": {"levels": 20, "blur_max": 3, "noise": 0.1},
    "edge-preserving": {"lambda_min": 1e12, "lambda_max": 1e12},
}


@pytest.mark.parametrize("name", PROCESSES)
def test_the_mean_of_the_target_is_the_closed_form(name):
    """On Gaussian images the best predictor is linear per mode: its gain from 20,000 draws, 5 standard errors."""
    process = anisodiff.process(name, SIZE, **KEYS.get(name, {}))
    x0 = gaussian_images(20000, SIZE)
    t = process.snap_to_grid(at(0.43))
    drawn = process.training_pair(x0, t.expand(20000), generator(11))
    u, y = dct2(drawn.state - 0.5)[:, 0], dct2(drawn.target)[:, 0]
    found = (u * y).mean(0) / u.square().mean(0)
    want = GAINS[model_of(name)](process, spectrum(SIZE))(t)[0]
    error = ((y - want * u) * u).std(0) / u.square().mean(0) / 20000**0.5
    assert ((found - want).abs() < 5 * error).all()
    assert (want.abs() > 10 * error).any()


@pytest.mark.parametrize("name", PROCESSES)
def test_the_loss_is_least_for_the_exact_network(name):
    """And by as much larger as theory says when its answer is off by a constant."""
    process = anisodiff.process(name, SIZE, **KEYS.get(name, {}))
    model = exact_model(process, SIZE)
    x0, t = gaussian_images(4000, SIZE, seed=3), process.snap_to_grid(torch.linspace(0.01, 1, 4000, dtype=F64))
    drawn = process.training_pair(x0, t, generator(11))
    exact = model.loss(drawn, t)
    assert exact.shape == (4000,)
    answer = model.network.forward
    model.network.forward = lambda *given, **keys: answer(*given, **keys) + 0.5
    scale = SIZE**2 if name == "heat-dissipation" else 1  # summed there
    gap = model.loss(drawn, t) - exact
    assert float(gap.mean()) == pytest.approx(0.25 * scale, abs=5 * float(gap.std()) / 4000**0.5)


@pytest.mark.parametrize("name", ["flow-matching", "edge-preserving"])
def test_the_image_expected_is_that_of_the_gaussian(name):
    """E[x̂0 | û] = ½ + D g/(g² D + s²)·(û − ½): the Wiener filter, by the model's own formula."""
    process = anisodiff.process(name, SIZE, **KEYS.get(name, {}))
    model, power, t = exact_model(process, SIZE), spectrum(SIZE), at(0.43)
    u = gaussian_images(2, SIZE, seed=5)
    gain = process.mean(torch.ones(1, 1, 3, 3, dtype=F64), t).mean() * 2 - 1
    spread = process.spread(u[:1], t).square().mean()
    want = power * gain / (gain**2 * power + spread) * dct2(u - 0.5)
    torch.testing.assert_close(dct2(model.denoised(model.to_coordinates(u), t) - 0.5), want)
    torch.testing.assert_close(model.from_coordinates(model.to_coordinates(u)), u)


def test_the_marginal_score_of_edge_preserving_noise():
    """Two images: −ξ/s has the mean ∇ log p(u), and the target s⊙ξ the mean u − E[m | u], both from p by autograd."""
    process = anisodiff.process("edge-preserving", lambda_min=0.01)
    images, t = torch.rand(2, 1, 4, 4, dtype=F64, generator=generator(11)), at(0.3, 0.3)
    images[1] = images[0] + 0.2 * (images[1] - images[0])
    mean, spread = process.mean(images, t), process.spread(images, t)
    u = (mean + 0.8 * spread * torch.randn(2, 1, 4, 4, dtype=F64, generator=generator(1)))[:1].requires_grad_()

    def log_density(u: Tensor) -> Tensor:
        each = (-0.5 * ((u - mean) / spread).square() - spread.log()).sum((1, 2, 3))
        return torch.logsumexp(each, 0)

    (score,) = torch.autograd.grad(log_density(u), u)
    each = (-0.5 * ((u - mean) / spread).square() - spread.log()).sum((1, 2, 3)).detach()
    weight = torch.softmax(each, 0)[:, None, None, None]
    assert 1e-3 < float(weight.min()) < 0.5
    xi = ((u - mean) / spread).detach()
    torch.testing.assert_close((weight * -xi / spread).sum(0, keepdim=True), score)
    target = process.target(images, t, xi, u.detach().expand(2, 1, 4, 4))
    torch.testing.assert_close((weight * target).sum(0), (u - (weight * mean).sum(0)).detach()[0])


@pytest.mark.parametrize("name", PROCESSES)
def test_levels_measure_what_is_lost(name):
    """They rise with t; flow matching's is ln(σ/σ_d) of white noise σ = t/2(1 − t), exactly."""
    process, images = anisodiff.process(name, SIZE), gaussian_images(64, SIZE).float()
    statistics = process.estimate_statistics(images)
    model = exact_model(process, SIZE)
    level = model.level_at(torch.linspace(0.01, 1, 60, dtype=F64))
    assert (level.diff() > -1e-6).all()
    assert float(level[-1] - level[0]) > 1.5
    if name == "flow-matching":
        t = at(0.1, 0.5, 0.8)
        want = (0.5 * t / (1 - t)).log() - 0.5 * statistics.data.double().mean().log()
        torch.testing.assert_close(model.level_at(t), want, rtol=0, atol=0.03)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_density_of_training_times(name):
    """Flow matching: ln(t/(1 − t)) ~ N(−1.2, 1.2²) but for 2e-9 of the mass; the others, and `-uniform`, uniform.

    In units of the noise level, which measures white noise by the images' own deviation, that is N(−1.2 − ln 2σ_d,
    1.2²): −0.51 for σ_d = ¼ (CIFAR-10), where `ve` has −0.5. The exact distribution function, so no test of draws.
    """
    model = exact_model(anisodiff.process(name, SIZE), SIZE)
    uniform = (torch.arange(200_000, dtype=F64) + 0.5) / 200_000
    drawn = draw_times(*model.time_density(mean=3.0, std=0.1, t_min=0.5), uniform)
    cdf = torch.special.ndtr((torch.logit(drawn) + 1.2) / 1.2) if name == "flow-matching" else drawn
    torch.testing.assert_close(cdf, uniform, rtol=0, atol=1e-6)
    if name == "flow-matching":
        level = model.level_at(drawn[1000:-1000])
        center = -1.2 - 0.5 * (4 * model.statistics.data.double().mean()).log()
        assert float(level.median()) == pytest.approx(float(center), abs=0.03)


def test_time_features_of_flow_matching_are_smooth():
    """Sinusoids of t ∈ [0, 1] of frequencies 1 … 1e-4, as both public networks have them; others keep 2π·16."""
    plan = Plan.of(recipe("cifar10-flow-matching-tiny"))
    features = plan.network.build().embed.features
    t = torch.linspace(0, 1, 5)
    want = torch.exp(-math.log(1e4) * torch.linspace(0, 1, features.count)) * t[:, None]
    torch.testing.assert_close(features(t), torch.cat([want.sin(), want.cos()], 1))
    assert plan.config.network == recipe("cifar10-flow-matching-uniform-tiny").network
    for changes, embedding in (({"network": "tiny"}, "positional"), ({"network.embedding": "fourier"}, "fourier")):
        changed = Plan.of(plan.config.changed(changes))
        assert changed.network.arguments["embedding"] == embedding  # the method's own, unless it is set
    assert Plan.of(recipe("cifar10-edge-preserving-tiny")).network.arguments["embedding"] == "fourier"


@pytest.mark.parametrize("name", PROCESSES)
def test_settings_of_the_score_are_refused(name):
    for key, value in (("parameterization", "ve"), ("learns", "score"), ("channel_pca", True)):
        with pytest.raises(ValueError, match=f"{key}: {kind_of(name)} has its own"):
            Plan.of(tiny(process=name, **{key: value}))
