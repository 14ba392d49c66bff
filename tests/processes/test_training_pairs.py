"""Training pairs are unbiased: on Gaussian data under linear processes the score is known in closed form."""

import math

import pytest
import torch

import anisodiff
import anisodiff.dct
from anisodiff import gaussian_kernel
from anisodiff.dct import dct2
from anisodiff.noise import KeyedNoise
from anisodiff.processes import ClosedForm
from tests.support.oracles import F64, at, gaussian_images, keys, spectrum
from tests.support.two_pixels import EQUATION, GRID, STEP, Window, targets, weight

LINEAR = {"diffusivity": "geometric(0.3, 3)", "intensity": "geometric(0.1, 1)", "drift_anisotropy": "infinite"}
PROCESSES = {
    "exact": anisodiff.process("heat", 6, **LINEAR),
    "correlated": anisodiff.process("heat", 6, **LINEAR, correlation_length=0.8),
    "window": anisodiff.process("anisotropic", 6, **LINEAR, step="exponential(windows=5)"),
    "one step": anisodiff.process("anisotropic", 6, **LINEAR, step="tamed(dt=0.02, norm=none)"),
}


def times(count: int, t: float) -> torch.Tensor:
    return torch.full((count,), t, dtype=F64)


def draw(process, t: float, count: int = 12_000):
    return process.training_pair(gaussian_images(count, 6), times(count, t), KeyedNoise(keys(count, 5)))


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("t", [0.29, 1.15, 2.0])
def test_targets_have_the_exact_score_as_conditional_mean(name, t):
    """E[(target − score(u))·h(u)] = 0 for h = u and h = u³, per mode, within five standard errors."""
    process = PROCESSES[name]
    drawn = draw(process, t)
    u, target = dct2(drawn.state - 0.5)[:, 0], dct2(drawn.target)[:, 0]
    exact = ClosedForm(equation=process.equation)
    like = drawn.state[:1]
    decay = exact.mean(torch.ones_like(like), 0.0, t)  # of the constant mode: 1, conserved
    torch.testing.assert_close(decay, torch.ones_like(like), rtol=0, atol=1e-12)
    z = anisodiff.dct.frequencies(6, 6, F64, like.device)
    amount = process.equation.smoothing(*torch.tensor([[0.0], [t]], dtype=F64))
    power = torch.exp(-2 * amount * z) * spectrum(6) + exact.variance(like, 0.0, t)[0, 0]
    if name == "one step":  # another distribution at finite Δt, with its own power
        power = u.square().mean(0)
    residual = target + u / power
    for h in (u, u**3):
        product = residual * h
        error = product.std(0) / math.sqrt(len(u))
        assert (product.mean(0).abs() < 5 * error).all()


@pytest.mark.parametrize("name", ["window", "one step"])
def test_frozen_drift_of_a_linear_process_is_the_drift(name):
    process = PROCESSES[name]
    t = 1.2  # a node of both grids: the piece that ends there is a whole window, or one step
    drawn = draw(process, t, 50)
    want = anisodiff.drift(drawn.state, float(process.equation.alpha1(torch.tensor(t, dtype=F64))), 0.0)
    if name == "window":
        torch.testing.assert_close(drawn.drift, want, rtol=0, atol=1e-10)
    else:  # of the state one step before
        pair = torch.stack([drawn.drift.flatten(), want.flatten()])
        assert torch.corrcoef(pair)[0, 1] > 0.85


def test_variance_of_the_target_falls_with_the_length_of_the_piece():
    """One step ≥ window ≥ full kernel, which no unbiased target can beat by much on these data."""
    powers = {name: float(draw(PROCESSES[name], 1.2, 4000).target.square().mean()) for name in PROCESSES}
    assert powers["one step"] > 5 * powers["window"] > 5 * powers["exact"]


def test_window_edges_belong_to_the_window_below():
    """At t = an edge the kernel spans the whole window before it; just above, a short piece with a large target."""
    process = PROCESSES["window"]
    at, above = (float(draw(process, t, 500).target.square().mean()) for t in (0.8, 0.8001))
    assert above > 100 * at


