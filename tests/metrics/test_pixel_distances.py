from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor

from anisodiff.metrics.edges import LARGEST, MAGNITUDES, edge_distance, edge_statistics
from anisodiff.metrics.pixel_metrics import (
    directions,
    project,
    radii,
    sliced_wasserstein,
    spectrum_error,
    spectrum_statistics,
)
from tests.metrics.conftest import random_images


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Sliced Wasserstein


def test_sliced_wasserstein_of_a_shift_is_exact_on_each_direction() -> None:
    theta = directions(12, 500, generator=generator())
    x = torch.randn(40, 12, dtype=torch.float64, generator=generator(1))
    shift = torch.linspace(-1, 2, 12, dtype=torch.float64)
    got = sliced_wasserstein(x @ theta, (x + shift) @ theta)
    assert got == pytest.approx(float((shift @ theta).square().mean().sqrt()), rel=1e-12)
    assert got == pytest.approx(float(shift.norm()) / 12**0.5, rel=0.1)  # in expectation over θ


@pytest.mark.parametrize(("n", "m"), [(6, 4), (5, 7), (1, 9)])
def test_unequal_sizes_agree_with_repeating_to_the_common_multiple(n: int, m: int) -> None:
    x, y = (torch.randn(k, 3, dtype=torch.float64, generator=generator(k)) for k in (n, m))
    common = math.lcm(n, m)
    repeated = [v.repeat_interleave(common // len(v), dim=0) for v in (x, y)]
    expected = sum((a.sort().values - b.sort().values).square().mean() for a, b in zip(*(r.T for r in repeated)))
    assert sliced_wasserstein(x, y) == pytest.approx(float((expected / 3) ** 0.5), rel=1e-12)


def test_sliced_wasserstein_of_images_identity_symmetry_and_scale() -> None:
    theta = directions(3 * 16 * 16, 64, generator=generator())
    x, y = (project(random_images(30, seed=s), theta) for s in (1, 2))
    assert sliced_wasserstein(x, x.flip(0)) == 0
    assert sliced_wasserstein(x, y) == pytest.approx(sliced_wasserstein(y, x), rel=1e-12)
    black = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    white = project(black + 255, theta)
    expected = float(theta.sum(dim=0).square().mean().sqrt())
    assert sliced_wasserstein(project(black, theta), white) == pytest.approx(expected)


# Power spectra


def noise_images(amplitude: float, count: int = 64, seed: int = 0) -> Tensor:
    x = 128 + amplitude * torch.randn(count, 3, 32, 32, generator=generator(seed))
    return x.round().clamp(0, 255).to(torch.uint8)


def test_white_noise_has_a_flat_spectrum_of_its_variance() -> None:
    power = spectrum_statistics(noise_images(25)).power
    assert power.shape == (16,)
    torch.testing.assert_close(power, torch.full_like(power, (25 / 255) ** 2), rtol=0.1, atol=0)


def test_spectrum_error_of_scaled_noise_is_the_log_ratio_of_power() -> None:
    weak, strong = (spectrum_statistics(noise_images(a)) for a in (10, 30))
    assert spectrum_error(weak, strong) == pytest.approx(math.log10(9), rel=0.02)
    assert spectrum_error(weak, strong) == spectrum_error(strong, weak)
    assert spectrum_error(weak, weak) == 0


def test_a_single_wave_lands_in_its_ring() -> None:
    x = torch.arange(32)
    wave = 128 + 100 * torch.cos(2 * math.pi * 5 * x / 32)
    image = wave.round().to(torch.uint8).expand(1, 3, 32, 32)
    power = spectrum_statistics(image).power
    assert int(power.argmax()) == 5 - 1
    ring = int((radii(32, 32) == 5).sum())
    assert float(power[4]) * ring == pytest.approx((100 / 255) ** 2 / 2 * 32 * 32, rel=0.01)  # Parseval


def test_spectra_add_and_other_sizes_are_refused() -> None:
    images = noise_images(20, count=10)
    whole = spectrum_statistics(images)
    total = spectrum_statistics(images[:3]).total + spectrum_statistics(images[3:]).total
    torch.testing.assert_close(total / 10, whole.power, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="image sizes differ"):
        spectrum_error(whole, spectrum_statistics(images[..., :16, :16]))
    assert spectrum_statistics(images[..., :20]).power.shape == (10,)  # not square


# Edges


def stripes(angle: float, *, amplitude: float = 100, size: int = 32) -> Tensor:
    """A wave whose gradient points along ``angle`` degrees."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    phase = 0.6 * (x * math.cos(math.radians(angle)) + y * math.sin(math.radians(angle)))
    return (128 + amplitude * torch.sin(phase)).round().to(torch.uint8).expand(1, 3, size, size)


@pytest.mark.parametrize(("first", "second", "degrees"), [(0, 90, 90), (0, 45, 45), (10, 170, 20), (80, 100, 20)])
def test_turned_stripes_are_as_far_apart_as_they_were_turned(first: float, second: float, degrees: float) -> None:
    found = edge_distance(edge_statistics(stripes(first)), edge_statistics(stripes(second)))
    assert found.orientation == pytest.approx(degrees, abs=3)
    assert found.coherence < 0.05


def test_equal_sets_have_distance_zero_and_order_does_not_matter() -> None:
    a, b = (edge_statistics(random_images(20, seed=s)) for s in (1, 2))
    assert edge_distance(a, a).value == 0
    assert edge_distance(a, b).value == pytest.approx(edge_distance(b, a).value, rel=1e-9)
    assert edge_distance(a, b).value > 0


def test_mirror_images_keep_magnitude_and_coherence() -> None:
    image = stripes(30)
    found = edge_distance(edge_statistics(image), edge_statistics(image.flip(-1)))
    assert found.orientation == pytest.approx(60, abs=3)
    assert found.coherence == pytest.approx(0, abs=1e-12)
    assert found.magnitude == pytest.approx(0, abs=1e-12)


def test_noise_is_less_coherent_than_stripes_and_magnitude_agrees_with_scipy() -> None:
    noisy, plain = edge_statistics(noise_images(40, count=4)), edge_statistics(stripes(20))
    found = edge_distance(noisy, plain)
    assert found.coherence > 0.3
    centers = (torch.arange(MAGNITUDES, dtype=torch.float64) + 0.5) * (LARGEST / MAGNITUDES)
    expected = wasserstein_distance(centers, centers, noisy.magnitude, plain.magnitude)
    assert found.magnitude == pytest.approx(expected, rel=1e-9)


def test_gradient_of_a_ramp() -> None:
    ramp = (torch.arange(20) * 10).to(torch.uint8).expand(1, 3, 20, 20)
    stats = edge_statistics(ramp)
    assert float(stats.magnitude.sum()) == 18 * 18
    assert int(stats.magnitude.argmax()) == int(10 / 255 / LARGEST * MAGNITUDES)
    assert float(stats.orientation[0]) == pytest.approx(float(stats.orientation.sum()))
    assert float(stats.coherence[-1]) == pytest.approx(float(stats.coherence.sum()))


def test_edges_add_flat_images_and_too_small_images() -> None:
    images = random_images(6)
    whole, parts = edge_statistics(images), [edge_statistics(p) for p in images.split(2)]
    total = torch.stack([part.orientation for part in parts]).sum(0)
    torch.testing.assert_close(total, whole.orientation, rtol=1e-10, atol=1e-12)
    flat = edge_statistics(torch.full((2, 3, 16, 16), 90, dtype=torch.uint8))
    assert math.isfinite(edge_distance(flat, whole).value)
    assert edge_distance(flat, flat).value == 0
    with pytest.raises(ValueError, match="at least 7×7"):
        edge_statistics(images[..., :6, :6])
