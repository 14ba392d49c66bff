"""The bound as a function of the process: finite differences, closed forms, and the bound of a fixed process."""

import math

import numpy as np
import pytest
import torch
from benchmarks.learned_path import PathPoint, SmoothingPath
from torch import Tensor

import anisodiff
from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.models.base import ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.processes.base import TrainingPair
from anisodiff.stencils import STENCILS
from tests.support.oracles import F64, gaussian_images, generator, keys, spectrum

SIZE, LOW, HIGH, COUNT = 4, 0.02, 5.0, 6000
Z = frequencies(SIZE, SIZE, F64, torch.device("cpu"))


def path_of(*rates: float, **options) -> SmoothingPath:
    """A path with these rates; isotropic unless an edge is given."""
    path = SmoothingPath(LOW, HIGH, nodes=len(rates), **{"edge": math.inf, "reference": 1.0} | options).double()
    with torch.no_grad():
        path.rate.copy_(torch.tensor(rates))
    return path


def draws(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Images, levels and noise."""
    xi = torch.randn(count, 1, SIZE, SIZE, dtype=F64, generator=generator(seed))
    uniform = (torch.arange(count) + torch.rand(count, dtype=F64, generator=generator(seed + 1))) / count
    return gaussian_images(count, SIZE, seed=seed + 2), math.log(LOW) + math.log(HIGH / LOW) * uniform, xi


def gain(path: SmoothingPath, kind: str):
    """Denoisers ½ + gain·(u − ½) per mode: the Wiener filter, or one number for all modes (that of no smoothing)."""

    def denoise(u: Tensor, level: Tensor) -> Tensor:
        noise = (2 * level).exp()[:, None, None, None]
        exact = kind == "exact"
        signal = spectrum(SIZE) * path.kept(level, u).square() if exact else spectrum(SIZE).mean()
        return 0.5 + idct2(signal / (signal + noise) * dct2(u - 0.5))

    return denoise


def closed_form(path: SmoothingPath, kind: str) -> Tensor:
    """E of path and start over Gaussian images under an isotropic path, by Gauss–Legendre between the nodes."""
    nodes = path.levels
    x, weight = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(24))
    gap = nodes[1] - nodes[0]
    level = (nodes[:-1, None] + 0.5 * gap * (1 + x)).flatten()
    weight = (0.5 * gap * weight).repeat(len(nodes) - 1)
    rate, total = (v[:, None, None] for v in path.smoothing(level))
    noise = (2 * level).exp()[:, None, None]
    signal = spectrum(SIZE) * torch.exp(-2 * total * Z)
    known = signal if kind == "exact" else spectrum(SIZE).mean()
    g = known / (known + noise)
    error = (1 - g).square() * signal + g.square() * noise
    along = (weight[:, None, None] * (1 + rate * Z) / noise * error).sum()
    final = spectrum(SIZE) * torch.exp(-2 * path.smoothing(nodes[-1:])[1] * Z)
    return along + 0.5 * torch.log1p(final / HIGH**2).sum()


def gradient(value: Tensor, path: SmoothingPath) -> Tensor:
    (found,) = torch.autograd.grad(value, path.rate)
    return found


def test_the_smoothing_is_the_integral_of_its_rate():
    path = path_of(0.0, 0.3, 0.1, 0.4)
    fine = torch.linspace(math.log(LOW), math.log(HIGH), 30001, dtype=F64)
    rate, total = path.smoothing(fine)
    assert torch.allclose(torch.cumulative_trapezoid(rate, fine), total[1:], atol=1e-8)
    assert total[0] == 0
    assert torch.allclose(path.smoothing(path.levels)[0], path.rate)


def test_the_image_is_that_of_the_step_signal():
    """M and its drift as the tested process has them, of an image smoothed by its own edges, blurred or not."""
    for blur in (0.0, 1.5):
        made = anisodiff.process(
            "anisotropic-gentle", SIZE, diffusivity=0.7, drift_anisotropy=0.1, step=f"signal(windows=1, blur={blur})"
        )
        x0 = gaussian_images(5, SIZE, seed=1)
        frozen = made.step.freeze(made.equation, STENCILS["flux"], x0, 0)
        t = torch.linspace(0.2, 2.0, 5, dtype=F64)
        mean, drift = frozen.path(t)
        found, slope = path_of(0.0, 0.0, edge=0.1, blur=blur).smoothed(x0, 0.7 * t)
        assert torch.allclose(found, mean, atol=1e-5)
        assert torch.allclose(0.7 * slope, drift, atol=1e-5)


def test_the_rate_is_that_of_the_tested_bound():
    """With the noise of the reverse equation as `signal` has it, for a model that is wrong in score and drift."""
    made = anisodiff.process(
        "anisotropic-gentle", SIZE, diffusivity=0.7, drift_anisotropy=0.1, step="signal(windows=1)"
    )
    x0, count = gaussian_images(6, SIZE, seed=1), 6
    t = torch.linspace(0.3, 1.9, count, dtype=F64)
    pair = made.training_pair(x0, t, anisodiff.noise.KeyedNoise(keys(count)))
    statistics = made.estimate_statistics(gaussian_images(50, SIZE))

    class Wrong(ScoreModel):
        def score_and_drift(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            return -0.3 * z + 0.1, 0.2 * z.square()

    tables = {name: value.double() for name, value in vars(statistics).items()}
    model = Wrong(
        torch.nn.Identity(), made.equation, type(statistics)(**tables), drift=True, plain_noise=True,
        options=ModelOptions(),
    )  # fmt: skip
    assert isinstance(pair, TrainingPair)
    want = model.path_rate(pair, t)
    noise = made.step.noise  # q ∫α2²
    variance = torch.stack([noise(made.equation, when[None], x0)[0, 0] for when in t])
    level, alpha2 = 0.5 * variance.log(), made.equation.alpha2(t)
    speed = 0.5 * alpha2.square() / variance  # dη/dt
    # the levels of a path with a constant rate a dη = α1 dt holds at one time only: each sample has its own path
    for k in range(count):
        a = float(0.7 / speed[k])
        path = path_of(a, a, edge=0.1, reference=0.0)
        total = 0.7 * t[k : k + 1]

        def denoise(u: Tensor, level: Tensor, k: int = k) -> Tensor:
            score, drift = model.score_and_drift(model.to_coordinates(u), t[k : k + 1])
            return u + idct2(variance[k] * (score - drift / alpha2[k].square()))

        xi = (pair.state[k : k + 1] - path.smoothed(x0[k : k + 1], total)[0]) / variance[k].sqrt()
        point = path.point(x0[k : k + 1], level[k : k + 1], xi, smoothing=(torch.tensor([a], dtype=F64), total))
        assert torch.allclose(point.state, pair.state[k : k + 1], atol=1e-9)
        assert torch.allclose(point.nats(denoise(point.state, level)) * speed[k], want[k : k + 1], rtol=1e-4)


def test_gradients_are_those_of_finite_differences():
    """Rates over the levels, λ, ρ² and the reference, with common random numbers and a network in between."""
    path = path_of(0.2, 0.5, 0.1, edge=0.2, blur=0.8, reference=0.4)
    x0, level, xi = draws(64)
    network = torch.nn.Conv2d(1, 1, 3, padding=1, dtype=F64)
    with torch.no_grad():
        network.weight.normal_(std=0.2, generator=generator(5))

    def bound() -> Tensor:
        found = path.point(x0, level, xi)
        known = idct2(path.kept(level, x0) * dct2(found.state))
        start = path.start(x0, torch.full((1, SIZE, SIZE), 0.5, dtype=F64), spectrum(SIZE))
        return (found.nats(network(found.state) + known) + start).mean()

    names, values = zip(*path.named_parameters())
    assert set(names) == {"rate", "log_edge", "blur_variance", "reference"}
    for name, value, found in zip(names, values, torch.autograd.grad(bound(), values)):
        for index in range(value.numel()):
            with torch.no_grad():
                flat, step = value.view(-1), 1e-5
                flat[index] += step
                above = bound()
                flat[index] -= 2 * step
                below = bound()
                flat[index] += step
            want = (above - below) / (2 * step)
            assert float(found.view(-1)[index]) == pytest.approx(float(want), rel=1e-5, abs=1e-6), name
            assert abs(float(want)) > 1e-4, name


def test_at_no_smoothing_the_gradient_of_a_rate_is_there():
    """`ve` is a start, not a dead end; λ and ρ have nothing to act on."""
    path = path_of(0.0, 0.0, 0.0, edge=0.2, blur=0.5, reference=0.4)
    x0, level, xi = draws(64)
    point = path.point(x0, level, xi)
    found = torch.autograd.grad(point.nats(gain(path, "scalar")(point.state, level)).mean(), list(path.parameters()))
    slopes = dict(zip(dict(path.named_parameters()), found))
    assert (slopes["rate"].abs() > 0.01).all()
    assert slopes["log_edge"] == slopes["blur_variance"] == slopes["reference"] == 0


@pytest.mark.parametrize("rates", [(0.0, 0.0, 0.0), (0.3, 0.1, 0.5)])
def test_an_exact_denoiser_does_not_mind_the_path(rates):
    """Gaussian images, isotropic smoothing: the gradient is 0 in closed form, and within errors by sampling."""
    path = path_of(*rates)
    exact = closed_form(path, "exact")
    assert exact.item() == pytest.approx(float(0.5 * torch.log1p(spectrum(SIZE) / LOW**2).sum()), rel=1e-12)
    assert gradient(exact, path).abs().max() < 1e-10
    values, slopes = sampled(path, "exact")
    assert within(values, exact.item())
    for slope in slopes.unbind(1):
        assert within(slope, 0.0)
    errors = slopes.std(0) / COUNT**0.5
    assert (errors < 0.2 * gradient(closed_form(path, "scalar"), path)).all()  # what a limited denoiser has


@pytest.mark.parametrize("rates", [(0.0, 0.0, 0.0), (0.3, 0.1, 0.5)])
def test_a_limited_denoiser_does_and_has_the_gradient_of_its_closed_form(rates):
    """One gain for all modes: smoothing makes them less alike, and costs."""
    path = path_of(*rates)
    value = closed_form(path, "scalar")
    want = gradient(value, path)
    assert (want > 0).all()
    values, slopes = sampled(path, "scalar")
    assert within(values, value.item())
    for slope, expected in zip(slopes.unbind(1), want.tolist()):
        assert within(slope, expected)
        assert abs(expected) > 8 * slope.std() / len(slope) ** 0.5  # the sign is not in doubt


def test_a_reverse_equation_with_other_noise_costs_more():
    """λ = ∞, w̄ < 1, exact denoiser: ∫ Σ a²z²(1 − w̄)²/(4p) S/V dη more than the information, and nothing at a = 0."""
    rates, level = (0.6, 1.5, 0.5), torch.linspace(math.log(LOW), math.log(HIGH), 4001, dtype=F64)
    for reference in (0.0, 0.1):
        path = path_of(*rates, reference=reference)
        rate, total = (v[:, None, None].detach() for v in path.smoothing(level))
        signal = spectrum(SIZE) * torch.exp(-2 * total * Z)
        known = signal / (signal + (2 * level).exp()[:, None, None])
        more = (rate * Z * (1 - reference)).square() / (4 * (1 + rate * reference * Z)) * known
        price = float(torch.trapezoid(more.sum((-2, -1)), level))

        def exact(point: PathPoint, level: Tensor, path: SmoothingPath = path) -> Tensor:
            """E[Y | u]: that of M, and of Y as a multiple of M mode by mode."""
            rate, total = (v[:, None, None, None] for v in path.smoothing(level))
            signal, noise = spectrum(SIZE) * torch.exp(-2 * total * Z), (2 * level).exp()[:, None, None, None]
            ratio = 1 + 0.5 * rate * (1 - path.reference) * Z / (1 + rate * path.reference * Z)
            return 0.5 + idct2(ratio * signal / (signal + noise) * dct2(point.state - 0.5))

        x0, drawn, xi = draws(COUNT)
        point = path.point(x0, drawn, xi)
        along = path.span * point.nats(exact(point, drawn))
        information = 0.5 * torch.log1p(spectrum(SIZE) / LOW**2).sum() - 0.5 * torch.log1p(signal[-1] / HIGH**2).sum()
        assert price > 0.02 * information
        assert within(along, float(information) + price)
        assert not within(along, float(information))


def test_parameters_stay_where_they_mean_something():
    path = path_of(-0.1, 0.2, reference=1.4)
    with torch.no_grad():
        path.blur_variance.fill_(-1.0)
    path.project()
    assert torch.allclose(path.rate, torch.tensor([0.0, 0.2], dtype=F64))
    assert (float(path.blur_variance), float(path.reference)) == (0.0, 1.0)
    with pytest.raises(ValueError, match="nodes: got 1"):
        SmoothingPath(LOW, HIGH, nodes=1)


def sampled(path: SmoothingPath, kind: str) -> tuple[Tensor, Tensor]:
    """Values of the bound [N], and the gradient of each in the rates [N, nodes]."""
    x0, level, xi = draws(COUNT)
    mean = torch.full((1, SIZE, SIZE), 0.5, dtype=F64)

    def bound() -> Tensor:
        point = path.point(x0, level, xi)
        along = math.log(HIGH / LOW) * point.nats(gain(path, kind)(point.state, level))
        return along + path.start(x0, mean, spectrum(SIZE))

    return bound().detach(), per_sample_gradient(bound, path)


def per_sample_gradient(bound, path: SmoothingPath) -> Tensor:
    """By forward differentiation: one pass a node gives the slope of every sample."""
    columns = []
    for node in range(path.rate.numel()):
        tangent = torch.zeros_like(path.rate)
        tangent[node] = 1.0
        rate = path.rate.detach().clone()
        del path.rate
        with torch.autograd.forward_ad.dual_level():
            path.rate = torch.autograd.forward_ad.make_dual(rate, tangent)
            columns.append(torch.autograd.forward_ad.unpack_dual(bound()).tangent.detach().clone())
        del path.rate
        path.rate = torch.nn.Parameter(rate)
    return torch.stack(columns, 1)


def within(found: Tensor, want: float, errors: float = 4.5) -> bool:
    return bool((found.mean() - want).abs() < errors * found.std() / len(found) ** 0.5)
