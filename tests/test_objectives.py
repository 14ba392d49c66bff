"""Targets are unbiased: on Gaussian data under linear processes the score is known in closed form.

The ablations are, too, but only there: on nonlinear processes they miss the score by many standard errors.
"""

import math

import pytest
import torch

import anisodiff
import anisodiff.dct
from anisodiff import gaussian_kernel
from anisodiff.dct import dct2
from anisodiff.noise import KeyedNoise, combine
from anisodiff.objectives import NAMES, Exact, InitialState, Local, TotalNoise, objective_for
from anisodiff.processes import ClosedForm
from tests.oracles import gaussian_images, spectrum
from tests.test_projection import EQUATION, GRID, STEP, Window, at, targets, weight

F64 = torch.float64
LINEAR = {"diffusivity": "geometric(0.3, 3)", "intensity": "geometric(0.1, 1)", "drift_anisotropy": "infinite"}
WINDOWS = anisodiff.process("anisotropic", 6, **LINEAR, step="exponential(windows=5)")
OBJECTIVES = {
    "exact": objective_for(anisodiff.process("heat", 6, **LINEAR)),
    "correlated": objective_for(anisodiff.process("heat", 6, **LINEAR, correlation_length=0.8)),
    "window": objective_for(WINDOWS),
    "total-noise": objective_for(WINDOWS, "total-noise"),
    "x0": objective_for(WINDOWS, "x0"),
    "one step": objective_for(anisodiff.process("anisotropic", 6, **LINEAR, step="tamed(dt=0.02, norm=none)")),
}


UNBIASED = ("exact", "correlated", "window", "one step")


def times(count: int, t: float) -> torch.Tensor:
    return torch.full((count,), t, dtype=F64)


def keys(count: int, seed: int) -> KeyedNoise:
    return KeyedNoise(combine(seed, torch.arange(count)))


def draw(objective, t: float, count: int = 12_000):
    return objective.draw(gaussian_images(count, 6), times(count, t), keys(count, 5))


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("t", [0.29, 1.15, 2.0])
def test_targets_have_the_exact_score_as_conditional_mean(name, t):
    """E[(target − score(u))·h(u)] = 0 for h = u and h = u³, per mode, within five standard errors."""
    objective = OBJECTIVES[name]
    drawn = draw(objective, t)
    u, target = dct2(drawn.state - 0.5)[:, 0], dct2(drawn.score)[:, 0]
    exact = ClosedForm(equation=objective.equation)
    like = drawn.state[:1]
    decay = exact.mean(torch.ones_like(like), 0.0, t)  # of the constant mode: 1, conserved
    torch.testing.assert_close(decay, torch.ones_like(like), rtol=0, atol=1e-12)
    z = anisodiff.dct.frequencies(6, 6, F64, like.device)
    amount = objective.equation.smoothing(*torch.tensor([[0.0], [t]], dtype=F64))
    power = torch.exp(-2 * amount * z) * spectrum(6) + exact.variance(like, 0.0, t)[0, 0]
    if name == "one step":  # another law at finite Δt: its own power
        power = u.square().mean(0)
    residual = target + u / power
    for h in (u, u**3):
        product = residual * h
        error = product.std(0) / math.sqrt(len(u))
        assert (product.mean(0).abs() < 5 * error).all()


@pytest.mark.parametrize("name", ["window", "one step"])
def test_frozen_drift_of_a_linear_process_is_the_drift(name):
    objective = OBJECTIVES[name]
    t = 1.2  # a node of both grids: the piece that ends there is a whole window, or one step
    drawn = draw(objective, t, 50)
    want = anisodiff.drift(drawn.state, float(objective.equation.alpha1(torch.tensor(t, dtype=F64))), 0.0)
    if name == "window":
        torch.testing.assert_close(drawn.drift, want, rtol=0, atol=1e-10)
    else:  # of the state one step before
        pair = torch.stack([drawn.drift.flatten(), want.flatten()])
        assert torch.corrcoef(pair)[0, 1] > 0.85


def test_variance_of_the_target_falls_with_the_length_of_the_piece():
    """One step ≥ window ≥ full kernel, which no unbiased target can beat by much on these data."""
    powers = {name: float(draw(OBJECTIVES[name], 1.2, 4000).score.square().mean()) for name in UNBIASED}
    assert powers["one step"] > 5 * powers["window"] > 5 * powers["exact"]


