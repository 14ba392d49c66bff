"""The step `signal`: Perona–Malik on the image, noise beside it that nothing has smoothed."""

import math

import pytest
import torch

import anisodiff
from anisodiff.dct import dct2, frequencies
from anisodiff.gaussian_kernel import quadrature
from anisodiff.noise import KeyedNoise, ZeroNoise, combine, spectrum
from anisodiff.registry import build_sampler
from anisodiff.samplers.euler import Euler
from tests.support.oracles import F64, at, gaussian_images
from tests.support.oracles import spectrum as data_spectrum

KEYS = {
    "diffusivity": "geometric(0.5, 8)",
    "intensity": "geometric(0.05, 2)",
    "drift_anisotropy": "geometric(0.05, 5)",
}


def signal(size: int = 6, **changes):
    return anisodiff.process("anisotropic", size, **{**KEYS, "step": "signal(windows=6)", **changes})


def keys(count: int, seed: int = 5) -> KeyedNoise:
    return KeyedNoise(combine(seed, torch.arange(count)))


SILENT = ZeroNoise(torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("length", [0.0, 0.8])
def test_isotropic_it_is_heat_on_the_image_and_plain_noise(length):
    """Mean e^{−Az} x0, covariance q ∫α2² whatever was smoothed, in the DCT; 20,000 draws of one image."""
    process = signal(drift_anisotropy="infinite", correlation_length=length)
    x0, t = gaussian_images(1, 6), at(0.3, 1.1, 2.0)
    z = frequencies(6, 6, F64, x0.device)
    for one in t:
        decay = torch.exp(-process.equation.smoothing(torch.zeros(1, dtype=F64), one[None]) * z)
        mean = process.training_pair(x0, one[None], SILENT).state
        torch.testing.assert_close(dct2(mean)[0, 0], decay * dct2(x0)[0, 0], rtol=0, atol=1e-5)
        states = process.training_pair(x0.expand(20_000, -1, -1, -1), one.expand(20_000), keys(20_000)).state
        spread = dct2(states - mean)[:, 0].var(0)
        mass = quadrature(process.equation, torch.zeros(1, dtype=F64), one[None])[0].sum()
        expected = spectrum(6, 6, length, F64, x0.device) * mass
        assert ((spread / expected - 1).abs() < 5 * math.sqrt(2 / 20_000)).all()


def test_the_drift_is_the_rate_of_the_mean():
    """∂M/∂t by central differences, inside windows, to their second order."""
    process, x0 = signal(), gaussian_images(4, 6)
    t, h = at(0.1, 0.52, 1.17, 1.93), 1e-4
    low, high = (process.training_pair(x0, t + sign * h, SILENT).state for sign in (-1, 1))
    drift = process.training_pair(x0, t, SILENT).drift
    torch.testing.assert_close((high - low) / (2 * h), drift, rtol=1e-3, atol=1e-4 * float(drift.abs().max()))


def test_the_mean_converges_to_perona_malik():
    """Against 256 windows the error halves with the windows' length: freezing is of first order."""
    x0, t = gaussian_images(4, 8), at(0.7).expand(4)

    def mean(windows: int) -> torch.Tensor:
        return signal(8, step=f"signal(windows={windows}, tolerance=1e-9)").training_pair(x0, t, SILENT).state

    fine = mean(256)
    errors = [float((mean(k) - fine).norm()) for k in (8, 16, 32)]
    assert 1.6 < errors[0] / errors[1] < 2.6
    assert 1.6 < errors[1] / errors[2] < 2.6


def test_edges_outlive_flat_detail():
    """A step of 1 and ripples of 0.02 under equal smoothing: the ripples are gone, the step stands."""
    x = torch.full((1, 1, 16, 16), 0.1, dtype=F64)
    x[..., 8:] = 0.9
    ripples = 0.01 * torch.cos(math.pi * torch.arange(16, dtype=F64))
    process = signal(16, diffusivity=1.0, drift_anisotropy=0.02)
    smooth = process.training_pair(x + ripples, at(1.0), SILENT).state[0, 0, 8]
    step = smooth[8:].mean() - smooth[:8].mean()
    assert step > 0.75
    assert float(smooth[1:6].std()) < 0.2 * float(ripples.std())


def test_states_are_the_same_in_one_move_and_in_two():
    """A path observed in between has the distribution of one that is not: same mean, variances add."""
    process, x0 = signal(), gaussian_images(3, 6)
    together = process.path(x0, [2.0], SILENT)[-1]
    apart = process.path(x0, [0.4, 1.3, 2.0], SILENT)[-1]
    torch.testing.assert_close(apart, together, rtol=0, atol=1e-9)
    many = x0[:1].expand(8000, -1, -1, -1)
    one, two = (
        process.path(many, [1.0], keys(8000, 1))[-1],
        process.path(many, [0.6, 1.0], keys(8000, 2))[-1],
    )
    ratio = one.var(0) / two.var(0)
    assert ((ratio - 1).abs() < 5 * 2 / math.sqrt(8000)).all()
    torch.testing.assert_close(process.draw(x0, 0.0, keys(3)), x0, rtol=0, atol=0)


@pytest.mark.parametrize("length", [0.0, 0.8])
def test_its_target_has_the_exact_score_as_conditional_mean(length):
    """Gaussian data, isotropic smoothing: V = e^{−2Az} D + q ∫α2²; five standard errors, h = u and u³."""
    process = signal(drift_anisotropy="infinite", correlation_length=length)
    assert process.learns_drift
    count, t = 12_000, 0.9
    drawn = process.training_pair(gaussian_images(count, 6), torch.full((count,), t, dtype=F64), keys(count))
    u, target, drift = dct2(drawn.state - 0.5)[:, 0], dct2(drawn.target)[:, 0], dct2(drawn.drift)[:, 0]
    z, begin, end = frequencies(6, 6, F64, u.device), at(0.0), at(t)
    known = torch.exp(-2 * process.equation.smoothing(begin, end) * z) * data_spectrum(6)
    noise = spectrum(6, 6, length, F64, u.device) * quadrature(process.equation, begin, end)[0].sum()
    power = known + noise
    rate = process.equation.alpha1(end) * z
    for residual in (target + u / power, drift + rate * known / power * u):  # E[b|u] = −α1 z (S/V) u
        for h in (u, u**3):
            product = residual * h
            error = product.std(0) / math.sqrt(count)
            assert (product.mean(0).abs() <= 5 * error + 1e-12).all()


def test_explicit_steps_take_its_drift_from_the_model():
    assert build_sampler("euler", signal(diffusivity=64)) == Euler(drift="projected", norm="none", tames="all")
    with pytest.raises(ValueError, match="take drift=projected"):
        build_sampler("euler(drift=flux)", signal())
    with pytest.raises(ValueError, match=r"needs white noise \(correlation_length=0\); use 'exponential'"):
        build_sampler("ode", signal(correlation_length=0.5))


def test_tables_hold_its_noise_and_the_jumps_of_its_drift():
    process = signal(correlation_length=0.5)
    assert process.step.jumps(process.equation) == (*(2.0 * k / 6 for k in range(6)), 2.0)
    statistics = process.estimate_statistics(gaussian_images(64, 6))
    for interval, phase in ((0, 3), (4, -1)):
        t = statistics.edges[interval] + statistics.phases[phase] * (
            statistics.edges[interval + 1] - statistics.edges[interval]
        )
        mass = quadrature(process.equation, at(0.0), t[None])[0].sum()
        exact = spectrum(6, 6, 0.5, F64, t.device) * mass
        torch.testing.assert_close(statistics.log_noise[interval, phase].exp().double(), exact, rtol=1e-5, atol=0)


def test_a_path_is_walked_once(monkeypatch):
    """Fifty looks at one path take the windows once, not fifty times."""
    from anisodiff.integrators.exponential import FrozenOperator

    taken = []
    across = FrozenOperator.across
    monkeypatch.setattr(FrozenOperator, "across", lambda self, u, xi: taken.append(1) or across(self, u, xi))
    signal().path(gaussian_images(2, 6), [0.04 * k for k in range(1, 51)], SILENT)
    assert len(taken) == 5


def test_its_notation_reads_back():
    process = signal(step="signal(windows=3, tolerance=1e-4)")
    assert process.identity()["step"] == "signal(windows=3, tolerance=0.0001)"
    again = anisodiff.process("anisotropic", 6, **{**KEYS, "step": process.identity()["step"]})
    assert again == process


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stencil": "paper"}, "the signal step needs stencil='flux'"),
        ({"noise_anisotropy": 0.1}, "the signal step needs isotropic noise"),
        ({"step": "signal(windows=0)"}, "windows: got 0, expected a whole number"),
        ({"diffusivity": 1e9}, "too stiff"),
    ],
)
def test_what_it_cannot_do_is_named(changes, says):
    with pytest.raises(ValueError, match=says):
        signal(**changes)
