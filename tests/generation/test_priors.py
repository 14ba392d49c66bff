"""The law of every prior against terminal states, and that a draw follows from its own key."""

import numpy as np
import pytest
import torch

import anisodiff
from anisodiff.data import prepare
from anisodiff.dct import dct2
from anisodiff.generation.priors import conditional_prior, open_pool
from anisodiff.noise import KeyedNoise, combine
from anisodiff.priors import SimulatedPrior, choose
from tests.support.oracles import F64, gaussian_images

CPU = torch.device("cpu")
SIZE, CHANNELS = 8, 2


def keys(count: int, stream: int = 0) -> KeyedNoise:
    return KeyedNoise(combine(stream, torch.arange(count)))


def pool(count: int):
    return open_pool(gaussian_images(count, SIZE, CHANNELS).clamp(0, 1), CHANNELS, (SIZE, SIZE))


def priors(process):
    images = pool(50)
    return {
        "gaussian": process.prior(images.images),
        "simulate": SimulatedPrior(process, images.images),
        "conditional": conditional_prior(process, images, CPU, pairs=64),
    }


@pytest.mark.parametrize("name", ["gaussian", "simulate", "conditional"])
@pytest.mark.parametrize("process", ["heat", "anisotropic"])
def test_a_draw_follows_from_its_own_key(name, process):
    prior = priors(anisodiff.process(process, SIZE))[name]
    source = combine(5, torch.arange(7))
    together = prior.draw(7, KeyedNoise(source))
    for k in (0, 3, 6):
        torch.testing.assert_close(prior.draw(1, KeyedNoise(source[k : k + 1]))[0], together[k], rtol=1e-5, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-2


@pytest.mark.parametrize("process", ["heat", "ve", "anisotropic"])
def test_the_fitted_gaussian_has_the_moments_of_terminal_states(process):
    made, count = anisodiff.process(process, SIZE), 2000
    images = pool(count).images
    drawn = dct2(made.prior(images).draw(count, keys(count, 1)).double())
    states = dct2(made.simulate(images, made.T, keys(count, 2)))
    ratio = drawn.var(0).mean(0) / states.var(0).mean(0)
    # three estimates of a variance from count·CHANNELS numbers: the fit's, the draws' and the states'
    error = (3 * 2 / (count * CHANNELS)) ** 0.5
    assert ((ratio - 1).abs() < 5 * error).all(), (ratio - 1).abs().max() / error
    shift = (drawn.mean(0) - states.mean(0)) / (3 * states.var(0) / count).sqrt()
    assert shift.abs().max() < 5


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_gaussian_is_fitted_to_very_few_images(count):
    """Of no more images than channels a covariance is singular, and at σ = 50 its rounding is not small."""
    made = anisodiff.process("ve", SIZE)
    for seed in range(4):
        images = torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
        prior = made.prior(images)
        assert prior.draw(5, keys(5)).isfinite().all()
        states = dct2(made.simulate(images, made.T, KeyedNoise(combine(0x9121, torch.arange(count)))).double())
        centered = states - states.mean(0)
        covariance = torch.einsum("bchw,bdhw->hwcd", centered, centered) / count
        found = prior.root.double() @ prior.root.double().mT
        assert (found - covariance).abs().max() < 1e-6 * states.square().mean()


@pytest.mark.parametrize("process", ["heat", "ve"])
def test_conditional_is_the_process_itself_where_it_is_linear(process):
    made, images = anisodiff.process(process, SIZE), pool(9)
    simulated = SimulatedPrior(made, images.images).draw(64, keys(64))
    drawn = conditional_prior(made, images, CPU).draw(64, keys(64))
    assert drawn.dtype == F64
    torch.testing.assert_close(drawn, simulated, rtol=1e-12, atol=1e-12)
    mean, variance = made.mean(images.images, 0.0, made.T), made.variance(images.images, 0.0, made.T)
    one = torch.stack(
        [u for u, x in zip(simulated, choose(images.images, 64, keys(64))) if torch.equal(x, images.images[0])]
    )
    standard = dct2(one - mean[0]) / variance[0].sqrt()
    assert standard.square().mean().item() == pytest.approx(1.0, abs=5 * (2 / standard.numel()) ** 0.5)


def test_conditional_of_a_nonlinear_process_keeps_second_moments():
    made, count, images = anisodiff.process("anisotropic", SIZE), 1200, pool(60)
    prior = conditional_prior(made, images, CPU, pairs=count)
    chosen = dct2(choose(images.images, count, keys(count, 4)))
    drawn = dct2(prior.draw(count, keys(count, 4)))  # the same keys choose the same images
    states = dct2(SimulatedPrior(made, images.images).draw(count, keys(count, 4)))
    error = (3 * 2 / (count * CHANNELS)) ** 0.5
    power = drawn.var(0).mean(0) / states.var(0).mean(0)
    assert ((power - 1).abs() < 5 * error).all()

    def gain(u):
        x, y = chosen - chosen.mean(0), u - u.mean(0)
        return (x * y).mean((0, 1)) / x.square().mean((0, 1))

    spread = (states.var(0).mean(0) / chosen.var(0).mean(0)).sqrt()
    assert ((gain(drawn) - gain(states)).abs() < 5 * spread * (3 / (count * CHANNELS)) ** 0.5).all()
    assert float(gain(drawn)[0, 0]) > 0.5  # the mean of a channel is conserved: here the source is remembered


def test_images_are_chosen_uniformly():
    images = torch.arange(5, dtype=F64).reshape(5, 1, 1, 1)
    count = torch.bincount(choose(images, 10_000, keys(10_000)).flatten().long(), minlength=5)
    assert ((count - 2000).abs() < 5 * (10_000 * 0.2 * 0.8) ** 0.5).all()
    generator = torch.Generator().manual_seed(1)
    assert set(choose(images, 200, generator).flatten().tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}


def test_bytes_and_numbers_are_the_same_images():
    numbers = torch.randint(0, 256, (6, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    as_bytes = numbers.to(torch.uint8).numpy()
    torch.testing.assert_close(choose(as_bytes, 30, keys(30)), choose(numbers.float() / 255, 30, keys(30)))
    assert (
        open_pool(numbers.float() / 255, 1, (8, 8)).fingerprint
        == open_pool(numbers.double() / 255, 1, (8, 8)).fingerprint
    )


def test_a_pool_is_called_by_its_name_and_not_by_its_place(tmp_path):
    """The words go into protocols, which are published."""
    np.save(tmp_path / "raw.npy", np.zeros((4, 1, 16, 16), dtype=np.uint8))
    prepare(tmp_path / "raw.npy", tmp_path / "data", size=16, channels=1)
    for source, name in ((tmp_path / "raw.npy", "raw.npy"), (tmp_path / "data", "data")):
        assert open_pool(source, 1, (16, 16)).name == f"4 images of {name}"
