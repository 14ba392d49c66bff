"""Limits from the training pair to the sampler: α1 → 0, λ → ∞, t → 0, rectangles, single channels."""

import math

import pytest
import torch

import anisodiff
from anisodiff.dct import dct2
from anisodiff.models.base import ModelOptions, noise_level
from anisodiff.models.score import ScoreModel
from anisodiff.noise import KeyedNoise, combine
from anisodiff.registry import build_sampler
from tests.support.oracles import Nothing

F64 = torch.float64
STEPS = {
    "exponential": {"step": "exponential(windows=3)"},
    "one window": {"step": "exponential(windows=1)"},
    "signal": {"step": "signal(windows=2, steps=2)"},
    "tamed": {"step": "tamed(dt=0.1)"},
    "paper": {"step": "tamed(dt=0.1)", "stencil": "paper"},
}


def images(count: int, *shape: int) -> torch.Tensor:
    return torch.rand(count, *shape, dtype=F64, generator=torch.Generator().manual_seed(0))


def noise(count: int) -> KeyedNoise:
    return KeyedNoise(combine(7, torch.arange(count)))


def pair(x0: torch.Tensor, t: float, **overrides: object):
    process = anisodiff.process("anisotropic", max(x0.shape[-2:]), **overrides)
    return process.training_pair(x0, torch.full((len(x0),), t, dtype=F64), noise(len(x0)))


@pytest.mark.parametrize("name", STEPS)
def test_without_drift_a_pair_is_that_of_noise_alone(name):
    """As α1 → 0 states and targets converge to those of α1 = 0, and the drift to 0."""
    x0 = images(3, 2, 5, 4)
    none = pair(x0, 1.3, diffusivity=0.0, **STEPS[name])
    little = pair(x0, 1.3, diffusivity=1e-9, **STEPS[name])
    assert none.drift is None
    torch.testing.assert_close(little.state, none.state, rtol=0, atol=1e-8)
    torch.testing.assert_close(little.target, none.target, rtol=1e-6, atol=1e-6)
    assert little.drift.abs().max() < 1e-6


@pytest.mark.parametrize("name", STEPS)
def test_a_large_lambda_is_isotropic(name):
    """1/λ² enters the weights: λ = 10⁵ differs from ∞ by 10⁻⁹."""
    x0 = images(3, 2, 5, 4)
    one, other = (pair(x0, 1.3, drift_anisotropy=value, **STEPS[name]) for value in (1e5, "infinite"))
    for a, b in zip((one.state, one.target, one.drift), (other.state, other.target, other.drift)):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_at_short_times_the_target_is_that_of_white_noise(name, dtype):
    """As t → 0: u = x0 + α2(0)√t ξ, target −ξ/(α2(0)√t), drift b(x0)."""
    x0, t = images(2, 1, 5, 4).to(dtype), 1e-6
    got, xi = pair(x0, t, **STEPS[name]), noise(2).normal(x0)
    spread = 0.01 * math.sqrt(t)
    torch.testing.assert_close(got.state, x0 + spread * xi, rtol=0, atol=1e-5)
    torch.testing.assert_close(got.target * spread, -xi, rtol=0, atol=1e-4)
    assert bool(got.drift.isfinite().all())


def test_the_statistics_of_transposed_images_are_transposed():
    process = anisodiff.process("heat", 8)
    x0 = images(20, 3, 4, 8).float()
    one, other = process.estimate_statistics(x0), process.estimate_statistics(x0.mT)
    for name in ("data", "log_noise", "log_signal", "weight", "log_target"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name).mT, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(noise_level(one), noise_level(other))


@pytest.mark.parametrize("name", ["ve", "heat", *STEPS])
@pytest.mark.parametrize("shape", [(1, 3, 7), (3, 7, 3), (1, 3, 3)])
def test_rectangles_and_single_channels_are_sampled(name, shape):
    """The Wiener filter alone: samples have the mean and, within a factor of 2, the variance of the images."""
    x0 = (0.5 + 0.2 * torch.randn(64, *shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    preset, overrides = (name, {}) if name in ("ve", "heat") else ("anisotropic", STEPS[name])
    process = anisodiff.process(preset, max(shape[-2:]), **overrides)
    model = ScoreModel.build(Nothing(), process, process.estimate_statistics(x0), ModelOptions())
    chosen = build_sampler("exponential(order=1)", process)
    start = process.draw(x0, process.T, noise(64))
    samples = chosen.run(model, start, chosen.times(model, 41, t_min=0.02), noise(64)).images
    assert samples.shape == x0.shape
    assert abs(float(samples.mean() - x0.mean())) < 0.1
    assert 0.5 < float(samples.var() / x0.var()) < 2
    t = torch.full((64,), 1.0, dtype=F64)
    assert bool(model.loss(process.training_pair(x0, process.snap_to_grid(t), noise(64)), t).isfinite().all())


@pytest.mark.parametrize("sigma_max", [1.0, 50.0, 2000.0])
def test_the_noise_level_of_ve_is_its_own(sigma_max):
    """ln(σ/σ_d) at T, up to e⁹."""
    x0 = images(50, 3, 6, 6).float()
    process = anisodiff.process("ve", 6, sigma_max=sigma_max)
    deviation = dct2(x0.double() - x0.double().mean((0, 2, 3))[:, None, None]).square().mean().sqrt()
    level = noise_level(process.estimate_statistics(x0))[-1, -1]
    assert float(level) == pytest.approx(math.log(sigma_max / float(deviation)), abs=1e-3)
