"""Targets are unbiased: on Gaussian data under linear processes the score is known in closed form."""

import math

import pytest
import torch

import anisodiff
import anisodiff.transforms
from anisodiff.hashing import combine
from anisodiff.noise import KeyedNoise
from anisodiff.objectives import Exact, Local, objective_for
from anisodiff.processes import ClosedForm
from anisodiff.transforms import dct2
from tests.oracles import gaussian_images, spectrum

F64 = torch.float64
LINEAR = {"diffusivity": "geometric(0.3, 3)", "intensity": "geometric(0.1, 1)", "drift_anisotropy": "infinite"}
OBJECTIVES = {
    "exact": objective_for(anisodiff.process("heat", 6, **LINEAR)),
    "window": objective_for(anisodiff.process("anisotropic", 6, **LINEAR, step="exponential(windows=5)")),
    "one step": objective_for(anisodiff.process("anisotropic", 6, **LINEAR, step="tamed(dt=0.02, norm=none)")),
}


def draw(objective, t: float, count: int = 40_000):
    x0 = gaussian_images(count, 6)
    return objective.draw(x0, torch.full((count,), t, dtype=F64), KeyedNoise(combine(5, torch.arange(count))))


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
    z = anisodiff.transforms.frequencies(6, 6, F64, like.device)
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
    powers = {name: float(draw(objective, 1.2, 4000).score.square().mean()) for name, objective in OBJECTIVES.items()}
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
    with pytest.raises(ValueError, match="white noise"):
        objective_for(anisodiff.process("heat", 8, correlation_length=1.0))
    with pytest.raises(ValueError, match="intensity > 0"):
        objective_for(anisodiff.process("gallery-anisotropic-drift", 8))
    with pytest.raises(ValueError, match="t > 0"):
        OBJECTIVES["window"].draw(gaussian_images(1, 6), torch.zeros(1, dtype=F64), None)
    assert isinstance(objective_for(anisodiff.process("ve", 8)), Exact)
    assert isinstance(objective_for(anisodiff.process("anisotropic-paper", 8)), Local)


def test_single_steps_are_learned_at_their_ends():
    """Just after a node a target's variance diverges; settled times end whole steps, also where rounding misses."""
    objective = OBJECTIVES["one step"]
    t = objective.settle(torch.tensor([0.001, 0.13, 0.131, 1.999, 2.0], dtype=F64))
    torch.testing.assert_close(t, torch.tensor([0.02, 0.14, 0.14, 2.0, 2.0], dtype=F64))
    x0 = gaussian_images(300, 6)
    k = KeyedNoise(combine(5, torch.arange(300)))
    on = [objective.draw(x0, torch.full((300,), v, dtype=F64), k).score.square().mean() for v in (0.14, 0.14 + 1e-13)]
    assert on[1] == pytest.approx(float(on[0]), rel=0.2)
    window = OBJECTIVES["window"]
    assert torch.equal(window.settle(t), t)
