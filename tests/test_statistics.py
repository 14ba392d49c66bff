"""Measured tables against the exact ones of the same law."""

import pytest
import torch

import anisodiff
from anisodiff.dct import frequencies, idct2
from anisodiff.gaussian_kernel import grid_decay, grid_variance, quadrature
from anisodiff.statistics import SpectralStatistics, step_phases, window_phases
from tests.support.oracles import gaussian_images

LAW = {"diffusivity": "geometric(0.1, 2)", "intensity": "geometric(0.03, 140)"}


def images() -> torch.Tensor:
    z = frequencies(8, 8, torch.float64, torch.device("cpu"))
    noise = torch.randn(300, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (0.5 + idct2(noise * (0.3 / (0.05 + z)))).float()


def places(statistics: SpectralStatistics) -> torch.Tensor:
    """The times of all entries, [K·P]."""
    return (statistics.edges[:-1, None] + statistics.phases * statistics.edges.diff()[:, None]).flatten()


def near(found: torch.Tensor, want: torch.Tensor, **limits: float) -> None:
    torch.testing.assert_close(found.double(), want.expand_as(found).double(), **limits)


def test_one_long_window_is_that_of_the_closed_form():
    """Noise, signal and target of the whole kernel, from t_min to T: chance has no part in them, though a few hundred
    images are drawn once, and the signal falls to a millionth of the noise.
    """
    process = anisodiff.process("heat", 8, step="exponential(windows=1)", **LAW)
    statistics = process.estimate_statistics(images())
    assert statistics.log_noise.shape[:2] == (1, 40)
    t = places(statistics)
    like, begin = torch.zeros(len(t), 1, 8, 8, dtype=torch.float64), torch.zeros_like(t)
    noise = grid_variance(process.equation, begin, t, like)[:, 0]
    signal = grid_decay(process.equation, begin, t, like)[:, 0] ** 2 * statistics.data
    assert (signal / noise).min() < 1e-6
    near(statistics.log_noise[0], noise.log(), rtol=0, atol=2e-4)
    near(statistics.log_target[0], -noise.log(), rtol=0, atol=2e-4)
    seen = signal > 1e-7 * noise
    near(statistics.log_signal[0][seen], signal.log()[seen], rtol=0, atol=2e-3)
    near(statistics.weight[0], torch.ones(()), rtol=0, atol=2e-3)


def test_the_image_alone_smoothed_isotropically_is_known_to_the_last():
    """b = −α1 z m, so w = S/V and the residual is (α1 z)² S N/V; S e^{−2Az} D."""
    process = anisodiff.process("heat", 8, step="signal(windows=1)", **LAW)
    statistics = process.estimate_statistics(images())
    t = places(statistics)
    z = frequencies(8, 8, torch.float64, t.device)
    equation = process.equation
    signal = torch.exp(-2 * equation.smoothing(torch.zeros_like(t), t)[:, None, None] * z) * statistics.data
    mass = quadrature(equation, torch.zeros_like(t), t)[0].sum(1)
    near(statistics.log_noise[0], mass.log()[:, None, None], rtol=0, atol=1e-5)
    noise = mass[:, None, None]
    power = signal + noise
    seen = (signal > 1e-7 * noise) & (z > 0)
    near(statistics.log_signal[0][seen], signal.log()[seen], rtol=0, atol=2e-3)
    near(statistics.log_target[0], -mass.log()[:, None, None], rtol=0, atol=1e-5)
    near(statistics.weight[0][seen], (signal / power)[seen], rtol=2e-3, atol=0)
    rate = equation.alpha1(t)[:, None, None] * z
    residual = rate**2 * signal * noise / power / equation.alpha2(t)[:, None, None] ** 4
    near(statistics.log_residual[0][seen], residual.log()[seen], rtol=0, atol=1e-2)


def test_noise_that_an_operator_shapes_is_measured_with_little_chance():
    """Two calibrations with other noise agree three times as well as chance alone would let them."""
    process = anisodiff.process("anisotropic", 8, step="exponential(windows=1)", drift_anisotropy=0.3, **LAW)
    one, two = (process.estimate_statistics(images(), seed=seed).log_noise for seed in (0, 1))
    chance = 2 / (300 * 3) ** 0.5  # of a variance estimated twice from 900 normals
    assert (one - two)[:, :30].std() < chance / 3


@pytest.fixture(scope="module")
def tables():
    """Of one linear process on Gaussian images: exact, and measured in two windows."""
    exact = anisodiff.process("heat", 8, **LAW)
    window = anisodiff.process("heat", 8, step="exponential(windows=2)", **LAW)
    more = images().repeat(4, 1, 1, 1)
    return exact.estimate_statistics(more), window.estimate_statistics(more)


def rows(statistics, name, t):
    when = torch.tensor([t], dtype=torch.float64)
    return statistics.at(getattr(statistics, name), *statistics.locate(when))[0]


def test_long_windows_are_resolved(tables):
    """From two runs, by twenty places in an interval."""
    exact, measured = tables
    assert measured.log_noise.shape[:2] == (2, 20)
    for t in (0.05, 0.3, 0.7, 1.3):
        noise, signal = rows(exact, "log_noise", t), rows(exact, "log_signal", t)
        assert (rows(measured, "log_noise", t) - noise).abs().mean() < 0.03
        seen = (signal - noise).exp() > 0.01
        assert (rows(measured, "log_signal", t) - signal)[seen].abs().mean() < 0.08


@pytest.mark.parametrize(("low", "high", "limit"), [(2e-3, 1e-2, 0.2), (2e-4, 2e-3, 0.3)])
def test_signals_far_below_the_noise_are_seen(tables, low, high, limit):
    """From a hundredth of the noise down, where two runs of 1200 images cannot tell them from zero."""
    exact, measured = tables
    noise, signal = rows(exact, "log_noise", 0.95), rows(exact, "log_signal", 0.95)
    ratio = (signal - noise).exp()
    weak = (ratio > low) & (ratio < high)
    assert weak.sum() > 10
    error = (rows(measured, "log_signal", 0.95) - signal)[weak]
    assert error.median().abs() < limit
    assert (error.abs() < 0.7).float().mean() > 0.8


@pytest.mark.parametrize("intervals", [1, 2, 3, 5, 7, 8, 10, 40])
def test_phases_rise_to_the_end_of_an_interval(intervals):
    phases = window_phases(intervals)
    assert (phases.diff() > 0).all()
    assert phases[-1] == 1
    assert phases[0] * 10 <= 0.4
    assert len(phases) * intervals >= 36


@pytest.mark.parametrize(("dt", "intervals"), [(0.01, 20), (0.05, 20), (0.03, 17), (0.5, 2)])
def test_single_steps_are_measured_at_their_ends(dt, intervals):
    """Statistics of single steps stand at the times that are learned, whatever Δt."""
    process = anisodiff.process("anisotropic-paper", 8, step=f"tamed(dt={dt})")
    edges, phases = process.step.statistics_grid(process.equation)
    edges = torch.tensor(edges, dtype=torch.float64)
    assert len(edges) == intervals + 1
    t = (edges[:-2, None] + phases * edges.diff()[:-1, None]).flatten()  # the last interval may be shorter
    assert (process.snap_to_grid(t) - t).abs().max() < 1e-9
    assert step_phases(1).tolist() == [1.0]


def test_noise_that_cannot_be_told_from_the_images_is_refused():
    for step, count in (("exponential", 200), ("exponential(windows=1)", 20)):
        process = anisodiff.process("anisotropic", 8, intensity="geometric(1e-6, 2)", step=step)
        with pytest.raises(ValueError, match="set a larger intensity"):
            process.estimate_statistics(gaussian_images(count, 8).float())
