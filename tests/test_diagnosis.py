"""What `diagnose` measures, against closed forms."""

import math

import numpy as np
import pytest
import torch

import anisodiff
import anisodiff.dct
from anisodiff.dct import dct2, radial_bands
from anisodiff.diagnosis import _conclusion, _information, diagnose, step_stiffness
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
    result = diagnose(process, images, bands=5)
    power = dct2(images.double()).var(0).mean(0)
    decay = torch.exp(-process.equation.smoothing(*torch.tensor([[0.0], [2.0]], dtype=F64)))
    z = anisodiff.dct.frequencies(16, 16, F64, images.device)
    signal, noise = power * decay ** (2 * z), process.variance(images[:1].double(), 0.0, 2.0)[0, 0]
    band = radial_bands(16, 16, 5)
    for k in range(5):
        want = float(signal[band == k].sum() / noise[band == k].sum())
        assert result.snr[k] == pytest.approx(want, rel=0.1, abs=0.04)


def test_information_and_mismatch_are_the_closed_forms():
    """½ Σ log2(1 + S/N) and ½ Σ (S/N − ln(1 + S/N))/ln 2 over modes and channels, from the equation."""
    images = smooth_images(600, 16)
    process = anisodiff.process("heat", 16, diffusivity=1.0, intensity="geometric(0.01, 0.5)")
    result = diagnose(process, images)
    power = dct2(images.double()).var(0).mean(0)
    decay = torch.exp(-process.equation.smoothing(*torch.tensor([[0.0], [2.0]], dtype=F64)))
    z = anisodiff.dct.frequencies(16, 16, F64, images.device)
    ratio = power * decay ** (2 * z) / process.variance(images[:1].double(), 0.0, 2.0)[0, 0]
    bits = images.shape[1] * 0.5 / math.log(2)
    assert result.information == pytest.approx(bits * float(ratio.log1p().sum()), rel=0.05)
    assert result.prior_mismatch == pytest.approx(bits * float((ratio - ratio.log1p()).sum()), rel=0.1)


def test_dependence_and_independence_are_told_apart():
    images = smooth_images(300, 16)
    dependent = diagnose(anisodiff.process("anisotropic", 16, intensity="geometric(0.01, 0.2)"), images)
    assert not dependent.forgets
    assert dependent.found_again > 0.5
    assert dependent.correlation > 0.5
    assert dependent.information > dependent.found_again * math.log2(300) - 1  # Fano
    assert any("intensity" in line for line in dependent.advice)
    independent = diagnose(anisodiff.process("anisotropic", 16, intensity="geometric(0.01, 400)"), images)
    assert independent.forgets
    assert independent.found_again < 0.02
    assert abs(independent.correlation) < 0.02
    assert independent.information < 0.1
    assert dependent.information_found
    assert not independent.information_found
    assert independent.verdict.startswith("U_T is nearly independent of U_0")


@pytest.mark.parametrize(
    ("images", "ratio", "seldom"), [(4, 0.4, 0.5), (10, 0.4, 0.3), (1000, 0.04, 0.001), (1000, 0.04, 0.006)]
)
def test_a_source_that_is_always_identified_means_dependence_for_few_images_too(images, ratio, seldom):
    """With few images no band is above the threshold, and ten times chance is more than 1."""
    independent, loud, words = _conclusion([ratio] * 8, 1.0, images)
    assert independent is False
    assert loud == []
    assert words == f"U_T depends on U_0: the source is identified {images} times as often as by chance"
    assert _conclusion([ratio] * 8, seldom, images)[0] is (None if images <= 10 else True)


@pytest.mark.parametrize(("images", "identified"), [(2, 1.0), (3, 1.0), (2, 0.5), (10, 0.1)])
def test_too_few_images_decide_nothing(images, identified):
    """Two or three images are all identified by chance in 25% and 4% of cases."""
    assert _conclusion([0.2] * 8, identified, images) == (None, [], f"not decided: {images} images are too few")
    independent, _, words = _conclusion([0.2, 9.0], identified, images)
    assert (independent, "identified" in words, words.endswith("in band 1")) == (False, False, True)


def test_permuted_pairs_are_estimated_as_the_pairs_themselves():
    """With both orders the same, only the images are exchanged: the estimate is that of those pairs."""
    x, one, two = torch.randn(3, 30, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=F64)
    order = np.random.default_rng((7, 1)).permutation(30), np.random.default_rng((7, 1))
    first, second = (order[1].permutation(30) for _ in range(2))
    assert (first == order[0]).all()
    chance = _information(x, one, two, 7, 1)[2]
    assert chance == pytest.approx(_information(x, one[first], two[second], 0, 0)[0], rel=1e-12)


def test_a_dependence_that_few_images_cannot_measure_is_not_called_independence():
    """SNR 0.3 in the mean color, far below the detection limit 3/√32: bands say nothing, the information does."""
    process = anisodiff.process("anisotropic", 16, intensity="geometric(0.01, 6)")
    told = [diagnose(process, smooth_images(32, 16), seed=seed, replicates=20) for seed in range(8)]
    assert any(result.forgets is None for result in told)
    assert not any(result.forgets and result.information_found for result in told)
    assert "give 144 or more" in next(result.verdict for result in told if result.forgets is None)
    assert _conclusion([0.01] * 8, 0.0, 1000, informed=True)[0] is True  # 0.1 bits are nearly nothing


