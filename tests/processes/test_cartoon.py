"""The process `cartoon`: smoothing of the image that ends while there is little noise, and noise alone after."""

import math

import pytest
import torch
from scipy.integrate import quad

import anisodiff
from anisodiff import gaussian_kernel
from anisodiff.cartoons import PeronaMalik
from anisodiff.dct import dct2, frequencies, idct2, radial_bands
from anisodiff.equation import Equation
from anisodiff.estimation import EstimationSettings, exactly
from anisodiff.noise import KeyedNoise, ZeroNoise
from anisodiff.registry import build_sampler
from tests.support.oracles import F64, at, gaussian_images, keys
from tests.support.score_models import wiener_model

SILENT = ZeroNoise(torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(("size", "total"), [(8, 10.0), (32, 10.0), (64, 40.0), (256, 640.0)])
def test_smoothing_ends_at_its_noise(size, total):
    """∫α1 and √∫α2² at the end of the smoothing, for any size; nothing is smoothed after it."""
    process = anisodiff.process("cartoon", size)
    end, zero = at(process.smoothing_end), at(0.0)
    assert float(process.equation.smoothing(zero, end)) == pytest.approx(total)
    assert float(process.equation.smoothing(end, at(process.T))) == 0.0
    assert float(gaussian_kernel.quadrature(process.equation, zero, end)[0].sum().sqrt()) == pytest.approx(0.1)
    assert float(process.equation.alpha1(end)) > 0 == float(process.equation.alpha1(end * (1 + 1e-9)))


def test_keys_of_its_own():
    process = anisodiff.process("cartoon", 8, smoothing=3, sigma_end=0.05, sigma_max=9, T=1.0)
    spread = gaussian_kernel.quadrature(process.equation, at(0.0), at(process.smoothing_end))[0].sum().sqrt()
    assert float(spread) == pytest.approx(0.05)
    assert float(process.equation.smoothing(at(0.0), at(1.0))) == pytest.approx(3)
    same = anisodiff.process("ve", 8, sigma_max=9, T=1.0)
    assert process.identity()["intensity"] == same.identity()["intensity"]
    for keys_, words in (
        ({"sigma_end": 99}, "sigma_end must lie between 0 and sigma_max = 50, got 99"),
        ({"step": "tamed"}, "cannot stop smoothing between its steps"),
        ({"diffusivity": "cutoff(1, 2)"}, "ends before T = 2"),
        ({"intensity": "cutoff(1, 1)"}, "intensity must not fade"),
        ({"drift_anisotropy": "cutoff(1, 1)"}, "which vanishes; it is for α only"),
        ({"diffusivity": "cutoff(1, 1, r=0.5)"}, "must be ≥ 1, got 0.5"),
        ({"step": "signal(steps=0)"}, "steps of a window: got 0, expected a whole number from 1"),
    ):
        with pytest.raises(ValueError, match=words.replace("(", r"\(")):
            anisodiff.process("cartoon", 8, **keys_)
    with pytest.raises(ValueError, match="smoothing: only cartoon have it, not 've'"):
        anisodiff.process("ve", 8, smoothing=3)


def test_a_state_is_a_cartoon_and_noise():
    """From the end of the smoothing on the noise-free part is Perona–Malik's; the drift is 0 after it."""
    process, x0 = anisodiff.process("cartoon", 8, smoothing=4), gaussian_images(4, 8)
    made = PeronaMalik(smoothing=4, edge=0.05)(x0)
    for t in (process.smoothing_end, 0.9, 2.0):
        pair = process.training_pair(x0, torch.full((4,), t, dtype=F64), SILENT)
        torch.testing.assert_close(pair.state, made, rtol=0, atol=1e-7)
        assert bool((pair.drift == 0).all()) == (t > process.smoothing_end)


def test_steps_of_a_window_are_windows_of_the_flow():
    """The same image path, but statistics and samplers see one window, and the end of the smoothing."""
    x0, t = gaussian_images(4, 8), at(0.03, 0.1, 0.2, 0.4)
    one, many = (
        anisodiff.process("cartoon", 8, step=f"signal({text})") for text in ("windows=1, steps=6", "windows=6")
    )
    torch.testing.assert_close(one.training_pair(x0, t, SILENT).state, many.training_pair(x0, t, SILENT).state)
    end = one.smoothing_end
    assert one.step.jumps(one.equation) == (0.0, end, 2.0)
    assert many.step.jumps(many.equation) == (*(end * k / 6 for k in range(6)), end, 2.0)
    assert str(one.step) == "signal(windows=1, tolerance=1e-06, steps=6)"
    assert str(many.step) == "signal(windows=6, tolerance=1e-06)"


def test_the_kernel_of_a_smoothing_that_ends():
    """φ(z) of heat with a cutoff against adaptive quadrature, before, at and after the jump of α1."""
    equation = Equation(diffusivity="cutoff(4, 0.5, r=2)", intensity="geometric(0.05, 2)", T=2.0)
    z = at(0.0, 0.7, 3.0, 8.0)
    for s, t in ((0.0, 0.4), (0.0, 0.5), (0.0, 1.3), (0.3, 0.9), (0.6, 2.0)):
        found = gaussian_kernel.variance(equation, at(s), at(t), z)[0]
        for value, got in zip(z.tolist(), found.tolist()):

            def rate(r: float, value: float = value, t: float = t) -> float:
                left = float(equation.smoothing(at(r), at(t)))
                return float(equation.alpha2(at(r))) ** 2 * math.exp(-2 * left * value)

            inner = [0.5] if s < 0.5 < t else None
            assert got == pytest.approx(quad(rate, s, t, points=inner, epsabs=0, epsrel=1e-11)[0], rel=1e-8)


def test_statistics_are_constant_after_the_end_of_smoothing():
    """N is ∫α2². After the end of smoothing S is constant, and no drift is left to learn. Exact ones split there."""
    process = anisodiff.process("cartoon", 8, smoothing=2)
    found = process.estimate_statistics(gaussian_images(64, 8).float())
    end = process.smoothing_end
    assert found.edges.tolist() == [0.0, end, 2.0]
    quiet = found.log_noise[1, :, 0, 0] < 0  # later a signal is at least 1e-8 of the noise
    assert int(quiet.sum()) > 5
    assert float(found.log_signal[1, quiet].std(0).max()) < 1e-6
    torch.testing.assert_close(found.log_signal[1, 0], found.log_signal[0, -1], rtol=0, atol=1e-5)
    assert float(found.log_residual[1].max()) < -60 < float(found.log_residual[0].max())
    t = at(0.5 * end, end, 1.0)
    noise = found.at(found.log_noise, *found.locate(t)).exp()[:, 0, 0]
    exact = gaussian_kernel.quadrature(process.equation, torch.zeros_like(t), t)[0].sum(1)
    torch.testing.assert_close(noise.double(), exact, rtol=0.01, atol=0)
    heat = Equation(diffusivity="cutoff(2, 0.3)", intensity="geometric(0.05, 2)", T=2.0)
    assert 0.3 in exactly(heat, gaussian_images(8, 8).float(), EstimationSettings()).edges.tolist()


def test_a_sampler_stops_where_the_smoothing_ends():
    process = anisodiff.process("cartoon", 6)
    model, end = wiener_model(process, gaussian_images(64, 6).float()), process.smoothing_end
    chosen = build_sampler("exponential", process)
    assert end in chosen.times(model, 12, t_min=0.005).tolist()
    assert chosen.times(model, 2, t_min=0.005, t_max=end).tolist() == [end, 0.005]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("cartoon", {"smoothing": 1.0, "drift_anisotropy": "infinite"}),
        ("heat", {"diffusivity": "cutoff(1, 0.3)", "intensity": "geometric(0.05, 2)"}),
    ],
)
def test_a_cartoon_lies_on_the_path(name, overrides):
    """States made from smoothed Gaussian images, with the exact linear score: the images have the data's spectrum.

    1500 images, bands of frequencies; 8% is twice what chance does to the smallest band.
    """
    process = anisodiff.process(name, 6, **overrides)
    images = gaussian_images(1500, 6)
    model, end = wiener_model(process, images.float()).double(), process.smoothing_end
    z = frequencies(6, 6, F64, images.device)
    amount = float(process.equation.smoothing(at(0.0), at(end)))
    smoothed = idct2(torch.exp(-amount * z) * dct2(images))
    state = process.after_smoothing(smoothed, end, KeyedNoise(keys(1500)))
    assert torch.equal(state, process.after_smoothing(smoothed, end, KeyedNoise(keys(1500))))
    along = process.training_pair(images, at(end).expand(1500)).state
    assert float((state - smoothed).var()) == pytest.approx(float((along - smoothed).var()), rel=0.02)
    chosen = build_sampler("exponential", process)
    seen: list[torch.Tensor] = []
    times = chosen.times(model, 60, t_min=0.005, t_max=end)
    chosen.run(model, state, times, KeyedNoise(keys(1500, 1)), callback=lambda i, u: seen.append(u))
    band = radial_bands(6, 6, 4)
    ratio = dct2(seen[-1] - 0.5).square().mean((0, 1)) / model.coefficients(times[-1:]).power[0, 0]
    for k in range(1, 4):
        assert float(ratio[band == k].mean()) == pytest.approx(1.0, abs=0.08)
    with pytest.raises(ValueError, match="where nothing is smoothed"):
        process.after_smoothing(smoothed, 0.5 * end)


