"""Inversion and interpolation by the probability flow, against exact scores of Gaussian images."""

import pytest
import torch

import anisodiff
from anisodiff.dct import dct2
from anisodiff.generation.inversion import invert_flow, slerp
from anisodiff.priors import fit_gaussian
from anisodiff.processes import FlowMatching
from anisodiff.registry import build_sampler
from tests.support.baselines import exact_model
from tests.support.exact_score import oracle
from tests.support.oracles import F64, gaussian_images, slope, spectrum
from tests.support.score_models import T_MIN, level_grid, small_model, wiener_model


def test_the_flow_of_gaussian_images_scales_every_mode():
    """û/√V does not change along it, whatever the steps."""
    process = anisodiff.process("ve", 6)
    model = wiener_model(process, gaussian_images(200, 6).float()).double()
    x = gaussian_images(3, 6, seed=9)
    for steps in (2, 7):
        times = level_grid(model, steps, T_MIN).flip(0)
        found = invert_flow(model, build_sampler("ode", process), x, times)
        powers = [model.coefficients(t).power for t in (times[:1], times[-1:])]
        expected = model.to_coordinates(x) * (powers[1] / powers[0]).sqrt()
        torch.testing.assert_close(model.to_coordinates(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("drift", [False, True])
def test_up_and_down_again_is_of_second_order(drift):
    """With correlated modes, and with a drift that jumps at the edges of windows."""
    equation = anisodiff.process("heat", 3, diffusivity="geometric(0.1, 0.5)").equation
    model = oracle(equation, intervals=4, drift=drift)
    sampler = build_sampler("ode", anisodiff.process("heat", 3))
    x = 0.5 + 0.2 * torch.randn(4, 1, 3, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    levels, errors = [16, 32, 64], []
    for steps in levels:
        times, states = level_grid(model, steps, T_MIN), []
        top = invert_flow(model, sampler, x, times.flip(0))
        sampler.run(model, top, times, None, callback=lambda i, u, states=states: states.append(u))
        errors.append(float((states[-1] - x).norm() / x.norm()))
    assert slope(levels, errors) > 1.7
    assert errors[-1] < 0.01


@pytest.mark.parametrize("name", ["heun", "midpoint"])
def test_flow_matching_goes_up_and_down(name):
    process = FlowMatching(density="uniform")
    model, x = exact_model(process, 4), gaussian_images(3, 4, seed=3)
    times = torch.linspace(1, 0, 65, dtype=F64)
    sampler = build_sampler(name, process)
    top = invert_flow(model, sampler, x, times.flip(0))
    # Ẑ/√(Var Ẑ) does not change along the flow; at T the variance is 1
    torch.testing.assert_close(dct2(2 * top - 1), dct2(2 * x - 1) / (4 * spectrum(4)).sqrt(), rtol=0.02, atol=0.02)
    torch.testing.assert_close(sampler.run(model, top, times, None).images, x, rtol=0, atol=5e-3)


def test_other_samplers_cannot_go_back():
    process = anisodiff.process("ve", 4)
    with pytest.raises(ValueError, match="'exponential' cannot go back to the noise"):
        invert_flow(small_model("ve"), build_sampler("exponential", process), torch.zeros(1, 2, 4, 4), torch.zeros(2))


def test_spherical_ways_keep_the_length_and_both_ends():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 4, 4, dtype=F64, generator=g)
    b = b * a.norm() / b.norm()
    path = slerp(a, b, torch.linspace(0, 1, 5, dtype=F64))
    torch.testing.assert_close(path[[0, -1]], torch.stack([a, b]))
    torch.testing.assert_close(path.flatten(1).norm(dim=1), a.norm().expand(5))
    turn = (path[1:] * path[:-1]).flatten(1).sum(1) / a.norm() ** 2
    torch.testing.assert_close(turn, turn[0].expand(4))  # equal angles
    torch.testing.assert_close(slerp(a, a, torch.tensor([0.3], dtype=F64))[0], a)


def test_whitened_coordinates_are_those_the_prior_draws_from():
    prior = fit_gaussian(gaussian_images(100, 4, channels=3).float())
    xi = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(prior.whitened(prior.colored(xi)).float(), xi, rtol=1e-3, atol=1e-3)


def test_a_generator_inverts_and_interpolates(runs):
    generator = anisodiff.load(runs("ve"), "cpu")
    images = generator.sample(2, steps=9)
    states = generator.invert(images, steps=41)
    assert states.shape == images.shape
    again = generator.reverse(states, generator.process.T, seeds=0, steps=41, sampler="ode")
    assert float((again - images).abs().mean()) < 0.05
    path = generator.interpolate(images[0], images[1], 3, steps=41)
    assert path.shape == (3, *images.shape[1:])
    torch.testing.assert_close(path[[0, -1]], again, rtol=0, atol=0.02)
    for wrong, message in (
        (lambda: generator.invert(images[:, :, :4]), "expected .B, 1, 8, 8."),
        (lambda: generator.invert(2 * images + 1), "divide bytes by 255"),
        (lambda: generator.invert(images / 0), "NaN or infinite values; expected numbers"),
        (lambda: generator.interpolate(images[0], images[1], 1), "expected a whole number, 2 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


def test_a_model_without_a_flow_says_so(runs):
    """The sampler that is named to nobody is not the reason."""
    generator = anisodiff.load(runs("edge-preserving"), "cpu")
    with pytest.raises(ValueError, match="inversion needs a velocity, or the score and the drift"):
        generator.invert(torch.zeros(1, 1, 8, 8))