def test_a_draw_depends_on_its_keys_alone():
    process = anisodiff.process("anisotropic", 8)
    x0, t = gaussian_images(6, 8), torch.linspace(0.1, 2.0, 6, dtype=F64)
    k = keys(6, 3)
    together = process.training_pair(x0, t, KeyedNoise(k))
    alone = process.training_pair(x0[2:3], t[2:3], KeyedNoise(k[2:3]))
    torch.testing.assert_close(together.state[2:3], alone.state, rtol=0, atol=1e-12)
    torch.testing.assert_close(together.target[2:3], alone.target, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_learned_is_refused():
    images = gaussian_images(4, 8).float()
    with pytest.raises(ValueError, match="white noise with step='tamed"):
        anisodiff.process("anisotropic-paper", 8, correlation_length=1.0).estimate_statistics(images)
    with pytest.raises(ValueError, match=r"correlation_length = 2 leaves .* at most 1\.8"):
        anisodiff.process("heat", 8, correlation_length=2.0).estimate_statistics(images)
    with pytest.raises(ValueError, match="intensity > 0"):
        anisodiff.process("gallery-anisotropic-drift", 8).estimate_statistics(images)
    with pytest.raises(ValueError, match="t > 0"):
        PROCESSES["window"].training_pair(gaussian_images(1, 6), torch.zeros(1, dtype=F64), None)


def test_single_steps_are_learned_at_their_ends():
    """Just after a node a target's variance diverges; settled times end whole steps, also where rounding misses."""
    process = PROCESSES["one step"]
    t = process.snap_to_grid(torch.tensor([0.001, 0.13, 0.131, 1.999, 2.0], dtype=F64))
    torch.testing.assert_close(t, torch.tensor([0.02, 0.14, 0.14, 2.0, 2.0], dtype=F64))
    x0 = gaussian_images(300, 6)
    k = KeyedNoise(keys(300, 5))
    on = [
        process.training_pair(x0, torch.full((300,), v, dtype=F64), k).target.square().mean()
        for v in (0.14, 0.14 + 1e-13)
    ]
    assert on[1] == pytest.approx(float(on[0]), rel=0.2)
    window = PROCESSES["window"]
    assert torch.equal(window.snap_to_grid(t), t)


def test_on_two_pixels_the_local_target_is_unbiased_and_others_are_not():
    """Mean of (target − exact score by quadrature) given m_t in eight bins, in standard errors; five windows.

    Local: the last piece's noise. Others: all noise since 0 about the noise-free path; about the smoothed image.
    """
    n, g = 40_000, torch.Generator().manual_seed(0)
    m0 = torch.where(torch.rand(n, generator=g) < 0.5, -0.8, 0.8) + 0.15 * torch.randn(n, dtype=F64, generator=g)
    m = quiet = m0
    for s, e in ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6)):
        xi = torch.randn(n, dtype=F64, generator=g)
        root = gaussian_kernel.variance(EQUATION, at(s), at(e), 2 * weight(m))[0].sqrt()
        m = gaussian_kernel.decay(EQUATION, at(s), at(e), 2 * weight(m))[0] * m + root * xi
        quiet = gaussian_kernel.decay(EQUATION, at(s), at(e), 2 * weight(quiet))[0] * quiet
    reference = torch.tensor([2.0], dtype=F64)  # the eigenvalue of one edge of weight 1
    spread = gaussian_kernel.variance(EQUATION, at(0.0), at(0.6), reference)[0]
    kept = gaussian_kernel.decay(EQUATION, at(0.0), at(0.6), reference)[0]
    place = (m - GRID[0]) / STEP
    left = place.long()
    score = targets(Window(), 5, 0.6)[1]
    exact = torch.lerp(score[left], score[left + 1], place - left)
    bins = torch.searchsorted(torch.quantile(m, torch.linspace(0, 1, 9, dtype=F64))[1:-1], m)

    def errors(target: torch.Tensor) -> torch.Tensor:
        parts = [(target - exact)[bins == b] for b in range(8)]
        return torch.stack([part.mean() / (part.std() / math.sqrt(len(part))) for part in parts]).abs()

    assert errors(-xi / root).max() < 4
    assert errors(-(m - quiet) / spread).min() > 15
    assert errors(-(m - kept * m0) / spread).min() > 40


@pytest.mark.parametrize(
    ("step", "own"),
    [
        ("exponential(windows=5)", {}),
        ("tamed(dt=0.05)", {}),
        ("tamed(dt=0.05)", {"noise_anisotropy": 0.3}),
        ("tamed(dt=0.05)", {"noise_anisotropy": 0.3, "stencil": "paper"}),
    ],
)
def test_the_target_obeys_steins_identity_on_nonlinear_processes(step, own):
    """Stein: the true score has E[score_k û_k] = −1 in every mode, whatever the density. In standard errors."""
    coefficients = {"diffusivity": "geometric(0.5, 3)", "intensity": "geometric(0.3, 1)", "drift_anisotropy": 0.4}
    coefficients |= own
    process, n = anisodiff.process("anisotropic", 4, **coefficients, T=1.0, step=step), 10_000
    g = torch.Generator().manual_seed(1)
    edge = torch.where(torch.rand(n, 1, 1, 1, generator=g) < 0.5, -0.4, 0.4) * torch.tensor([1.0, 1.0, -1.0, -1.0])
    x0 = 0.5 + edge + 0.05 * torch.randn(n, 1, 4, 4, dtype=F64, generator=g)

    drawn = process.training_pair(x0, times(n, 0.6), KeyedNoise(keys(n, 3)))
    product = (dct2(drawn.target) * dct2(drawn.state - 0.5))[:, 0] + 1
    assert (product.mean(0) / (product.std(0) / math.sqrt(n))).abs().max() < 4.5
