"""Both time steps: exactness, stability, taming, conservation."""

import math

import pytest
import torch
from scipy.stats import kstest

import anisodiff
from anisodiff import SPDE, ClosedForm, Equation, Exponential, TamedEuler, gaussian_kernel
from anisodiff.dct import dct2
from anisodiff.integrators import chebyshev
from anisodiff.integrators.exponential import window_degree
from anisodiff.integrators.tamed_euler import tame
from anisodiff.stencils import STENCILS
from anisodiff.stencils.flux import apply_edges
from tests.support.oracles import F64, generator

PAPER = Equation(
    diffusivity="geometric(0.5, 64)",
    intensity="geometric(0.01, 2)",
    drift_anisotropy="exponential(0.025, k=0.5)",
)


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


# ---- the exponential step -------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [0, 4, 9])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-10])
def test_exponential_step_against_dense_eigendecomposition(node, tolerance):
    step = Exponential(10, tolerance)
    u, xi = image(2, 1, 5, 6), image(2, 1, 5, 6, seed=1) - 0.5
    edges = step.nodes(PAPER)
    s = torch.full((2,), edges[node], dtype=F64)
    t = torch.tensor([edges[node + 1], 0.7 * edges[node] + 0.3 * edges[node + 1]], dtype=F64)
    frozen = step.freeze(PAPER, STENCILS["flux"], u, node)
    got = frozen.advance(u, xi, s, t)
    for b in range(2):
        weights = type(frozen.weights)(frozen.weights.y[b : b + 1], frozen.weights.x[b : b + 1])
        matrix = apply_edges(weights, torch.eye(30, dtype=F64).reshape(30, 1, 5, 6)).reshape(30, 30).mT
        z, basis = torch.linalg.eigh(-matrix)
        decay = gaussian_kernel.decay(PAPER, s[b : b + 1], t[b : b + 1], z)[0]
        root = gaussian_kernel.variance(PAPER, s[b : b + 1], t[b : b + 1], z.clamp(min=0))[0].sqrt()
        mean = basis @ (decay * (basis.mT @ u[b].flatten()))
        spread = basis @ (root * (basis.mT @ xi[b].flatten()))
        bound = tolerance * (u[b].norm() + root.max() * xi[b].norm())
        assert (got[b].flatten() - mean - spread).norm() <= bound


@pytest.mark.parametrize("stop", [1.0, 64.0, 512.0])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_degree_keeps_the_stated_bound_on_the_whole_interval(stop, tolerance):
    """max over z ∈ [0,8] of the interpolation error, for every t in the window, is below the tolerance."""
    equation = Equation(diffusivity=f"geometric(0.5, {stop})", intensity="geometric(0.01, 2)")
    s, e = 1.8, 2.0
    degree = window_degree(equation, s, e, tolerance)
    z = torch.linspace(0, 8, 2001, dtype=F64)
    t = s + (e - s) * torch.tensor([1.0, 0.77, 0.3, 0.03, 0.003], dtype=F64)
    begin = torch.full_like(t, s)
    at_nodes = chebyshev.nodes(degree, z.device)
    chebyshev_values = torch.cos(torch.arange(degree + 1)[:, None] * torch.acos((z / 4 - 1).clamp(-1, 1)))
    for f in (gaussian_kernel.decay, lambda *a: gaussian_kernel.variance(*a).sqrt()):
        exact = f(equation, begin, t, z)
        got = chebyshev.coefficients(f(equation, begin, t, at_nodes)) @ chebyshev_values
        assert ((got - exact).abs().amax(1) / exact.amax(1)).max() <= tolerance


def test_a_window_too_stiff_is_refused_with_the_remedy():
    stiff = Equation(diffusivity=1e6, intensity=1.0, drift_anisotropy=0.1)
    with pytest.raises(ValueError, match="more windows"):
        SPDE(equation=stiff, step=Exponential(1))


