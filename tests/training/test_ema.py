"""Averages of the weights against their closed forms."""

import math

import pytest
import torch

from anisodiff.training.ema import EMA, Constant, Power, profile

ONE = torch.ones(())


def weights_of_history(shape, n):
    """How much of the start and of each of n updates is in the average: run it on unit vectors."""
    weights = {"w": torch.zeros(n + 1, dtype=torch.float64)}
    weights["w"][0] = 1.0
    ema_weights = EMA(weights, (shape,))
    for k in range(1, n + 1):
        weights["w"].zero_()
        weights["w"][k] = 1.0
        ema_weights.update(k, ONE)
    return ema_weights.of(0)["w"]


def test_constant_is_a_geometric_series():
    share = weights_of_history(Constant(0.5), 40)
    assert share.sum() == pytest.approx(1.0, abs=1e-14)
    # from n = 9 on n/(n+9) ≥ ½: the shares double from update to update
    torch.testing.assert_close(share[11:] / share[10:-1], torch.full((30,), 2.0, dtype=torch.float64))
    assert share[-1] == 0.5


def test_constant_forgets_its_start_at_first():
    expected = math.prod(n / (n + 9) for n in range(1, 21))
    assert float(weights_of_history(Constant(0.9999), 20)[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("std", [0.05, 0.1, 0.25])
def test_power_has_its_width_and_shape(std):
    n, gamma = 4000, Power(std).exponent
    share = weights_of_history(Power(std), n)
    assert share[0] == 0.0
    t = torch.arange(n + 1, dtype=torch.float64) / n
    mean = (share * t).sum()
    assert float(((share * (t - mean) ** 2).sum()).sqrt()) == pytest.approx(std, rel=0.01)
    late = share[n // 2 :] / share[-1]
    torch.testing.assert_close(late, t[n // 2 :] ** gamma, rtol=0.01, atol=1e-4)


def test_power_has_the_published_exponents():
    # Karras et al. 2024: σ_rel = 0.05 ↔ γ ≈ 16.97, σ_rel = 0.10 ↔ γ ≈ 6.94
    assert Power(0.05).exponent == pytest.approx(16.97, abs=0.01)
    assert Power(0.10).exponent == pytest.approx(6.94, abs=0.01)


def test_a_bad_step_leaves_every_average_alone():
    weights = {"w": torch.tensor([1.0])}
    ema_weights = EMA(weights, (Constant(0.5), Power(0.1)))
    weights["w"].fill_(5.0)
    ema_weights.update(30, torch.zeros(()))
    assert ema_weights.of(0)["w"].item() == ema_weights.of(1)["w"].item() == 1.0


def test_the_notation_reads_back():
    for text in ("constant(0.999)", "power(std=0.05)"):
        assert profile(str(profile(text))) == profile(text)
    for text in ("constant", "power(0.9)", "power(nan)", "constant(-1)", "mean(0.1)", "constant(0.9, 0.9)"):
        with pytest.raises(ValueError, match="ema"):
            profile(text)
