"""The paper's predictor and corrector by their formulas, and tr DΣ against automatic differentiation."""

import dataclasses

import pytest
import torch
from torch import Tensor

from anisodiff import Equation
from anisodiff.dct import dct2, idct2
from anisodiff.integrators.tamed_euler import tame
from anisodiff.noise import KeyedNoise, spectrum, white
from anisodiff.registry import build_sampler
from anisodiff.samplers.corrector import langevin
from anisodiff.samplers.divergence import divergence
from anisodiff.samplers.euler import Taming, euler_step, reverse_drift
from anisodiff.samplers.exponential import Exponential
from anisodiff.samplers.ode import Ode
from anisodiff.stencils import drift, noise_scale
from tests.support.exact_score import F64, Oracle, oracle
from tests.support.oracles import at, keys
from tests.support.score_models import process, small_model


def state(batch: int, *shape: int) -> Tensor:
    return 0.5 + 0.4 * torch.randn(batch, *shape, dtype=F64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["one step", "anisotropic noise", "windows"])
def test_reverse_drift_is_the_papers(name):
    """f = −b(u) + g2² s, and with the projected drift −b̄ + g2² s, b̄ = b_ref + α2² d."""
    model, u, t = small_model(name).double(), state(3, 2, 4, 4), 1.2
    equation = model.equation
    stencil = "flux" if name == "windows" else "paper"
    score, tilde = model(u, at(t).expand(3))
    g2 = noise_scale(u, equation.alpha2(at(t)), equation.inv_lambda2(at(t)))
    pull, b, scale = reverse_drift(model, model.to_coordinates(u), at(t), stencil)
    torch.testing.assert_close(scale, g2)
    torch.testing.assert_close(b, drift(u, equation.alpha1(at(t)), equation.inv_lambda1(at(t)), stencil))
    torch.testing.assert_close(pull, g2**2 * score)
    if name == "anisotropic noise":
        assert g2.std() > 0.1 * g2.mean()
        return
    pull, b, _ = reverse_drift(model, model.to_coordinates(u), at(t), "projected")
    c = model.coefficients(at(t))
    z = 2 - 2 * torch.cos(torch.pi * torch.arange(4, dtype=F64) / 4)
    known = idct2(-c.alpha1 * c.weight * (z[:, None] + z) * model.to_coordinates(u))
    torch.testing.assert_close(pull - b, g2**2 * tilde - known)


@pytest.mark.parametrize("taming", [Taming(norm="image"), Taming(norm="image", dt=0.4), Taming(norm="none")])
def test_an_euler_step_is_tamed_whole_or_in_its_drift(taming):
    """The drift with the Δt of the forward step, 0.4, the whole with that of the step taken, 0.1."""
    model, u = small_model("anisotropic noise").double(), state(3, 2, 4, 4)
    z = model.to_coordinates(u)
    found = euler_step(model, z, at(1.2), at(1.1), KeyedNoise(keys(3, 1)), stencil="paper", taming=taming)
    pull, b, g2 = reverse_drift(model, z, at(1.2), "paper")
    force = pull - b
    if taming.norm == "image":
        force = pull - tame(b, 0.4, 1.0, "image") if taming.dt else tame(pull - b, 0.1, 1.0, "image")
    want = u + 0.1 * force + 0.1**0.5 * g2 * idct2(white(z, KeyedNoise(keys(3, 1))))
    torch.testing.assert_close(idct2(found) + model.statistics_mean[:, None, None], want)


@pytest.mark.parametrize(("length", "inv_lambda"), [(1.3, 4.0), (0.6, 1.5), (0.0, 4.0), (1.3, 0.0)])
def test_divergence_of_the_noise_is_that_of_autograd(length, inv_lambda):
    """(tr DΣ)_i = Σ_j ∂Σ_ij/∂u_j; it vanishes for white noise and for isotropic noise."""
    height, width = 4, 5
    u = state(1, 1, height, width)

    def sigma(flat: Tensor) -> Tensor:
        g = noise_scale(flat.reshape(1, 1, height, width), 0.7, inv_lambda).flatten()
        pixels = torch.eye(height * width, dtype=F64).reshape(-1, height, width)
        q = idct2(spectrum(height, width, length, F64, u.device) * dct2(pixels)).flatten(1)
        return g[:, None] * q * g

    jacobian = torch.autograd.functional.jacobian(sigma, u.flatten())
    want = jacobian.diagonal(dim1=1, dim2=2).sum(-1).reshape(1, 1, height, width)
    found = divergence(u, 0.7, inv_lambda, length)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)
    assert (float(found.abs().max()) > 1e-3) == (length > 0 and inv_lambda > 0)


