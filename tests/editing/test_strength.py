"""Strength: the same for all processes, whatever their time."""

import math

import pytest
import torch

import anisodiff
from anisodiff.editing import noise_level, strength_of_t, strength_range, t_of_strength
from anisodiff.editing.strength import time_of
from tests.editing.conftest import Exact


def test_of_ve_it_is_the_noise_level(exact_ve):
    """σ(t)² = σ_min²((σ_max/σ_min)^t − 1) at T = 2; tables interpolate between 40 places."""
    model = exact_ve.generator.model
    pixel = math.sqrt(float(exact_ve.power.mean()))
    for t in (0.05, 0.3, 0.8, 1.3, 2.0):
        sigma = 0.001 * math.sqrt(50_000.0**t - 1)
        assert strength_of_t(model, t) == pytest.approx(sigma / (sigma + pixel), rel=5e-3)
        assert noise_level(sigma / (sigma + pixel)) == pytest.approx(sigma / pixel)


@pytest.mark.parametrize("name", ["ve", "heat", "anisotropic"])
def test_there_and_back(runs, name):
    generator = anisodiff.load(runs(name), "cpu")
    low, high = strength_range(generator)
    assert 0 < low < 0.2
    assert 0.6 < high < 1
    wanted = torch.linspace(low, high, 12)[1:].tolist()
    times = [t_of_strength(generator.model, min(s, high), t_min=0.02) for s in wanted]
    assert times == sorted(times)
    assert times[0] > 0.02
    assert times[-1] <= generator.process.T
    for s, t in zip(wanted, times):
        assert strength_of_t(generator.model, t) == pytest.approx(s, abs=2e-4)


def test_equal_strengths_destroy_equally_much():
    """The best linear guess of a mode explains S/V of it; information, Σ ln(1 + S/N), is what strength equals."""
    known = []
    for name in ("ve", "heat"):
        exact = Exact(name)
        signal, noise = exact.kernel(t_of_strength(exact.generator.model, 0.5))
        known.append(float(torch.log1p(signal / noise).sum()))
    assert known[0] == pytest.approx(known[1], rel=0.01)
    pixel = Exact("ve").power
    assert known[0] == pytest.approx(float(torch.log1p(pixel / pixel.mean()).sum()), rel=0.01)  # σ = σ_d at ½


def test_mistakes_are_named(exact_ve):
    generator = exact_ve.generator
    for strength in (0.0, 1.0, -1.0, 2.0, float("nan"), 1e-4):
        with pytest.raises(ValueError, match=r"strength: got .*, expected a number in \(0.0\d+, 0.99\d+\]"):
            time_of(generator, None, strength)
    for t in (0.0, 0.01, 2.1, float("nan")):
        with pytest.raises(ValueError, match=r"t: got .*, expected a time in \(t_min, T\] = \(0.01, 2\]"):
            time_of(generator, t, None)
    for both, says in (((None, None), "neither t nor"), ((0.5, 0.5), "both t and")):
        with pytest.raises(ValueError, match=f"got {says} strength; expected one of them"):
            time_of(generator, *both)