@pytest.mark.parametrize("windows", [1, 7])
def test_isotropic_exponential_step_is_the_closed_form(windows):
    """With λ = ∞ freezing costs nothing: mean and covariance of any number of windows are exact."""
    equation = Equation(diffusivity="geometric(0.5, 16)", intensity="geometric(0.01, 2)")
    step = Exponential(windows, 1e-10)
    u = image(1, 1, 4, 5)
    exact = ClosedForm(equation=equation)
    mean, t = u, torch.zeros(1, dtype=F64)
    covariance = torch.zeros(20, 20, dtype=F64)
    basis = torch.eye(20, dtype=F64).reshape(20, 1, 4, 5)
    for node, e in enumerate(step.nodes(equation)[1:]):
        frozen = step.freeze(equation, STENCILS["flux"], u, node)
        end = torch.full_like(t, e)
        many = torch.zeros(20, dtype=F64) + t, torch.zeros(20, dtype=F64) + end
        flow = frozen.advance(basis, None, *many).reshape(20, 20)
        root = (frozen.advance(torch.zeros_like(basis), basis, *many)).reshape(20, 20)
        covariance = flow.mT @ covariance @ flow + root.mT @ root
        mean, t = frozen.advance(mean, None, t, end), end
    torch.testing.assert_close(mean, exact.mean(u, 0.0, 2.0), rtol=0, atol=1e-8)
    modes = dct2(covariance.reshape(20, 4, 5)).reshape(20, 20).mT
    modes = dct2(modes.reshape(20, 4, 5)).reshape(20, 20)
    torch.testing.assert_close(modes, torch.diag(exact.variance(u, 0.0, 2.0).flatten()), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "process",
    [
        anisodiff.process("ve", 8),
        anisodiff.process("heat", 8),
        anisodiff.process("heat", 8, correlation_length=1.0),
        anisodiff.process("heat", 8, step="exponential(windows=3)"),
    ],
    ids=["ve", "heat", "heat-correlated", "heat-exponential"],
)
def test_sampled_modes_have_the_closed_form_distribution(process):
    """Kolmogorov–Smirnov for every DCT mode at a time of its own for each half of the batch."""
    exact = ClosedForm(equation=process.equation)
    x0 = image(1, 1, 4, 4).expand(6000, 1, 4, 4)
    t = torch.tensor([0.3, 1.6], dtype=F64).repeat_interleave(3000)
    u = process.draw(x0, t, generator(3))
    standard = dct2(u - exact.mean(x0, 0.0, t)) / exact.variance(x0, 0.0, t).sqrt()
    p_values = [
        kstest(standard[half, 0, i, j].numpy(), "norm").pvalue
        for half in (slice(0, 3000), slice(3000, 6000))
        for i in range(4)
        for j in range(4)
    ]
    assert min(p_values) > 0.01 / len(p_values)


def test_transition_composes_in_distribution():
    process = anisodiff.process("heat", 8)
    x0 = image(1, 1, 4, 4).expand(8000, 1, 4, 4)
    halfway = process.draw(x0, 0.8, generator(1))
    u = process.transition(halfway, 0.8, 1.9, generator(2))
    standard = dct2(u - process.mean(x0, 0.0, 1.9)) / process.variance(x0, 0.0, 1.9).sqrt()
    p_values = [kstest(standard[:, 0, i, j].numpy(), "norm").pvalue for i in range(4) for j in range(4)]
    assert min(p_values) > 0.01 / 16


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_channel_mean_is_conserved_over_a_whole_trajectory(dtype):
    u = image(2, 3, 9, 12).to(dtype)
    for step in (Exponential(10), TamedEuler(0.001, norm="none")):
        equation = Equation(diffusivity="geometric(0.5, 20)", intensity=0.0, drift_anisotropy=0.05)
        end = SPDE(equation=equation, step=step).draw(u, 2.0)
        drifted = (end.mean((-2, -1)) - u.mean((-2, -1))).abs().max().item()
        assert drifted < 2000 * torch.finfo(dtype).eps * 0.1
    paper = SPDE(equation=equation, stencil="paper", step=TamedEuler(0.001)).draw(u, 2.0)
    assert (paper.mean((-2, -1)) - u.mean((-2, -1))).abs().max() > 1e-3  # the paper's stencil does not


# ---- tamed Euler–Maruyama --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("norm", ["image", "rms", "element"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_taming_bound(gamma, norm, scale):
    """Δt‖b̃‖ ≤ Δt‖b‖ and, for γ = 1, Δt‖b̃‖ ≤ 1; a gentle drift is left alone; the direction never changes."""
    dt, b = 0.01, scale * (image(3, 2, 4, 5) - 0.5)
    tamed = tame(b, dt, gamma, norm)

    def size(v):
        if norm == "element":
            return v.abs()
        per_image = v.flatten(1).norm(dim=1)
        return per_image if norm == "image" else per_image / math.sqrt(40)

    torch.testing.assert_close(size(tamed), size(b) / (1 + dt * size(b) ** gamma), rtol=1e-12, atol=0)
    assert (dt * size(tamed) <= dt * size(b)).all()
    if gamma == 1.0:
        assert (dt * size(tamed) <= 1.0).all()
    assert (tamed.sign() == b.sign()).all()