@pytest.mark.parametrize("text", ["exponential", "exponential(wiener=1)", "multistep"])
@pytest.mark.parametrize("nfe", [2, 4])
def test_two_evaluations_are_enough_for_the_right_power(text, nfe):
    """A step that takes the whole smoothing back, next to nothing of some modes being left: within a factor of 3."""
    process = anisodiff.process("cartoon", 8, smoothing=4.0, drift_anisotropy=0.2)
    images = gaussian_images(200, 8).float()
    model, end = wiener_model(process, images), process.smoothing_end
    state = process.after_smoothing(PeronaMalik(smoothing=4.0, edge=0.2)(images), end, KeyedNoise(keys(200)))
    chosen = build_sampler(text, process)
    times = chosen.times(model, nfe, t_min=0.005, t_max=end)
    assert chosen.nfe(times) == nfe
    seen: list[torch.Tensor] = []
    chosen.run(model, state, times, KeyedNoise(keys(200, 1)), callback=lambda i, u: seen.append(u))
    band = radial_bands(8, 8, 4)
    left = model.coefficients(at(end)).kept[0, 0]
    assert float(left.min()) < 1e-2
    ratio = dct2(seen[-1] - 0.5).square().mean((0, 1)) / model.coefficients(times[-1:]).power[0, 0]
    for k in range(1, 4):
        assert float(ratio[band == k].mean()) < 3
        assert float(ratio[band == k].mean()) > 1 / 3 or text == "exponential"  # given the mean image: little texture


def test_others_have_no_cartoon_on_their_path():
    for name, overrides in (("ve", {}), ("cartoon", {"step": "exponential"}), ("flow-matching", {})):
        process = anisodiff.process(name, 6, **overrides)
        with pytest.raises(ValueError, match="distribution of a state after the smoothing is not known"):
            process.after_smoothing(gaussian_images(1, 6), 1.0)