@pytest.mark.parametrize("count", [2, 12])
def test_information_of_few_images_is_not_distinguishable_from_0(count):
    process = anisodiff.process("anisotropic", 16, intensity="geometric(0.01, 400)")
    found = [diagnose(process, smooth_images(count, 16), seed=seed, replicates=20) for seed in range(10)]
    assert sum(result.information_found for result in found) <= 3  # level 5%: more in 0.1% of cases
    loud = diagnose(anisodiff.process("anisotropic", 16, intensity="geometric(0.01, 0.2)"), smooth_images(12, 16))
    assert loud.information_found


def test_information_of_independent_states_is_found_in_one_case_of_twenty():
    found = 0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        modes = torch.randn(3, 40, 1, 4, 4, generator=generator, dtype=F64)
        information, _, chance = _information(*modes, seed, 19)
        found += information > chance
    assert 1 <= found <= 23  # binomial, 1/20: more, or none, in 1e-4 of cases


def test_neighbors_that_resemble_each_other_are_no_chance():
    """Frames of a film in their order: the next frame tells nearly as much of U_T as the frame itself."""
    wide = smooth_images(1, 256)[0, :, :16]  # 16 rows of one picture
    frames = torch.stack([wide[:, :, k : k + 16] for k in range(200)])
    result = diagnose(anisodiff.process("anisotropic", 16, intensity="geometric(0.01, 0.5)"), frames)
    assert result.information > 3 * result.information_by_chance


def test_stiffness_is_that_of_the_longest_step():
    build = anisodiff.process
    assert step_stiffness(build("heat", 16)) is None
    assert step_stiffness(build("flow-matching", 16)) is None
    assert step_stiffness(build("anisotropic", 16, diffusivity=3.0)) == pytest.approx(8 * 3.0 * 0.2)
    tamed = build("anisotropic-paper", 16, diffusivity="geometric(1, 4)", step="tamed(dt=0.5)")
    assert step_stiffness(tamed) == pytest.approx(8 * 0.5 * 4 ** (1.5 / 2))  # explicit: α1 where the last step begins


def test_advice_on_an_unstable_step_names_a_stable_dt():
    images = smooth_images(4, 8)
    unstable = diagnose(anisodiff.process("anisotropic-paper", 8, diffusivity=50.0), images)
    assert unstable.stiffness == pytest.approx(4.0)
    assert any("set dt well below 0.005" in line for line in unstable.advice)
    stable = diagnose(anisodiff.process("anisotropic-paper", 8, diffusivity=20.0), images)
    assert not any("dt" in line for line in stable.advice)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_the_default_is_independent_of_the_image_at_every_size(size):
    images = (0.5 + 5 * (smooth_images(100, size) - 0.5)).clamp(0, 1)
    assert diagnose(anisodiff.process(DEFAULT_PROCESS, size), images).forgets
    if size == 16:
        assert not diagnose(anisodiff.process("anisotropic", size), images).forgets


def test_gaussian_and_non_gaussian_noise_are_told_apart():
    images = smooth_images(4, 12)
    gaussian = diagnose(anisodiff.process("heat", 12), images)
    assert gaussian.non_gaussian_pixels < 0.04
    assert abs(gaussian.excess_kurtosis) < 0.1
    other = diagnose(anisodiff.process("design-4c", 12, step="tamed(dt=0.05)"), images)
    assert other.non_gaussian_pixels > 0.2
    assert other.excess_kurtosis > 0.5


def test_drift_of_the_means_is_the_papers_stencils():
    images = smooth_images(60, 12)
    settings = {"intensity": "geometric(0.001, 0.01)"}
    ours = diagnose(anisodiff.process("anisotropic", 12, **settings), images)
    papers = diagnose(anisodiff.process("anisotropic-paper", 12, **settings), images)
    assert ours.mean_drift_sigma < 4
    assert papers.mean_drift_sigma > 4
    assert papers.mean_drift > 5e-4
    assert any("stencil=flux" in line for line in papers.advice)


def test_nothing_to_measure_without_images():
    with pytest.raises(ValueError, match="at least 2"):
        diagnose(anisodiff.process("heat", 8), torch.rand(1, 1, 8, 8))


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
    result = diagnose(anisodiff.process("gallery-isotropic-drift", 8), smooth_images(4, 8))
    assert result.advice == ["set intensity > 0"]
    assert not result.forgets
    assert result.as_dict()["information"] is None
    assert result.as_dict()["snr"] == [None] * len(result.snr)


@pytest.mark.parametrize(("name", "prior"), [("heat-dissipation", "simulate"), ("edge-preserving", "gaussian")])
def test_advice_names_only_keys_that_the_process_has(name, prior):
    """The baselines have no intensity, diffusivity or stencil: only the prior is left to choose."""
    changed = {"noise": 0.001} if name == "heat-dissipation" else {"beta_max": 1e-4}
    result = diagnose(anisodiff.process(name, 16, **changed), smooth_images(100, 16))
    assert not result.forgets
    assert result.stiffness is None
    assert len(result.advice) == 1
    assert f"--prior {prior}" in result.advice[0]
