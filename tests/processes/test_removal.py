"""Operators of blurred and of turned images, and smoothing at equal removed signal."""

import pytest
import torch
from scipy.optimize import brentq

import anisodiff
from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.noise import ZeroNoise
from anisodiff.processes.removal import diffusivity_for, removed_share
from anisodiff.stencils.flux import edge_weights
from tests.support.oracles import F64, at, gaussian_images

SILENT = ZeroNoise(torch.zeros(4, dtype=torch.int64))
EQUATION = {"diffusivity": 1.0, "intensity": "geometric(0.05, 2)", "drift_anisotropy": 0.05}


def state(step: str, **changes) -> torch.Tensor:
    process = anisodiff.process("anisotropic", 8, **{**EQUATION, "step": step, **changes})
    return process.training_pair(gaussian_images(4, 8), at(1.3).expand(4), SILENT).state


@pytest.mark.parametrize("kind", ["exponential", "signal"])
def test_limits_of_the_blur(kind):
    """ρ → 0: the process without it. ρ → ∞: no edge is left, and the smoothing is isotropic."""
    plain = state(f"{kind}(windows=1)")
    torch.testing.assert_close(state(f"{kind}(windows=1, blur=0.001)"), plain, rtol=0, atol=1e-5)
    flat = state(f"{kind}(windows=1)", drift_anisotropy="infinite")
    torch.testing.assert_close(state(f"{kind}(windows=1, blur=100)"), flat, rtol=0, atol=1e-6)
    assert (plain - flat).abs().max() > 0.01
    middle = state(f"{kind}(windows=1, blur=1)")
    assert (middle - plain).norm() > 0.01 < (middle - flat).norm()


def test_the_weights_are_those_of_the_blurred_or_turned_image():
    x0, z = gaussian_images(4, 8), frequencies(8, 8, F64, torch.device("cpu"))
    blurred = idct2(torch.exp(-0.5 * 1.5**2 * z) * dct2(x0))
    for text, seen in (("blur=1.5", blurred), ("turned=true", x0.flip(-2, -1))):
        process = anisodiff.process("anisotropic", 8, **{**EQUATION, "step": f"exponential(windows=1, {text})"})
        found = process.step.freeze(process.equation, None, x0, 0).weights
        for ours, exact in zip(found, edge_weights(seen, 1 / 0.05)):
            torch.testing.assert_close(ours, exact)
    both = x0 + x0.flip(-2, -1) - 0.5  # as it is when it is turned
    turned, plain = (
        anisodiff.process("anisotropic", 8, **{**EQUATION, "step": f"signal(windows=3{text})"})
        .training_pair(both, at(1.3).expand(4), SILENT).state
        for text in ("", ", turned=true")
    )  # fmt: skip
    torch.testing.assert_close(turned, plain)


def test_notation_leaves_out_what_is_not_set():
    for text, written in (
        ("exponential(windows=1)", "exponential(windows=1, tolerance=1e-06)"),
        ("exponential(windows=1, blur=2)", "exponential(windows=1, tolerance=1e-06, blur=2)"),
        ("signal(blur=2, turned=true)", "signal(windows=10, tolerance=1e-06, blur=2, turned=True)"),
    ):
        process = anisodiff.process("anisotropic", 8, step=text)
        assert process.identity()["step"] == written
        assert anisodiff.process("anisotropic", 8, step=written) == process
    with pytest.raises(ValueError, match="blur of a step in pixels: got -1, expected a number from 0"):
        anisodiff.process("anisotropic", 8, step="signal(blur=-1)")


def test_equal_removed_signal():
    """Isotropic: the share is 1 − Σ z e^{−2Az} D/Σ z D, and its inverse is found; other ways then remove as much."""
    images, t = gaussian_images(16, 8), 1.0
    z, power = frequencies(8, 8, F64, images.device), dct2(images).square().sum((0, 1))

    def share(a: float) -> float:
        return 1 - float((z * torch.exp(-2 * a * t * z) * power).sum() / (z * power).sum())

    def heat(a: float):
        return anisodiff.process("heat", 8, diffusivity=a, intensity="geometric(0.05, 2)")

    assert removed_share(heat(0.3), images, t) == pytest.approx(share(0.3), rel=1e-6)
    exact = brentq(lambda a: share(a) - 0.6, 1e-3, 10)
    assert diffusivity_for(heat, images, 0.6, t) == pytest.approx(exact, rel=2e-4)
    for step in ("signal(windows=2)", "exponential(windows=1)"):

        def other(a: float, step: str = step):
            return anisodiff.process("anisotropic", 8, **{**EQUATION, "diffusivity": a, "step": step})

        found = diffusivity_for(other, images, 0.6, t)
        assert found > exact  # edges hold against it
        assert removed_share(other(found), images, t) == pytest.approx(0.6, abs=2e-3)
    with pytest.raises(ValueError, match="share: got 1"):
        diffusivity_for(heat, images, 1.0, t)
    with pytest.raises(ValueError, match="noise-free part of a state is not known"):
        removed_share(anisodiff.process("anisotropic", 8), images, t)
