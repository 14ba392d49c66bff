"""Flow matching with our preconditioning is `ve`, so that its control of the code is a run of `ve`.

In the units of images, with ξ white and σ = t/2(1 − t):

    ½ + (U_t − ½)/(1 − t) = x0 + σξ

the state of `ve` with that noise. Everything a score model does to it follows, up to powers of 1 − t (to 1e-5:
its statistics are in single precision).
"""

import pytest
import torch
from torch import Tensor

import anisodiff
from anisodiff.dct import dct2
from anisodiff.models.score import ScoreModel
from anisodiff.processes import TrainingPair
from anisodiff.samplers.predictor_corrector import noise_variance
from tests.support.baselines import flow_gain
from tests.support.oracles import F64, Nothing, gaussian_images, generator
from tests.support.score_models import wiener_model

SIZE, COUNT = 8, 6
FLOW, VE = anisodiff.process("flow-matching", SIZE), anisodiff.process("ve", SIZE)


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Two channels, each of mean ½, which both processes leave where it is."""
    drawn = gaussian_images(64, SIZE, channels=2)
    return drawn - drawn.mean((0, 2, 3), keepdim=True) + 0.5


@pytest.fixture(scope="module")
def model(images) -> ScoreModel:
    return wiener_model(VE, images).double()


@pytest.fixture(scope="module")
def pairs(images, model) -> tuple[Tensor, Tensor, TrainingPair, TrainingPair]:
    """Times of `ve` (of its table, where nothing is interpolated) and of the flow; a pair of each, of one noise."""
    edges = model.statistics_edges
    times = edges[torch.linspace(len(edges) // 6, len(edges) - 1, COUNT).long()]
    theirs = VE.training_pair(images[:COUNT], times, generator(1))
    sigma = noise_variance(VE.equation, times).sqrt()
    xi = -sigma[:, None, None, None] * theirs.target
    t = 2 * sigma / (1 + 2 * sigma)
    state = FLOW.mean(images[:COUNT], t) + FLOW.spread(images[:COUNT], t) * xi
    return times, t, theirs, TrainingPair(state, FLOW.target(images[:COUNT], t, xi, state))


def of(t: Tensor) -> Tensor:
    return t[:, None, None, None]


def test_states_and_targets(pairs):
    """The state but for its scale; and the velocity (U_t − x0)/t, with x0 = y + σ²s of the state y and score s."""
    _, t, theirs, ours = pairs
    assert float(t.min()) < 0.1
    assert float(t.max()) > 0.98
    torch.testing.assert_close(0.5 + (ours.state - 0.5) / of(1 - t), theirs.state, rtol=1e-6, atol=1e-6)
    image = theirs.state + of(0.5 * t / (1 - t)).square() * theirs.target
    torch.testing.assert_close((ours.state - image) / of(t), ours.target, rtol=1e-6, atol=1e-6)


def test_the_network_sees_and_is_asked_the_same(images, model, pairs):
    """Its input û/√(N + σ_d² S/D) and its target (ŝ + û/V)/c, with the flow's S = (1 − t)²D and N = t²/4."""
    times, t, theirs, ours = pairs
    c, z = model.coefficients(times), model.to_coordinates(theirs.state)
    wanted = (model.modes(theirs.target) + z / c.power) / c.scale
    data = model.statistics.data
    for k in range(COUNT):
        signal = FLOW.signal_power(t[k]) * data
        noise = FLOW.spread(images[:1], t[k : k + 1])[0, 0].square()
        state = dct2(ours.state[k] - 0.5)
        score = -dct2(ours.target[k] + (images[k] - 0.5)) / noise * t[k]  # −ξ/(t/2): the velocity is ½ξ − (x0 − ½)
        power, scale = signal + noise, (signal / (noise * (signal + noise))).sqrt()
        seen = state * (noise + data.mean() * signal / data).rsqrt()
        torch.testing.assert_close(seen, (c.input * z)[k], rtol=1e-5, atol=1e-5)
        known = (signal / power).sqrt()  # at high noise ŝ + û/V is a small difference, of which only this much counts
        torch.testing.assert_close(known * (score + state / power) / scale, known * wanted[k], rtol=1e-5, atol=1e-5)


def test_the_velocity_is_that_of_the_score(images, model, pairs):
    """w = 2(U_t − E[x0 | U_t])/t with the image that the model of `ve` expects: a closed form for Gaussian images."""
    times, t, theirs, ours = pairs
    assert isinstance(model.network, Nothing)  # the Wiener filter is exact here
    power = model.statistics.data.to(F64)
    for k in range(COUNT):
        expected = model.denoised(model.to_coordinates(theirs.state[k : k + 1]), times[k : k + 1])
        velocity = 2 * (ours.state[k : k + 1] - expected) / t[k]
        want = flow_gain(FLOW, power)(t[k : k + 1])[:, None] * dct2(2 * ours.state[k : k + 1] - 1)
        torch.testing.assert_close(dct2(velocity), want, rtol=1e-5, atol=1e-5)
