"""What `diagnose` measures, where the answer is known."""

import math

import numpy as np
import pytest
import torch

import anisodiff
import anisodiff.dct
from anisodiff.dct import dct2, radial_bands
from anisodiff.forgetting import _verdict, forgetting
from anisodiff.io.images import sample_photo, to_display
from anisodiff.registry import DEFAULT_PROCESS

F64 = torch.float64


def smooth_images(count: int, size: int) -> torch.Tensor:
    """Images with most of their power in low frequencies, as photographs have."""
    g = torch.Generator().manual_seed(0)
    from anisodiff.dct import frequencies, idct2

    z = frequencies(size, size, F64, torch.device("cpu"))
    modes = torch.randn(count, 2, size, size, dtype=F64, generator=g) / (0.05 + z)
    return (0.5 + 0.02 * idct2(modes)).float()


def test_signal_to_noise_is_the_closed_form():
    process = anisodiff.process("heat", 16)
    images = smooth_images(600, 16)
    result = forgetting(process, images, bands=5)
    power = dct2(images.double()).var(0).mean(0)
    decay = torch.exp(-process.equation.smoothing(*torch.tensor([[0.0], [2.0]], dtype=F64)))
    z = anisodiff.dct.frequencies(16, 16, F64, images.device)
    signal, noise = power * decay ** (2 * z), process.variance(images[:1].double(), 0.0, 2.0)[0, 0]
    band = radial_bands(16, 16, 5)
    for k in range(5):
        want = float(signal[band == k].sum() / noise[band == k].sum())
        assert result.snr[k] == pytest.approx(want, rel=0.1, abs=0.04)


def test_a_process_that_forgets_is_told_from_one_that_remembers():
    images = smooth_images(300, 16)
    remembers = forgetting(anisodiff.process("anisotropic", 16, intensity="geometric(0.01, 0.2)"), images)
    assert not remembers.forgets
    assert remembers.found_again > 0.5
    assert remembers.correlation > 0.5
    assert any("intensity" in line for line in remembers.advice)
    forgets = forgetting(anisodiff.process("anisotropic", 16, intensity="geometric(0.01, 400)"), images)
    assert forgets.forgets
    assert forgets.found_again < 0.02
    assert abs(forgets.correlation) < 0.02
    assert forgets.verdict.startswith("forgets")


@pytest.mark.parametrize(
    ("images", "ratio", "seldom"), [(2, 0.4, 0.5), (10, 0.4, 0.3), (1000, 0.04, 0.001), (1000, 0.04, 0.006)]
)
def test_a_source_that_is_always_found_is_remembered_however_few_the_images(images, ratio, seldom):
    """Of few images no band stands out, and ten times chance is more than always."""
    forgets, words, _ = _verdict([ratio] * 8, 1.0, images, drifts=False, equation=True)
    assert not forgets
    assert words.endswith(f"no band stands out; the source is found up to {images} times as often as by chance")
    assert _verdict([ratio] * 8, seldom, images, drifts=False, equation=True)[0]


@pytest.mark.parametrize("size", [16, 32, 64])
def test_the_default_forgets_at_every_size(size):
    images = (0.5 + 5 * (smooth_images(100, size) - 0.5)).clamp(0, 1)
    assert forgetting(anisodiff.process(DEFAULT_PROCESS, size), images).forgets
    if size == 16:
        assert not forgetting(anisodiff.process("anisotropic", size), images).forgets


def test_gaussian_and_non_gaussian_noise_are_told_apart():
    images = smooth_images(4, 12)
    gaussian = forgetting(anisodiff.process("heat", 12), images)
    assert gaussian.non_gaussian_pixels < 0.04
    assert abs(gaussian.excess_kurtosis) < 0.1
    other = forgetting(anisodiff.process("design-4c", 12, step="tamed(dt=0.05)"), images)
    assert other.non_gaussian_pixels > 0.2
    assert other.excess_kurtosis > 0.5


def test_drift_of_the_means_is_the_papers_stencils():
    images = smooth_images(60, 12)
    settings = {"intensity": "geometric(0.001, 0.01)"}
    ours = forgetting(anisodiff.process("anisotropic", 12, **settings), images)
    papers = forgetting(anisodiff.process("anisotropic-paper", 12, **settings), images)
    assert ours.mean_drift_sigma < 4
    assert papers.mean_drift_sigma > 4
    assert papers.mean_drift > 5e-4
    assert any("flux stencil" in line for line in papers.advice)


def test_nothing_to_measure_without_images():
    with pytest.raises(ValueError, match="at least 2"):
        forgetting(anisodiff.process("heat", 8), torch.rand(1, 1, 8, 8))


def test_display_keeps_images_and_lowers_the_contrast_of_noise():
    photo = sample_photo(32)
    shown, contrast = to_display(photo)
    assert contrast == 1.0
    np.testing.assert_allclose(shown, photo.permute(1, 2, 0).numpy(), atol=1e-7)
    noise = 50 * torch.randn(1, 32, 32, generator=torch.Generator().manual_seed(0))
    shown, contrast = to_display(noise)
    assert shown.shape == (32, 32, 3)
    assert contrast == pytest.approx(1 / (50 * 2 * 2.326), rel=0.15)
    assert 0.01 < (shown == 1.0).mean() < 0.03
    assert math.isclose(shown.mean(), 0.5, abs_tol=0.03)


def test_a_process_without_noise_is_told_so():
    result = forgetting(anisodiff.process("gallery-isotropic-drift", 8), smooth_images(4, 8))
    assert result.advice == ["set intensity > 0"]
    assert not result.forgets


def test_advice_names_only_keys_that_the_process_has():
    """The baselines have no intensity, diffusivity or stencil; their terminal state may still be fitted."""
    result = forgetting(anisodiff.process("heat-dissipation", 16, noise=0.001), smooth_images(100, 16))
    assert not result.forgets
    assert [line for line in result.advice if "Gaussian fitted" in line] == result.advice != []
