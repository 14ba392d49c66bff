"""Both stencils against their definitions, limits and symmetries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anisodiff import drift, noise_scale
from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.stencils.flux import apply_edges, edge_weights
from tests.support import paper_reference

F64 = torch.float64


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def dense(u: torch.Tensor, inv_lambda: float) -> torch.Tensor:
    """The matrix of L(w(u)) for one channel [H, W]."""
    h, w = u.shape
    basis = torch.eye(h * w, dtype=F64).reshape(h * w, 1, h, w)
    weights = edge_weights(u[None, None], inv_lambda)
    return apply_edges(weights, basis).reshape(h * w, h * w).mT


SHAPES = [(3, 3), (3, 5), (4, 3), (5, 7), (8, 6)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inv_lambda", [0.0, 0.7, 40.0])
def test_paper_stencil_is_the_papers_cases(shape, inv_lambda):
    u = image(2, 3, *shape, seed=sum(shape))
    got = drift(u, 1.7, inv_lambda, stencil="paper")
    for b in range(2):
        for c in range(3):
            want = paper_reference.field(paper_reference.drift_pixel, u[b, c], 1.7, inv_lambda)
            torch.testing.assert_close(got[b, c], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inv_lambda", [0.0, 0.7, 40.0])
def test_noise_scale_is_the_papers_cases(shape, inv_lambda):
    u = image(2, 3, *shape, seed=sum(shape))
    got = noise_scale(u, 0.3, inv_lambda)
    for b in range(2):
        for c in range(3):
            want = paper_reference.field(paper_reference.noise_pixel, u[b, c], 0.3, inv_lambda)
            torch.testing.assert_close(got[b, c], want, rtol=0, atol=1e-12)


def test_noise_scale_does_not_see_its_own_pixel():
    u = image(1, 1, 5, 6)
    jacobian = torch.autograd.functional.jacobian(lambda v: noise_scale(v, 1.0, 20.0), u).reshape(30, 30)
    assert jacobian.abs().max() > 0.1  # it does see the neighbors
    assert jacobian.diagonal().abs().max() == 0.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inv_lambda", [0.0, 3.0, 400.0])
def test_flux_operator_is_symmetric_nonpositive_and_bounded(shape, inv_lambda):
    matrix = dense(image(*shape), inv_lambda)
    torch.testing.assert_close(matrix, matrix.mT, rtol=0, atol=0)
    spectrum = torch.linalg.eigvalsh(matrix)
    assert spectrum.max() <= 1e-13
    assert spectrum.min() >= -8.0
    assert matrix.sum(0).abs().max() < 1e-14  # constants are kept


def test_flux_without_anisotropy_is_the_dct_laplacian():
    u = image(2, 3, 6, 9)
    want = idct2(-2.5 * frequencies(6, 9, F64, u.device) * dct2(u))
    torch.testing.assert_close(drift(u, 2.5, 0.0), want, rtol=0, atol=1e-13)


def test_paper_stencil_without_anisotropy_mirrors_at_the_boundary():
    u = image(1, 1, 5, 6)
    mirrored = torch.nn.functional.pad(u, (1, 1, 1, 1), mode="reflect")  # the boundary of a DCT-I
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=F64)[None, None]
    torch.testing.assert_close(
        drift(u, 1.0, 0.0, stencil="paper"), torch.nn.functional.conv2d(mirrored, kernel), rtol=0, atol=1e-13
    )


def test_edge_weights_as_defined():
    """One edge between columns, by hand: along 2(u_n − u_i), across the mean of two central differences."""
    u = image(1, 1, 4, 5)
    x, inv = u[0, 0], 5.0
    along = 2 * (x[1, 3] - x[1, 2])
    across = 0.5 * ((x[2, 2] - x[0, 2]) + (x[2, 3] - x[0, 3]))
    want = 1 / torch.sqrt(1 + (along**2 + across**2) * inv**2)
    torch.testing.assert_close(edge_weights(u, inv).x[0, 0, 1, 2], want)
    on_the_top_edge = 1 / torch.sqrt(1 + (2 * (x[0, 3] - x[0, 2])) ** 2 * inv**2)
    torch.testing.assert_close(edge_weights(u, inv).x[0, 0, 0, 2], on_the_top_edge)


@pytest.mark.parametrize("stencil", ["flux", "paper"])
def test_drift_commutes_with_flips_and_transposition(stencil):
    u = image(1, 2, 5, 7)

    def b(v):
        return drift(v, 1.3, 9.0, stencil=stencil)

    torch.testing.assert_close(b(u.flip(-1)), b(u).flip(-1), rtol=0, atol=1e-14)
    torch.testing.assert_close(b(u.flip(-2)), b(u).flip(-2), rtol=0, atol=1e-14)
    torch.testing.assert_close(b(u.mT.contiguous()), b(u).mT, rtol=0, atol=1e-14)
    torch.testing.assert_close(b(u + 0.37), b(u), rtol=0, atol=1e-13)  # a constant shift is not seen


@pytest.mark.parametrize("stencil", ["flux", "paper"])
def test_coefficients_may_differ_by_sample(stencil):
    u = image(3, 2, 4, 4)
    alpha, inv = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 30.0])
    together = drift(u, alpha, inv, stencil=stencil)
    for k in range(3):
        alone = drift(u[k : k + 1], float(alpha[k]), float(inv[k]), stencil=stencil)
        torch.testing.assert_close(together[k : k + 1], alone, rtol=0, atol=1e-14)


def test_strong_edges_stop_the_smoothing():
    step = torch.zeros(1, 1, 6, 6, dtype=F64)
    step[..., 3:] = 1.0
    across_the_edge = {k: drift(step, 1.0, k)[0, 0, 2, 2].item() for k in (0.0, 100.0)}
    assert across_the_edge[0.0] == 1.0
    assert 0 < across_the_edge[100.0] < 0.006


@settings(max_examples=40, deadline=None)
@given(
    st.integers(3, 9),
    st.integers(3, 9),
    st.floats(0, 1e4),
    st.integers(0, 2**31),
    st.sampled_from([1e-3, 1, 1e3]),
)
def test_flux_keeps_the_mean_of_any_state(height, width, inv_lambda, seed, scale):
    u = scale * image(1, 2, height, width, seed=seed)
    total = drift(u, 1.0, inv_lambda).sum(dim=(-2, -1)).abs().max()
    assert total <= 1e-12 * scale


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (torch.rand(3, 4, 4), "shape"),
        (torch.rand(1, 1, 2, 9), "3×3"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.uint8), "float"),
        ([[1.0]], "tensor"),
    ],
)
def test_states_are_checked(bad, says):
    with pytest.raises(ValueError, match=says):
        drift(bad, 1.0, 0.0)


def test_unknown_stencil():
    with pytest.raises(ValueError, match="did you mean 'flux'"):
        drift(image(1, 1, 4, 4), 1.0, 0.0, stencil="fluks")
