"""Keyed normals as a GPU kernel against the plain form, in Triton's interpreter where there is no GPU."""

import pytest
import torch

from anisodiff.noise import KeyedNoise, keyed_normal
from tests.support.gpu_kernels import (
    CUDA,
    DEVICE,
    launches,
    needs_compiler,
    run_interpreted,
    runs_kernels,
    starts_interpreter,
)


@runs_kernels
@pytest.mark.parametrize("count", [1, 2, 7, 1024, 3075])
def test_normals(count):
    """Another word would be another number; rounded to float32, a word of 32 bits moves by 2⁻²⁵ at most."""
    from anisodiff import keyed_kernels

    stream = torch.tensor([0, -1, 2**63 - 1, -(2**63), 12345], device=DEVICE)
    found = keyed_kernels.normal(stream, count)
    assert found.dtype == torch.float32
    assert (found - keyed_normal(stream, count, torch.float32)).abs().max() < 2e-6
    exact = keyed_normal(stream, count, torch.float64)
    assert ((found - exact).abs() < 1e-5 + 1e-4 * exact.abs()).all()
    assert keyed_kernels.normal(stream[:0], count).shape == (0, count)


@starts_interpreter
def test_the_kernel_in_the_interpreter():
    run_interpreted(__file__, only="test_normals", least=5)


@needs_compiler
def test_it_compiles_once_for_all_sizes():
    """For a large GPU, and with sine and cosine that reduce large angles."""
    from anisodiff import keyed_kernels

    with launches() as seen:
        for batch, count in ((1, 1), (4, 3072), (7, 1000)):
            keyed_kernels.normal(torch.arange(batch), count)
    assert len(seen) == 1
    code = seen[0].compile().asm["ptx"]
    assert "cos.approx" not in code
    assert "sin.approx" not in code


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_a_gpu_draws_what_a_cpu_draws():
    keys, like = torch.arange(5), torch.empty(5, 3, 9, 7)
    there = KeyedNoise(keys.cuda()).normal(like.cuda()).cpu()
    assert (there - KeyedNoise(keys).normal(like)).abs().max() < 1e-5
