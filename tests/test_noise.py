"""White and correlated noise: spectrum and variance as stated."""

import pytest
import torch
from scipy.stats import kstest

from anisodiff.dct import dct2, frequencies, idct2, radial_bands
from anisodiff.noise import correlate, spectrum, white

F64 = torch.float64
CPU = torch.device("cpu")


def test_dct_is_orthonormal_and_inverts():
    u = torch.rand(2, 3, 5, 8, dtype=F64)
    torch.testing.assert_close(idct2(dct2(u)), u, rtol=0, atol=1e-14)
    torch.testing.assert_close(dct2(u).square().sum(), u.square().sum())
    from scipy.fft import dctn

    want = torch.from_numpy(dctn(u.numpy(), type=2, norm="ortho", axes=(-2, -1)))
    torch.testing.assert_close(dct2(u), want, rtol=0, atol=1e-13)


def test_frequencies_are_the_laplacians_eigenvalues():
    z = frequencies(4, 6, F64, CPU)
    assert z[0, 0] == 0
    assert z.max() < 8
    mode = torch.zeros(1, 1, 4, 6, dtype=F64)
    mode[..., 2, 3] = 1.0
    from anisodiff import drift

    field = idct2(mode)
    torch.testing.assert_close(drift(field, 1.0, 0.0), -z[2, 3] * field, rtol=0, atol=1e-14)


@pytest.mark.parametrize("length", [0.5, 2.0])
def test_spectrum_decays_as_stated_and_keeps_the_variance(length):
    q = spectrum(6, 9, length, F64, CPU)
    z = frequencies(6, 9, F64, CPU)
    torch.testing.assert_close(q / q[0, 0], torch.exp(-0.5 * length**2 * z))
    assert q.mean().item() == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize("length", [0.0, 0.7, 3.0])
def test_drawn_noise_has_that_spectrum(length):
    xi = white(torch.empty(4000, 1, 6, 8, dtype=F64), torch.Generator().manual_seed(1))
    modes = dct2(correlate(xi, length))[:, 0] / spectrum(6, 8, length, F64, CPU).sqrt()
    p_values = torch.tensor([kstest(modes[:, i, j].numpy(), "norm").pvalue for i in range(6) for j in range(8)])
    assert p_values.min() > 0.01 / 48  # Bonferroni over the 48 modes
    pixel = correlate(xi, length).square().mean().item()
    assert pixel == pytest.approx(1.0, abs=0.05)


def test_correlated_noise_is_smooth():
    xi = white(torch.empty(200, 1, 16, 16, dtype=F64), torch.Generator().manual_seed(2))
    v = correlate(xi, 3.0)
    neighbors = (v[..., 1:] * v[..., :-1]).mean() / v.square().mean()
    assert neighbors > 0.9


def test_bands_partition_the_modes():
    band = radial_bands(8, 12, 6)
    assert band[0, 0] == 0
    assert (band == 0).sum() == 1
    assert sorted(band.unique().tolist()) == [0, 1, 2, 3, 4, 5]
