"""Fused kernels against the plain form, in Triton's interpreter where there is no GPU."""

import pytest
import torch

import anisodiff
from anisodiff.integrators import chebyshev
from anisodiff.integrators.kernels import fits
from anisodiff.noise import KeyedNoise
from anisodiff.stencils.flux import EdgeWeights, edge_weights
from tests.support.gpu_kernels import (
    CUDA,
    needs_cuda,
    run_interpreted,
    runs_kernels,
    starts_interpreter,
)


def plain(w, v, c):
    """Σ c_j T_j v by the recurrence as it is written in `chebyshev`."""
    c = c[..., None, None, None]
    before, now, total = chebyshev.start(w, v, c[:2])
    for j in range(2, len(c)):
        following, total = chebyshev.recur(w, before, now, total, c[j])
        before, now = now, following
    return total


@runs_kernels
@pytest.mark.parametrize(("height", "width", "batch"), [(32, 32, 3), (5, 9, 2), (3, 4, 1), (64, 64, 1)])
def test_the_fused_kernels_are_the_stencil(height, width, batch):
    from anisodiff.integrators.kernels import flux

    device = "cuda" if CUDA else "cpu"
    generator = torch.Generator().manual_seed(height)
    u = torch.rand(batch, 2, height, width, generator=generator)
    inv_lambda = torch.rand(batch, dtype=torch.float64, generator=generator) * 30
    v = torch.randn(3, batch, 2, height, width, generator=generator)
    c = torch.randn(12, 3, batch, generator=generator)
    want = edge_weights(u, inv_lambda)
    got = EdgeWeights(*flux.edge_weights(u.to(device), inv_lambda.to(device)))
    for one, other in zip(got, want):
        assert (one.cpu() - other).abs().max() < 2e-6
    for coefficients in (c, c[:, :, :1]):
        found = flux.polynomial(*got, v.to(device), coefficients.to(device)).cpu()
        expected = plain(want, v, coefficients)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    one_value = flux.edge_weights(u.to(device), inv_lambda[0].to(device))
    assert (one_value[0][0].cpu() - want.y[0]).abs().max() < 2e-6


@starts_interpreter
def test_the_fused_kernels_in_the_interpreter():
    run_interpreted(__file__, only="test_the_fused_kernels_are_the_stencil", least=4)


@needs_cuda
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("ve", {}),
        ("ve", {"correlation_length": 1.0}),
        ("heat", {}),
        ("anisotropic", {}),
        ("anisotropic", {"step": "signal", "correlation_length": 0.5}),
        ("anisotropic-paper", {"step": "tamed(dt=0.05)"}),
    ],
)
def test_cuda_and_cpu_draw_the_same_states(name, keys):
    """Keyed noise is the same on both, so are states and targets, up to rounding in single precision."""
    process = anisodiff.process(name, 32, **keys)
    x0 = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    samples = torch.arange(6)
    t = torch.linspace(0.1, process.T, 6, dtype=torch.float64)
    want = process.draw(x0, t, KeyedNoise(samples))
    got = process.draw(x0.cuda(), t.cuda(), KeyedNoise(samples.cuda())).cpu()
    scale = want.square().mean((-3, -2, -1), keepdim=True).sqrt()
    assert ((got - want) / scale).abs().max() < 2e-3
    if hasattr(process, "local"):
        for one, other in zip(
            process.training_pair(x0.cuda(), t, KeyedNoise(samples.cuda())),
            process.training_pair(x0, t, KeyedNoise(samples)),
        ):
            scale = other.square().mean((-3, -2, -1), keepdim=True).sqrt()
            assert ((one.cpu() - other) / scale).abs().max() < 5e-3


@needs_cuda
@pytest.mark.parametrize(
    ("name", "keys"),
    [("anisotropic", {"step": "exponential"}), ("anisotropic", {"step": "signal"}), ("anisotropic-paper", {})],
)
def test_drawing_on_cuda_never_waits(name, keys):
    process = anisodiff.process(name, 32, **keys)
    x0, t = torch.rand(4, 3, 32, 32, device="cuda"), torch.linspace(0.3, 2.0, 4, dtype=torch.float64)
    process.training_pair(x0, t, KeyedNoise(torch.arange(4, device="cuda")))  # fills the caches
    source = KeyedNoise(torch.arange(4, device="cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        process.training_pair(x0, t, source)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_across_is_advance_over_the_whole_piece():
    for name, step in (("anisotropic", "exponential(windows=4)"), ("anisotropic-paper", "tamed(dt=0.1)")):
        process = anisodiff.process(name, 8, step=step)
        u = torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        xi = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        nodes = process.step.nodes(process.equation)
        for node in (0, len(nodes) - 2):
            frozen = process.step.freeze(process.equation, anisodiff.stencils.STENCILS[process.stencil], u, node)
            s, e = (torch.full((2,), t, dtype=torch.float64) for t in nodes[node : node + 2])
            for noise in (xi, None):
                assert (frozen.across(u, noise) - frozen.advance(u, noise, s, e)).abs().max() < 1e-12


@needs_cuda
def test_what_the_fused_kernels_take():
    state = torch.zeros(1, 1, 64, 64, device="cuda")
    assert fits(state)
    assert not fits(state.double())
    assert not fits(torch.zeros(1, 1, 64, 65, device="cuda"))
    assert not fits(state.clone().requires_grad_())


def test_a_cpu_takes_the_plain_form():
    assert not fits(torch.zeros(1, 1, 8, 8))