def test_correlated_anisotropic_noise_has_its_term_in_the_reverse_drift():
    """f = −b + g2 Q g2 s + tr DΣ."""
    model, u, t = small_model("anisotropic noise").double(), state(2, 2, 4, 4), at(1.2)
    z, c = model.to_coordinates(u), model.coefficients(t)
    score = idct2(-z / c.power + c.scale * model.residuals(z, c)[0])
    model.equation = dataclasses.replace(model.equation, correlation_length=1.0)
    alpha2, inv_lambda2 = model.equation.alpha2(t), model.equation.inv_lambda2(t)
    g2 = noise_scale(u, alpha2, inv_lambda2)
    pull = g2 * idct2(spectrum(4, 4, 1.0, F64, u.device) * dct2(g2 * score))
    own = drift(u, model.equation.alpha1(t), model.equation.inv_lambda1(t), "paper")
    term = divergence(u, alpha2, inv_lambda2, 1.0)
    assert term.abs().max() > 1e-3
    found, b, _ = reverse_drift(model, z, t, "paper")
    torch.testing.assert_close(found - b, pull + term - own)


@pytest.mark.parametrize("norms", ["sample", "batch"])
def test_langevin_step_by_its_formula(norms):
    """Norms of each sample, or as Song et al. 2021 have it the mean norms of the batch."""
    model, u = small_model("heat").double(), state(3, 2, 4, 4)
    score, _ = model(u, at(0.7).expand(3))
    found = idct2(langevin(model, model.to_coordinates(u), at(0.7), 0.16, KeyedNoise(keys(3, 1)), norms=norms))
    xi = idct2(white(u, KeyedNoise(keys(3, 1))))
    lengths = torch.stack([x.detach().flatten(1).norm(dim=1) for x in (xi, score)])
    lengths = lengths.mean(1, keepdim=True).expand(2, 3) if norms == "batch" else lengths
    for k in range(3):
        step = 2 * (0.16 * float(lengths[0, k] / lengths[1, k])) ** 2
        want = u[k] + step * score[k] + (2 * step) ** 0.5 * xi[k]
        torch.testing.assert_close(found[k] + model.statistics_mean[:, None, None], want)


NOISE = Equation(diffusivity=0.0, intensity="geometric(0.05, 5)", T=2.0)


def drawn(model: Oracle, t: float, count: int, widen: float = 1.0) -> Tensor:
    mean, covariance = model.law.at(t)
    xi = torch.randn(count, len(mean), dtype=F64, generator=torch.Generator().manual_seed(1))
    return (mean + widen * xi @ torch.linalg.cholesky(covariance).mT).reshape(-1, *model.law.shape)


def width(z: Tensor, model: Oracle, t: float) -> float:
    """Mean variance over all directions in units of the exact one; its own standard error is √(2/(count·d))."""
    mean, covariance = model.law.at(t)
    gap = z.flatten(1) - mean
    return float((gap * torch.linalg.solve(covariance, gap.mT).mT).sum(1).mean() / len(mean))


@pytest.mark.parametrize(("channels", "count"), [(1, 10000), (8, 2000)])
def test_corrector_mends_a_wrong_distribution_up_to_its_bias(channels, count):
    """Variances 1.8 times too large become (1 + 2/d)², d = 9 and 72, to 4%: of these 2% are O(ε), 1% chance."""
    model, noise = oracle(NOISE, channels=channels, intervals=8), KeyedNoise(keys(count, 3))
    z = drawn(model, 2.0, count, widen=1.8**0.5)
    assert width(z, model, 2.0) > 1.7
    for _ in range(150):
        z = langevin(model, z, at(2.0), 0.14, noise)
    assert width(z, model, 2.0) == pytest.approx((1 + 2 / (9 * channels)) ** 2, rel=0.04)
    assert z.flatten(1).mean(0).abs().max() < 5 * 1.2 * z.std() / count**0.5


@pytest.mark.parametrize("predictor", [Exponential(order=1), Ode()])
def test_corrector_serves_every_predictor(predictor):
    """Twelve coarse steps, 3000 samples with d = 72 (standard error 0.3%). Ancestral steps lose variance, which the
    corrector brings back in part; the flow is right without it and is spoiled by the corrector's own bias at most.
    """
    model, found = oracle(NOISE, channels=8, intervals=8), {}
    start = idct2(drawn(model, 2.0, 3000)) + 0.5
    for ratio in (0.0, 0.16):
        chosen = dataclasses.replace(predictor, corrector=ratio)
        times = predictor.times(model, 12 * predictor.cost + 1, t_min=0.3)
        states: list[Tensor] = []
        chosen.run(model, start, times, KeyedNoise(keys(3000, 4)), callback=lambda i, u, s=states: s.append(u))
        found[ratio] = width(dct2(states[-1] - 0.5), model, 0.3)
    if isinstance(predictor, Ode):
        assert found[0.0] == pytest.approx(1, abs=0.03)
        assert found[0.16] == pytest.approx(1, abs=0.1)
    else:
        assert found[0.0] < 0.85
        assert found[0.0] + 0.05 < found[0.16] < 1.05


def test_the_papers_predictor_has_199_steps():
    """T = 2, Δt = 0.01, t_min = Δt: 199 evaluations of the predictor, and one for the image."""
    model, chosen = small_model("one step"), build_sampler("euler", process("one step"))
    times = chosen.times(model, 200, t_min=0.01)
    torch.testing.assert_close(times, torch.arange(200, 0, -1, dtype=F64) / 100, rtol=0, atol=1e-7)
    assert chosen.nfe(times) == 200
