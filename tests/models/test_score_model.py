"""Moments, score, time grid and prior, with networks whose answer is known (the loss: test_score_loss.py)."""

import torch

import anisodiff
from anisodiff.dct import dct2
from anisodiff.noise import KeyedNoise
from anisodiff.priors import fit_gaussian
from tests.support.oracles import gaussian_images, keys, spectrum
from tests.support.score_models import T_MIN, build, level_grid

F64 = torch.float64


def test_measured_moments_are_the_closed_form_where_there_is_one():
    """A window process with λ = ∞ is measured by simulation; the exact one computes. Both must agree."""
    images = gaussian_images(1500, 8).float()
    linear = {"diffusivity": "geometric(0.3, 3)", "intensity": "geometric(0.05, 1)", "drift_anisotropy": "infinite"}
    windows = anisodiff.process("anisotropic", 8, **linear, step="exponential(windows=4)")
    measured = windows.estimate_statistics(images)
    exact = anisodiff.process("heat", 8, **linear).estimate_statistics(images)
    for t in (0.3, 1.1, 1.9):
        when = torch.tensor([t], dtype=F64)
        a, b = ((m, *m.locate(when)) for m in (measured, exact))
        for table, tolerance in (("log_noise", 0.15), ("weight", 1e-3)):
            one, other = (m.at(getattr(m, table), interval, phase) for m, interval, phase in (a, b))
            assert (one - other).abs().max() < tolerance
        signal, other = (m.at(m.log_signal, interval, phase).exp() for m, interval, phase in (a, b))
        strong = other > 0.3 * b[0].at(b[0].log_noise, *b[1:]).exp()
        assert ((signal - other).abs()[strong] < 0.15 * other[strong]).all()
    torch.testing.assert_close(exact.data.double(), spectrum(8), rtol=0.25, atol=1e-4)


def test_exact_score_is_reproduced_for_gaussian_data():
    """For Gaussian data the Wiener filter *is* the score: forward() must give it."""
    images = gaussian_images(4000, 8).float()
    process, model = build("ve", images)
    u = process.draw(images[:16], 1.0, KeyedNoise(keys(16, 6)))
    score, tilde = model(u, torch.full((16,), 1.0, dtype=F64))
    power = spectrum(8) + process.variance(u[:1].double(), 0.0, 1.0)[0, 0]
    torch.testing.assert_close(dct2(score).double(), dct2(u - 0.5).double() / -power, rtol=0.2, atol=0.05)
    torch.testing.assert_close(score, tilde)


def test_grid_ends_where_it_should_and_keeps_the_edges():
    images = gaussian_images(200, 8).float()
    process, model = build("anisotropic", images, step="exponential(windows=4)")
    grid = level_grid(model, 20, T_MIN)
    assert float(grid[0]) == 2.0
    assert float(grid[-1]) == T_MIN
    assert (grid[1:] < grid[:-1]).all()
    assert set(process.step.jumps(process.equation)[1:]) <= set(grid.tolist())


def test_gaussian_prior_has_the_terminal_moments():
    images = gaussian_images(3000, 8, channels=3).float()
    images = images + 0.2 * images[:, :1]  # correlated channels
    process = anisodiff.process("heat", 8)
    terminal = process.draw(images, 2.0, KeyedNoise(keys(3000, 7)))
    drawn = fit_gaussian(terminal).draw(3000, KeyedNoise(keys(3000, 8)))
    a, b = dct2(terminal)[:, :, 0, 0].double(), dct2(drawn)[:, :, 0, 0].double()
    torch.testing.assert_close(torch.cov(a.mT), torch.cov(b.mT), rtol=0.1, atol=0.1 * float(a.var()))
    torch.testing.assert_close(a.mean(0), b.mean(0), rtol=0.05, atol=0.05)
    torch.testing.assert_close(dct2(terminal).var(0).mean(0), dct2(drawn).var(0).mean(0), rtol=0.15, atol=1e-6)
