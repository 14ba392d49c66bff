"""`simulate` and `trajectory` as a user calls them: which images they take, in which units, and from which seed."""

import numpy as np
import pytest
import torch

import anisodiff
from anisodiff.noise import KeyedNoise, combine
from anisodiff.registry import PROCESSES, build_process

NAMES = ("ve", "heat", "anisotropic", "anisotropic-paper", *PROCESSES)
TIMES = [0.3, 0.7, 1.0]


def images(count: int = 3, size: int = 8) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_and_a_torch_generator_give_the_same_states(name):
    process, x0 = anisodiff.process(name, 8), images()
    for run in (
        lambda rng: process.simulate(x0, 0.7, rng),
        lambda rng: torch.stack(process.trajectory(x0, TIMES, rng)),
    ):
        expected = run(torch.Generator().manual_seed(5))
        assert torch.equal(run(5), expected)
        assert torch.equal(run(np.int64(5)), expected)
        assert not torch.equal(run(6), expected)
        going_on = torch.Generator().manual_seed(5)
        assert torch.equal(run(going_on), expected)
        assert not torch.equal(run(going_on), expected)  # it has moved on


def test_a_transition_takes_a_seed():
    process, x0 = anisodiff.process("heat", 8), images()
    assert torch.equal(process.transition(x0, 0.0, 0.7, 3), process.simulate(x0, 0.7, 3))


def test_keyed_noise_is_a_source_too():
    process, x0 = anisodiff.process("ve", 8), images()
    keys = combine(1, torch.arange(3))
    together = process.simulate(x0, 1.0, KeyedNoise(keys))
    assert torch.equal(process.simulate(x0[1:2], 1.0, KeyedNoise(keys[1:2])), together[1:2])


@pytest.mark.parametrize("rng", [1.5, "0", True, -1, 2**64, torch.zeros(2)])
def test_what_is_no_seed_is_refused(rng):
    with pytest.raises(ValueError, match="expected a whole number from 0") as caught:
        anisodiff.process("ve", 8).simulate(images(), 1.0, rng)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_images_of_another_size_are_refused_where_the_parameters_differ(name):
    """A process refuses exactly the sizes at which the same call would make another process."""
    process = anisodiff.process(name, 32)
    for side in (8, 16, 32, 48, 256):
        x0 = torch.full((1, 1, side, 4), 0.5)
        if build_process(name, side, {}, "").identity() == process.identity():
            assert process.simulate(x0, 0.1, 0).shape == x0.shape
            continue
        for run in (lambda x0=x0: process.simulate(x0, 0.1), lambda x0=x0: process.trajectory(x0, [0.1])):
            with pytest.raises(ValueError, match=f"got {side}×4, .* 32 pixels; .*size={side}") as caught:
                run()
            assert "\n" not in str(caught.value)


def test_a_size_that_no_parameter_follows_is_free():
    x0 = images(size=16)
    with pytest.raises(ValueError, match="size=16"):
        anisodiff.process("anisotropic", 8).simulate(x0, 1.0)
    fixed = anisodiff.process("anisotropic", 8, diffusivity=4)
    assert fixed.simulate(x0, 1.0, 0).shape == x0.shape
    built = anisodiff.SPDE(equation=anisodiff.process("anisotropic", 8).equation)
    assert built.simulate(x0, 1.0, 0).shape == x0.shape  # made by hand: for any size
    compiled = anisodiff.process("anisotropic", 8).compiled()
    with pytest.raises(ValueError, match="size=16"):
        compiled.simulate(x0, 1.0)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 255.0)])
@pytest.mark.parametrize("name", ["ve", "anisotropic", "flow-matching"])
def test_values_have_the_range_that_scale_says(name, low, high):
    """The states of images in other units are the states of the same images in [0, 1], in those units."""
    process, x0 = anisodiff.process(name, 8), images()
    other = low + (high - low) * x0
    with pytest.raises(ValueError, match=r"expected \[0, 1\]; .*scale=") as caught:
        process.simulate(other, 0.5)
    assert "\n" not in str(caught.value)
    expected = low + (high - low) * process.simulate(x0, 0.5, 0)
    torch.testing.assert_close(process.simulate(other, 0.5, 0, scale=(low, high)), expected, rtol=1e-4, atol=1e-4)
    paths = process.trajectory(other, TIMES, 0, scale=(low, high)), process.trajectory(x0, TIMES, 0)
    for got, state in zip(*paths, strict=True):
        torch.testing.assert_close(got, low + (high - low) * state, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"expected \[0, 2\]"):
        process.simulate(other - 3, 0.5, scale=(0, 2))


def test_any_values_with_scale_none_and_inside():
    process, x0 = anisodiff.process("ve", 8), 5 * images() - 2
    assert torch.equal(
        process.simulate(x0, 1.0, 0, scale=None), process.draw(x0, 1.0, torch.Generator().manual_seed(0))
    )
    for scale in ((1, 0), (0, float("inf")), 3, (0, 1, 2), "01"):
        with pytest.raises(ValueError, match=r"scale: got .*, expected"):
            process.simulate(images(), 1.0, scale=scale)
    rounded = images().clamp(0, 1) + 1e-7  # an overshoot of float32 is no mistake
    assert process.simulate(rounded, 1.0, 0).isfinite().all()


@pytest.mark.parametrize(
    ("x0", "says"),
    [
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), r"uint8.*x\.float\(\) / 255"),
        (torch.full((1, 3, 8, 8), float("nan")), "NaN"),
        (torch.zeros(3, 8, 8), r"\[B, C, H, W\]"),
        (np.zeros((1, 3, 8, 8)), "torch tensor"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(x0, says):
    for run in (anisodiff.process("heat", 8).simulate, lambda x, t: anisodiff.process("heat", 8).trajectory(x, [t])):
        with pytest.raises(ValueError, match=says) as caught:
            run(x0, 1.0)
        assert "\n" not in str(caught.value)


def test_no_images_are_images():
    assert anisodiff.process("anisotropic", 8).simulate(torch.zeros(0, 3, 8, 8), 1.0, 0).shape == (0, 3, 8, 8)
