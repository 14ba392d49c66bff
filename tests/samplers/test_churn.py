"""Sampler noise that respects edges: its limits, and the distribution of Gaussian data with the exact score."""

import pytest
import torch

import anisodiff
from anisodiff.dct import dct2, radial_bands
from anisodiff.noise import KeyedNoise
from anisodiff.registry import build_sampler
from anisodiff.samplers.churn import Churn
from anisodiff.samplers.multistep import Multistep
from tests.support.oracles import F64, gaussian_images, keys
from tests.support.score_models import wiener_model

COUNT, SIZE, T_MIN = 3000, 5, 0.1


@pytest.fixture(scope="module")
def gaussian():
    """`ve` on Gaussian images with its exact score, and terminal states of 3000 of them."""
    process = anisodiff.process("ve", SIZE, sigma_max=5.0)
    images = gaussian_images(COUNT, SIZE)
    model = wiener_model(process, images.float()).double()
    return process, model, process.draw(images, 2.0, KeyedNoise(keys(COUNT, 1)))


def final(model, start, sampler, steps: int) -> torch.Tensor:
    """States at t_min."""
    seen: list[torch.Tensor] = []
    times = sampler.times(model, steps + 1, t_min=T_MIN)
    sampler.run(model, start, times, KeyedNoise(keys(len(start), 2)), callback=lambda i, u: seen.append(u))
    return seen[-1]


def test_without_noise_it_is_the_probability_flow(gaussian):
    _, model, start = gaussian
    few = start[:8]
    assert torch.equal(final(model, few, Churn(eta=0), 20), final(model, few, Multistep(), 20))


def test_with_all_noise_and_no_edges_it_is_the_reverse_sde(gaussian):
    """One step of η = 1, λ = ∞ from t to t': mean and variance given the state are the ancestral step's, to 1%."""
    process, model, _ = gaussian
    t, low = (torch.tensor([x], dtype=F64) for x in (1.0, 0.99))
    u = process.draw(gaussian_images(1, SIZE), 1.0, KeyedNoise(keys(1, 3))).expand(COUNT, -1, -1, -1)
    z = model.to_coordinates(u)
    moved = [
        build_sampler(text, process).step(model, z, t, low, KeyedNoise(keys(COUNT, 4)), {})
        for text in ("churn", "ancestral")
    ]
    ours, theirs = (x.var(0).mean() for x in moved)
    assert float(ours / theirs) == pytest.approx(1.0, abs=0.01)  # the same noise
    gap, way = moved[0].mean(0) - moved[1].mean(0), moved[1].mean(0) - z[0]
    chance = (2 * moved[1].var(0).sum() / COUNT).sqrt()
    assert float(gap.norm()) < float(1.5 * chance + 0.01 * way.norm())


@pytest.mark.parametrize(("eta", "lam"), [(1.0, 0.2), (0.5, 0.05)])
def test_the_distribution_does_not_depend_on_the_noise(gaussian, eta, lam):
    """Power at t_min in bands over the exact one: nearer with more steps, with 160 within 4% (chance: 3%).

    Without edges, λ = ∞, the distribution is computed without sampling: test_sampler_orders.py.
    """
    _, model, start = gaussian
    exact = model.coefficients(torch.tensor([T_MIN], dtype=F64)).power[0, 0]
    band = radial_bands(SIZE, SIZE, 4)
    errors = []
    for steps in (10, 160):
        power = dct2(final(model, start, Churn(eta=eta, lam=lam), steps) - 0.5).square().mean((0, 1))
        errors.append(max(abs(float((power / exact)[band == k].mean()) - 1) for k in range(1, 4)))
    assert errors[1] < 0.04
    assert errors[1] < errors[0] or errors[0] < 0.04


def test_noise_stays_away_from_edges():
    """A step image: one reverse step puts less noise at the step than beside it, by 1/(1 + |∇x̂0|²/λ²)."""
    images = torch.full((64, 1, 12, 12), 0.2, dtype=F64)
    images[..., 6:] = 0.8
    images = images + 0.01 * torch.randn(images.shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    process = anisodiff.process("ve", 12)
    model = wiener_model(process, images.float()).double()
    t, low = (torch.tensor([x], dtype=F64) for x in (0.3, 0.25))
    u = process.draw(images[:1], 0.3, KeyedNoise(keys(1))).expand(2000, -1, -1, -1)
    chosen = Churn(lam=0.1)
    z = chosen.step(model, model.to_coordinates(u), t, low, KeyedNoise(keys(2000, 5)), {})
    spread = model.from_coordinates(z).var(0)[0]
    assert float(spread[:, 5:7].mean()) < 0.15 * float(spread[:, :4].mean())
