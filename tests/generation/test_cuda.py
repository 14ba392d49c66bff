"""On a CUDA device: the same images as on the CPU, and as in other batches, to one level of a PNG."""

import numpy as np
import pytest
import torch

import anisodiff
from anisodiff.io.grids import to_pixels
from tests.generation.test_generator import shake

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def levels(one: torch.Tensor, other: torch.Tensor) -> int:
    return int(np.abs(to_pixels(one).astype(int) - to_pixels(other).astype(int)).max())


@pytest.mark.parametrize("process", ["heat", "anisotropic"])
def test_half_precision_does_not_see_the_batch(runs, process):
    generator = anisodiff.load(runs(process), "cuda")
    assert generator.half
    whole = generator.sample(40, batch=40)
    for size in (1, 7, 16):
        assert levels(generator.sample(40, batch=size), whole) <= 1


@pytest.mark.parametrize("process", ["heat", "anisotropic"])
def test_the_device_does_not_matter_in_single_precision(runs, process):
    there, here = (anisodiff.load(runs(process), device, precision="fp32") for device in ("cuda", "cpu"))
    shake(here)
    there.model.network.network.run.load_state_dict(here.model.network.state_dict())
    assert levels(there.sample(16), here.sample(16)) <= 1


def test_a_compiled_network_makes_the_same_images(runs):
    plain, compiled = (anisodiff.load(runs("heat"), "cuda", compile=wanted) for wanted in (False, True))
    assert levels(plain.sample(20, batch=8), compiled.sample(20, batch=8)) <= 1
