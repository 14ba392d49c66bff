"""Transitions: formulas at their ends, integrals against quadrature, and the notation that reads back."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

import anisodiff
from anisodiff.registry import build_sampler
from anisodiff.schedules import (
    Constant,
    Cutoff,
    ExponentialToIsotropic,
    Geometric,
    Infinite,
    Power,
    Pulse,
    anisotropy,
    strength,
    transition,
)
from tests.support.oracles import F64, at


def test_values_as_the_paper_writes_them():
    T, t = 2.0, torch.linspace(0, 2, 7, dtype=F64)
    torch.testing.assert_close(Geometric(0.5, 64).value(t, T), 0.5 * (64 / 0.5) ** (t / T))
    torch.testing.assert_close(Power(0.1, 3, 2.5).value(t, T), 0.1 + 2.9 * (t / T) ** 2.5)
    lam = ExponentialToIsotropic(0.025, 0.5).value(t[:-1], T)
    torch.testing.assert_close(lam, 0.025 * (math.e ** (0.5 * T) - 1) / (torch.exp(0.5 * (T - t[:-1])) - 1))


def test_exponential_ends_isotropic_and_never_overflows():
    lam = ExponentialToIsotropic(0.025, 0.5)
    assert lam.inverse(at(2.0), 2.0).item() == 0.0
    assert lam.inverse(at(0.0), 2.0).item() == pytest.approx(1 / 0.025, rel=1e-14)
    steep = ExponentialToIsotropic(0.025, 1e4)
    assert torch.isfinite(steep.inverse(torch.linspace(0, 2, 9, dtype=F64), 2.0)).all()


@pytest.mark.parametrize(
    "alpha",
    [
        Constant(1.3),
        Geometric(0.5, 64),
        Geometric(3, 3),
        Power(0, 2, 0.4),
        Power(2, 0.5, 3),
        Power(1, 1, 2),
        Pulse(30, 1.1, 0.12),
        Pulse(2, 0, 0.5),
        Cutoff(3, 0.5),
        Cutoff(3, 1.0, 2.5),
    ],
)
@pytest.mark.parametrize(("s", "t"), [(0.0, 2.0), (0.3, 0.3001), (1.7, 2.0), (0.0, 1e-6)])
def test_integral_is_the_integral(alpha, s, t):
    want = quad(lambda r: alpha.value(at(r), 2.0).item(), s, t, epsabs=0, epsrel=1e-11)[0]
    assert alpha.integral(at(s), at(t), 2.0).item() == pytest.approx(want, rel=1e-9)
    assert alpha.integral(at(s), at(s), 2.0).item() == 0.0


numbers = st.floats(1e-6, 1e6)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.builds(Constant, numbers),
        st.builds(Geometric, numbers, numbers),
        st.builds(Power, numbers, numbers, st.floats(0.01, 9)),
        st.builds(Pulse, numbers, numbers, numbers),
        st.builds(Cutoff, numbers, numbers, st.floats(1, 9)),
        st.builds(ExponentialToIsotropic, numbers, numbers),
        st.just(Infinite()),
    )
)
def test_notation_reads_back(value):
    assert transition(str(value)) == value


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("zero", Constant(0)),
        ("0.3", Constant(0.3)),
        (3e-4, Constant(3e-4)),
        ("3e-4", Constant(3e-4)),
        ("inf", Infinite()),
        (math.inf, Infinite()),
        (" geometric( 0.5 , b = 64 ) ", Geometric(0.5, 64)),
        ("power(0, 1)", Power(0, 1, 1)),
        ("exponential(0.025)", ExponentialToIsotropic(0.025, 0.5)),
    ],
)
def test_notation_examples(text, want):
    assert transition(text) == want


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("geometrik(1, 2)", "did you mean 'geometric'"),
        ("geometric(1)", "also needs b"),
        ("geometric(1, 2, 3)", "takes 2 values"),
        ("geometric(a=1, a=2)", "twice"),
        ("geometric(1, c=2)", "has no 'c'"),
        ("geometric(0, 2)", "> 0"),
        ("geometric(x, 2)", "expected a number"),
        ("-1", "≥ 0"),
        (float("nan"), "nan"),
        (True, "expected a number"),
        (None, "expected a number"),
        ("power(1, 2", "cannot read"),
        ("", "cannot read"),
    ],
)
def test_wrong_transitions_are_named(text, says):
    with pytest.raises(ValueError, match=says):
        transition(text, "diffusivity")


def test_roles():
    with pytest.raises(ValueError, match="stay finite"):
        strength("infinite", "diffusivity")
    with pytest.raises(ValueError, match="stay finite"):
        strength("exponential(0.1)", "diffusivity")
    with pytest.raises(ValueError, match="stay > 0"):
        anisotropy(0.0, "drift_anisotropy")
    with pytest.raises(ValueError, match="stay > 0"):
        anisotropy("power(0, 1)", "drift_anisotropy")
    with pytest.raises(ValueError, match="for α only"):
        anisotropy("pulse(1, 1, 0.1)", "drift_anisotropy")


def test_pulses_that_cannot_be_resolved_are_refused():
    with pytest.raises(ValueError, match="intensity must not fade"):
        anisodiff.Equation(diffusivity=0.0, intensity="pulse(1, 1, 0.5)")
    with pytest.raises(ValueError, match=r"resolved from a width of T/20 = 0.1 on, got pulse"):
        anisodiff.Equation(diffusivity="pulse(30, 1, 0.09)", intensity=1.0)
    anisodiff.Equation(diffusivity="pulse(30, 1, 0.09)", intensity=1.0, T=1.0)


def test_a_pulse_smooths_as_a_power_of_the_noise_until_it_is_spent():
    T, total, center, power = 2.0, 30.0, 1.1, 2.0
    rate = math.log(5000) / T  # σ(t) = σ(0)·e^{rate·t}
    pulse = Pulse(total, center, 1 / (power * rate))
    zero = at(0.0)
    for t in (0.3, 0.5, 0.7):  # far before the center, where 0.3% of it is spent
        grown = pulse.integral(zero, at(t), T) / pulse.integral(zero, at(t - 0.1), T)
        exact = math.exp(power * rate * 0.1)
        start = math.exp(-power * rate * (t - 0.1))  # the part of the logistic that lies before 0
        assert grown.item() == pytest.approx((exact - start) / (1 - start), rel=0.05)
    assert pulse.integral(zero, at(T), T).item() == pytest.approx(total, rel=1e-3)
    assert pulse.value(at(center), T).item() == pytest.approx(total * power * rate / 4)
    assert math.isfinite(Pulse(1, 1, 1e-9).integral(zero, at(T), T).item())


def test_what_cannot_be_read_is_answered_with_a_form_that_can():
    with pytest.raises(ValueError, match=r"write it like constant\(a=…\)"):
        anisodiff.transition("geometric 1 to 2")
    with pytest.raises(
        ValueError, match=r"sampler: cannot read .* write it like ode\(corrector=….*valid: exponential, ode"
    ):
        build_sampler("ode with 5 steps", anisodiff.process("ve", 8))