def test_a_step_is_the_papers_formula():
    equation = Equation(
        diffusivity="geometric(0.5, 64)", intensity=0.3, drift_anisotropy=0.1, noise_anisotropy=0.2, T=2.0
    )
    step = TamedEuler(0.01, gamma=1.0, norm="image")
    u, xi = image(2, 3, 5, 6), image(2, 3, 5, 6, seed=1)
    s = torch.full((2,), 0.05, dtype=F64)
    got = step.freeze(equation, STENCILS["paper"], u, 5).advance(u, xi, s, s + 0.01)
    alpha1 = 0.5 * 128 ** (0.05 / 2)
    b = anisodiff.drift(u, alpha1, 10.0, stencil="paper")
    norm = b.flatten(1).norm(dim=1)[:, None, None, None]
    want = u + 0.01 * b / (1 + 0.01 * norm) + anisodiff.noise_scale(u, 0.3, 5.0) * 0.1 * xi
    torch.testing.assert_close(got, want, rtol=0, atol=1e-14)


@pytest.mark.parametrize("stencil", ["paper", "flux"])
@pytest.mark.parametrize(("preset", "explodes_to"), [("heat", 1e6), ("anisotropic", 1.0)])
def test_untamed_euler_is_unstable_at_the_papers_parameters(preset, explodes_to, stencil):
    """α1Δt reaches 0.64 where 0.25 is the limit. Without taming the isotropic state explodes; the anisotropic one
    (whose drift is bounded by α1·λ1) settles into a checkerboard far above the spread of the exact process (0.15).
    """
    u = image(4, 1, 32, 32)
    common = {"intensity": "geometric(0.01, 2)", "stencil": stencil}
    untamed = anisodiff.process(preset, 32, step="tamed(dt=0.01, norm=none)", **common).draw(u, 2.0, generator())
    tamed = anisodiff.process(preset, 32, step="tamed(dt=0.01)", **common).draw(u, 2.0, generator())
    assert untamed.std() > explodes_to
    assert tamed.std() < 0.6
    top = [dct2(v)[..., -1, -1].abs().mean() for v in (untamed, tamed)]
    assert top[0] > 50 * top[1]


def test_stability_limit_of_explicit_steps():
    """The highest frequency of a checkerboard, z = 8 in the limit: Euler is stable up to α1Δt = 2/z = ¼."""
    board = ((torch.arange(16)[:, None] + torch.arange(16)) % 2).to(F64)[None, None] - 0.5
    growth = {}
    for alpha1_dt in (0.24, 0.27):
        equation = Equation(diffusivity=alpha1_dt / 0.01, intensity=0.0, T=4.0)
        end = SPDE(equation=equation, step=TamedEuler(0.01, norm="none")).draw(board, 4.0)
        growth[alpha1_dt] = end.abs().max().item()
    assert growth[0.24] < 0.5
    assert growth[0.27] > 1e6


def test_nodes_cover_the_horizon():
    equation = Equation(diffusivity=1.0, intensity=1.0, T=2.0)
    nodes = TamedEuler(0.01).nodes(equation)
    assert len(nodes) == 201
    assert nodes[-1] == 2.0
    assert TamedEuler(0.3).nodes(equation)[-2:] == (pytest.approx(1.8), 2.0)
    assert Exponential(4).nodes(equation) == (0.0, 0.5, 1.0, 1.5, 2.0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TamedEuler(0.0), "dt .* > 0"),
        (lambda: TamedEuler(0.01, gamma=-1), "gamma"),
        (lambda: TamedEuler(norm="l2"), "norm"),
        (lambda: Exponential(2.5), "whole number"),
        (lambda: Exponential(0), "whole number"),
        (lambda: Exponential(3, 1.0), "tolerance"),
        (lambda: SPDE(equation=PAPER, step=TamedEuler(3.0)), "longer than T"),
        (lambda: SPDE(equation=PAPER, step=TamedEuler(1e-9)), "raise dt"),
    ],
)
def test_wrong_steps_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()