def test_window_edges_belong_to_the_window_below():
    """At t = an edge the kernel spans the whole window before it; just above, a short piece with a large target."""
    objective = OBJECTIVES["window"]
    at, above = (float(draw(objective, t, 500).score.square().mean()) for t in (0.8, 0.8001))
    assert above > 100 * at


def test_a_draw_depends_on_its_keys_alone():
    objective = objective_for(anisodiff.process("anisotropic", 8))
    x0, t = gaussian_images(6, 8), torch.linspace(0.1, 2.0, 6, dtype=F64)
    k = combine(3, torch.arange(6))
    together = objective.draw(x0, t, KeyedNoise(k))
    alone = objective.draw(x0[2:3], t[2:3], KeyedNoise(k[2:3]))
    torch.testing.assert_close(together.state[2:3], alone.state, rtol=0, atol=1e-12)
    torch.testing.assert_close(together.score[2:3], alone.score, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ValueError, match="white noise with step='tamed"):
        objective_for(anisodiff.process("anisotropic-paper", 8, correlation_length=1.0))
    with pytest.raises(ValueError, match=r"correlation_length = 2 leaves .* at most 1\.8"):
        objective_for(anisodiff.process("heat", 8, correlation_length=2.0))
    with pytest.raises(ValueError, match="intensity > 0"):
        objective_for(anisodiff.process("gallery-anisotropic-drift", 8))
    with pytest.raises(ValueError, match="t > 0"):
        OBJECTIVES["window"].draw(gaussian_images(1, 6), torch.zeros(1, dtype=F64), None)
    assert isinstance(objective_for(anisodiff.process("ve", 8)), Exact)
    assert isinstance(objective_for(anisodiff.process("anisotropic-paper", 8)), Local)


def test_single_steps_are_learned_at_their_ends():
    """Just after a node a target's variance diverges; settled times end whole steps, also where rounding misses."""
    objective = OBJECTIVES["one step"]
    t = objective.snap_to_grid(torch.tensor([0.001, 0.13, 0.131, 1.999, 2.0], dtype=F64))
    torch.testing.assert_close(t, torch.tensor([0.02, 0.14, 0.14, 2.0, 2.0], dtype=F64))
    x0 = gaussian_images(300, 6)
    k = KeyedNoise(combine(5, torch.arange(300)))
    on = [objective.draw(x0, torch.full((300,), v, dtype=F64), k).score.square().mean() for v in (0.14, 0.14 + 1e-13)]
    assert on[1] == pytest.approx(float(on[0]), rel=0.2)
    window = OBJECTIVES["window"]
    assert torch.equal(window.snap_to_grid(t), t)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_pairs_are_two_draws_that_differ_in_the_sign_of_the_last_noise(name):
    objective, t = OBJECTIVES[name], torch.tensor([0.2, 0.8, 1.14], dtype=F64)
    x0 = gaussian_images(3, 6, channels=2)
    single, both = objective.draw(x0, t, keys(3, 9)), objective.pairs(x0, t, keys(3, 9))
    assert both.state.shape == (6, 2, 6, 6)
    torch.testing.assert_close(both.state[::2], single.state)
    torch.testing.assert_close(both.score[::2], single.score)
    if name in UNBIASED:
        torch.testing.assert_close(both.score[1::2], -single.score)
    else:  # of the path before the last piece both have the same noise
        assert not torch.allclose(both.score[1::2], -single.score)
    if single.drift is not None:
        torch.testing.assert_close(both.drift[::2], single.drift)
    opposite = objective.draw(x0, t, Opposite(keys(3, 9)))
    torch.testing.assert_close(both.state[1::2], opposite.state)
    torch.testing.assert_close(both.score[1::2], opposite.score)


class Opposite(KeyedNoise):
    """The same noise, but for the sign of what is drawn first: the noise of the last piece."""

    def __init__(self, inner: KeyedNoise) -> None:
        super().__init__(inner.keys)

    def normal(self, like):
        first = self.drawn == 0
        return -super().normal(like) if first else super().normal(like)


def gains(drawn, gain: torch.Tensor) -> torch.Tensor:
    """Gradient of the squared error of the linear network f(û_k) = g_k û_k with respect to g, [B, H, W]."""
    u, target = dct2(drawn.state - 0.5)[:, 0], dct2(drawn.score)[:, 0]
    return 2 * (gain * u - target) * u


