"""The Gaussian kernel of the linear equation against independent quadrature and closed forms."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad_vec

from anisodiff import gaussian_kernel
from anisodiff.equation import Equation

F64 = torch.float64
CASES = [
    ("geometric(0.5, 64)", "geometric(0.01, 2)", 2.0),
    ("geometric(0.5, 512)", "geometric(0.01, 2)", 2.0),
    ("geometric(0.5, 1000)", "0.3", 8.0),
    ("power(0, 64, 0.5)", "power(0, 2, 0.3)", 2.0),
    ("power(3, 0, 3)", "power(0.1, 2, 2)", 1.0),
    ("0", "geometric(0.02, 100)", 1.0),
    ("pulse(30, 1.08, 0.1)", "geometric(0.02918, 145.9)", 2.0),
]


@pytest.mark.parametrize(("alpha1", "alpha2", "T"), CASES)
@pytest.mark.parametrize(("s", "t"), [(0.0, 1.0), (0.0, 0.01), (0.9, 1.0), (0.5, 0.501)])
def test_variance_against_adaptive_quadrature(alpha1, alpha2, T, s, t):
    equation = Equation(diffusivity=alpha1, intensity=alpha2, T=T)
    begin, end = torch.tensor([s * T], dtype=F64), torch.tensor([t * T], dtype=F64)
    z = torch.tensor([0.0, 1e-3, 0.1, 1.0, 8.0], dtype=F64)
    got = gaussian_kernel.variance(equation, begin, end, z)[0]
    # panels that halve towards the end resolve the boundary layer of the stiff drift
    panels = [0.0] + [(t - s) * T * 2.0**-j for j in range(26, -1, -1)]

    def integrand(d: float) -> np.ndarray:
        r = torch.clamp(end - d, min=float(begin))
        return (equation.alpha2(r) ** 2 * torch.exp(-2 * equation.smoothing(r, end) * z)).numpy()

    want = sum(quad_vec(integrand, a, b, epsabs=0, epsrel=1e-9, limit=20)[0] for a, b in pairwise(panels))
    assert got.tolist() == pytest.approx(want.tolist(), rel=1e-8)


def test_constant_coefficients_have_a_closed_form():
    equation = Equation(diffusivity=3.0, intensity=0.7, T=2.0)
    z = torch.linspace(0.01, 8, 50, dtype=F64)
    s, t = torch.tensor([0.2, 0.0], dtype=F64), torch.tensor([1.9, 0.01], dtype=F64)
    d = (t - s)[:, None]
    torch.testing.assert_close(gaussian_kernel.decay(equation, s, t, z), torch.exp(-3 * d * z))
    want = 0.49 * -torch.expm1(-6 * d * z) / (6 * z)
    torch.testing.assert_close(gaussian_kernel.variance(equation, s, t, z), want, rtol=1e-11, atol=0)


def test_variance_exploding_noise_is_songs():
    from anisodiff.processes.presets import ve

    equation = Equation(diffusivity=0.0, intensity=ve(32)["intensity"], T=2.0)
    t = torch.tensor([0.1, 1.0, 2.0], dtype=F64)
    sigma = 0.01 * (50 / 0.01) ** (t / 2)
    got = gaussian_kernel.variance(equation, torch.zeros(3, dtype=F64), t, torch.zeros(1, dtype=F64))[:, 0]
    torch.testing.assert_close(got, sigma**2 - 0.01**2, rtol=1e-12, atol=0)


def test_grid_agrees_with_the_vector_form_and_composes():
    from anisodiff.dct import frequencies

    equation = Equation(diffusivity="geometric(0.5, 64)", intensity="geometric(0.01, 2)")
    u = torch.zeros(2, 1, 4, 7, dtype=F64)
    s, r, t = (torch.tensor(v, dtype=F64) for v in ([0.0, 0.3], [0.5, 1.0], [1.5, 2.0]))
    z = frequencies(4, 7, F64, u.device)
    torch.testing.assert_close(
        gaussian_kernel.grid_variance(equation, s, t, u)[:, 0],
        gaussian_kernel.variance(equation, s, t, z.flatten()).reshape(2, 4, 7),
    )
    torch.testing.assert_close(
        gaussian_kernel.grid_decay(equation, s, t, u)[:, 0],
        gaussian_kernel.decay(equation, s, t, z.flatten()).reshape(2, 4, 7),
    )
    # Chapman–Kolmogorov: the variance over [s,t] from its two parts
    last = gaussian_kernel.grid_decay(equation, r, t, u)
    parts = last**2 * gaussian_kernel.grid_variance(equation, s, r, u) + gaussian_kernel.grid_variance(
        equation, r, t, u
    )
    torch.testing.assert_close(gaussian_kernel.grid_variance(equation, s, t, u), parts, rtol=1e-9, atol=0)


def test_no_time_no_change():
    equation = Equation(diffusivity="geometric(0.5, 64)", intensity="geometric(0.01, 2)")
    s = torch.tensor([0.0, 2.0], dtype=F64)
    z = torch.tensor([0.0, 8.0], dtype=F64)
    assert (gaussian_kernel.variance(equation, s, s, z) == 0).all()
    assert (gaussian_kernel.decay(equation, s, s, z) == 1).all()


def test_single_precision_is_as_good_as_it_can_be():
    equation = Equation(diffusivity="geometric(0.5, 64)", intensity="geometric(0.01, 2)")
    s, t = torch.tensor([0.0, 1.8], dtype=F64), torch.tensor([2.0, 2.0], dtype=F64)
    single = gaussian_kernel.grid_variance(equation, s, t, torch.zeros(2, 1, 8, 8))
    double = gaussian_kernel.grid_variance(equation, s, t, torch.zeros(2, 1, 8, 8, dtype=F64))
    assert single.dtype == torch.float32
    assert ((single - double).abs() / double).max() < 3e-6
    assert math.isfinite(float(single.sum()))