@pytest.mark.parametrize(
    ("process", "t", "most"),
    [
        (anisodiff.process("anisotropic", 6), 0.22, 0.1),  # a tenth of a window
        (anisodiff.process("anisotropic", 6), 0.4, 0.7),  # a whole one
        (anisodiff.process("anisotropic-paper", 6, step="tamed(dt=0.01)"), 0.2, 0.1),
        (anisodiff.process("heat", 6), 0.02, 0.1),
    ],
    ids=["short window", "window", "one step", "exact"],
)
def test_pairs_have_less_gradient_noise_and_the_same_mean(process, t, most):
    """Variance of the mean over a pair, relative to that of two independent draws, mean over the modes."""
    objective, n = objective_for(process), 3000
    x0 = gaussian_images(n, 6)
    single = objective.draw(x0, times(n, t), keys(n, 1))
    gain = -1 / dct2(single.state - 0.5)[:, 0].square().mean(0)
    alone, both = gains(single, gain), gains(objective.pairs(x0, times(n, t), keys(n, 2)), gain)
    pair = 0.5 * (both[::2] + both[1::2])
    assert (pair.var(0) / (0.5 * alone.var(0))).mean() < most
    error = ((alone.var(0) + pair.var(0)) / n).sqrt()
    assert ((pair.mean(0) - alone.mean(0)).abs() < 5 * error).all()
    at_zero = gains(objective.pairs(x0, times(n, t), keys(n, 2)), torch.zeros(()))
    stein = 0.5 * (at_zero[::2] + at_zero[1::2])  # −2 E[score_k û_k], which is 2 for every density
    assert ((stein.mean(0) - 2).abs() < 5 * (stein.var(0) / n).sqrt()).all()


def test_on_two_pixels_the_ablations_miss_the_score():
    """Mean of (target − exact score by quadrature) given m_t in eight bins, in standard errors; five windows."""
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
def test_on_a_nonlinear_process_only_the_local_target_is_unbiased(step, own):
    """Stein: the true score has E[score_k û_k] = −1 in every mode, whatever the density. In standard errors."""
    coefficients = {"diffusivity": "geometric(0.5, 3)", "intensity": "geometric(0.3, 1)", "drift_anisotropy": 0.4}
    coefficients |= own
    process, n = anisodiff.process("anisotropic", 4, **coefficients, T=1.0, step=step), 10_000
    g = torch.Generator().manual_seed(1)
    edge = torch.where(torch.rand(n, 1, 1, 1, generator=g) < 0.5, -0.4, 0.4) * torch.tensor([1.0, 1.0, -1.0, -1.0])
    x0 = 0.5 + edge + 0.05 * torch.randn(n, 1, 4, 4, dtype=F64, generator=g)

    def worst(name: str) -> float:
        drawn = objective_for(process, name).draw(x0, times(n, 0.6), keys(n, 3))
        product = (dct2(drawn.score) * dct2(drawn.state - 0.5))[:, 0] + 1
        return float((product.mean(0) / (product.std(0) / math.sqrt(n))).abs().max())

    assert worst("local") < 4.5
    assert worst("total-noise") > 30
    assert worst("x0") > 50


def test_objectives_by_name():
    simulated, exact = anisodiff.process("anisotropic", 8), anisodiff.process("heat", 8)
    found = {name: type(objective_for(simulated, name)) for name in NAMES if name != "exact"}
    assert found == {"auto": Local, "local": Local, "total-noise": TotalNoise, "x0": InitialState}
    assert isinstance(objective_for(exact, "exact"), Exact)
    with pytest.raises(ValueError, match="unknown objective 'total_noise'; did you mean 'total-noise'"):
        objective_for(simulated, "total_noise")
    with pytest.raises(ValueError, match=r"'exact' is for linear processes .* set objective='local'"):
        objective_for(simulated, "exact")
    for name in ("local", "total-noise", "x0"):
        with pytest.raises(ValueError, match=f"'{name}' is for processes that are simulated.* objective='exact'"):
            objective_for(exact, name)
    with pytest.raises(ValueError, match="white noise"):
        objective_for(anisodiff.process("anisotropic-paper", 8, correlation_length=1.0), "x0")
