"""The bound of a path against exact likelihoods."""

import math

import pytest
import torch
from torch import Tensor

import anisodiff
from anisodiff.dct import dct2, frequencies
from anisodiff.gaussian_kernel import decay, variance
from anisodiff.noise import KeyedNoise
from anisodiff.path_bound import PathBound, byte_probability, last_time, path_times
from anisodiff.priors import GaussianPrior
from anisodiff.stencils import STENCILS
from anisodiff.stencils.flux import apply_edges
from tests.support.exact_bound import SIZE, ExactModel, MixtureModel, bytes_of, exact_prior
from tests.support.oracles import F64, at, gaussian_images, generator, keys, spectrum

T_MIN, COUNT = 0.05, 3000
LINEAR = {
    "ve": ("ve", {"sigma_max": 5.0}),
    "heat": ("heat", {"diffusivity": "geometric(0.5, 6)"}),
    "correlated noise": ("heat", {"diffusivity": "geometric(0.5, 6)", "correlation_length": 1.0}),
}


def process(name: str):
    kind, given = LINEAR[name]
    return anisodiff.process(kind, SIZE, **given)


def bound_of(model: ExactModel, **options) -> PathBound:
    given = {"prior": exact_prior(model), "t_min": T_MIN} | options
    return PathBound(process=model.process, model=model, **given)


def within(found: Tensor, want: float | Tensor, errors: float = 4.5) -> bool:
    """The mean of independent values is what it should be, by their standard error; that error is small."""
    error = found.std() / len(found) ** 0.5
    return bool((found.mean() - want).abs() < errors * error)


@pytest.mark.parametrize("name", LINEAR)
def test_path_and_prior_are_the_divergence_at_the_end_of_the_path(name):
    """Exact score, drift a function of the state: KL(q(u_tmin | x0) ‖ p_tmin) for every image by itself."""
    model = ExactModel(process(name))
    bound = bound_of(model)
    for x0 in gaussian_images(2, SIZE, seed=5):
        same = x0.expand(COUNT, 1, -1, -1)
        found = bound.path(same, keys(COUNT)) + bound.start(same, keys(COUNT))
        signal, noise = (x[0, 0] for x in model.powers(at(T_MIN)))
        mean = dct2(x0 - 0.5)[0] * (signal / spectrum(SIZE)).sqrt()
        power = signal + noise
        want = 0.5 * ((noise + mean.square()) / power - 1 + (power / noise).log()).sum()
        assert within(found, want)
        assert found.std() / COUNT**0.5 < 0.01 * want


@pytest.mark.parametrize("name", LINEAR)
def test_a_wrong_score_costs_its_squared_error(name):
    """Scaled by 1.1: ½ ∫ α2² q·0.01/V dt more, on average over images; the difference is paired."""
    exact, wrong = (ExactModel(process(name), gain) for gain in (1.0, 1.1))
    x0 = gaussian_images(COUNT, SIZE, seed=6)
    found = bound_of(wrong).path(x0, keys(COUNT)) - bound_of(exact).path(x0, keys(COUNT))
    t = torch.linspace(T_MIN, exact.T, 4001, dtype=F64)
    signal, noise = exact.powers(t)
    color = torch.ones(SIZE, SIZE, dtype=F64)
    if length := exact.equation.correlation_length:
        color = torch.exp(-0.5 * length**2 * frequencies(SIZE, SIZE, F64, t.device))
        color = color / color.mean()
    rate = 0.5 * exact.equation.alpha2(t).square() * (0.01 * color / (signal + noise)).sum((-3, -2, -1))
    assert within(found, torch.trapezoid(rate, t))
    assert found.mean() > 10 * found.std() / COUNT**0.5


def test_a_path_that_knows_its_image_costs_more_than_its_states():
    """`signal` with λ = ∞: ½ ∫ (α1 z + α2²/N)² Var(m | u)/α2² dt, which is more than the information at t_min."""
    made = anisodiff.process("heat", SIZE, diffusivity=2.0, intensity="geometric(0.05, 2)", step="signal(windows=4)")
    model = ExactModel(made)
    x0, bound = gaussian_images(COUNT, SIZE, seed=7), bound_of(model)
    t = torch.linspace(T_MIN, model.T, 4001, dtype=F64)
    signal, noise = model.powers(t)
    alpha1, alpha2 = (x[:, None, None, None] for x in (model.equation.alpha1(t), model.equation.alpha2(t)))
    pull = alpha1 * frequencies(SIZE, SIZE, F64, t.device) + alpha2.square() / noise
    rate = 0.5 * (pull / alpha2).square() * signal * noise / (signal + noise)
    path = torch.trapezoid(rate.sum((-3, -2, -1)), t)
    known = 0.5 * torch.log1p(signal / noise).sum((-3, -2, -1))
    found = bound.path(x0, keys(COUNT)), bound.start(x0, keys(COUNT))
    assert within(found[0], path)
    assert within(found[1], known[-1])
    drift = (alpha1 * frequencies(SIZE, SIZE, F64, t.device) / alpha2).square() * signal * noise / (signal + noise)
    price = torch.trapezoid(0.5 * drift.sum((-3, -2, -1)), t)  # ½ ∫ E‖b − E[b | u]‖²/α2² dt
    assert price > 0.05 * known[0]
    assert float(path + known[-1]) == pytest.approx(float(known[0] + price), rel=1e-4)


def test_two_images_under_a_frozen_operator():
    """One window, λ < ∞: path and prior are KL(q(u_tmin | x0) ‖ p_tmin) + ½ ∫ E‖b − E[b | u_t]‖²/α2² dt.

    Two images, equally likely, and the exact model: score and drift are means over which image it was.
    """
    made = anisodiff.process(
        "anisotropic", SIZE, step="exponential(windows=1)", diffusivity=2.0, intensity="geometric(0.2, 2)",
        drift_anisotropy=0.2,
    )  # fmt: skip
    atoms = 0.5 + 0.6 * (gaussian_images(2, SIZE, seed=12) - 0.5)
    laws = []
    for image in atoms:  # mean and covariance over time, from the operator as a matrix
        frozen = made.step.freeze(made.equation, STENCILS["flux"], image[None], 0)
        pixels = torch.eye(SIZE**2, dtype=F64).reshape(-1, 1, SIZE, SIZE)
        laws.append((image.flatten(), *torch.linalg.eigh(-apply_edges(frozen.weights, pixels).flatten(1))))

    class Two(ExactModel):
        def parts(self, u: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """ln density [B, 2], score and drift [B, 2, D] of states in pixels, given each image."""
            found = []
            for image, values, basis in laws:
                power, kept = (
                    f(self.equation, torch.zeros_like(t), t, values.clamp(min=0)) for f in (variance, decay)
                )
                off, own = (u @ basis - kept * (image @ basis)), u @ basis
                density = -0.5 * (off.square() / power + power.log() + math.log(2 * math.pi)).sum(1)
                rate = self.equation.alpha1(t)[:, None] * values
                found.append((density, -(off / power) @ basis.mT, -(rate * own) @ basis.mT))
            return tuple(torch.stack(x, 1) for x in zip(*found))

        def score_and_drift(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            density, *both = self.parts(self.from_coordinates(z).flatten(1), t)
            means = (torch.einsum("bn,bnd->bd", density.softmax(1), x).reshape(z.shape) for x in both)
            score, drift = (self.modes(x) for x in means)
            return score, drift

    model, count = Two(made), 2000
    prior = GaussianPrior(dct2(atoms.mean(0)), torch.full((SIZE, SIZE, 1, 1), 1.5, dtype=F64))
    bound = bound_of(model, prior=prior)
    x0 = atoms[:1].expand(count, -1, -1, -1)

    def divergence(t: float) -> Tensor:
        """ln q(u_t | x0) − ln p_t(u_t), [B]."""
        u = made.draw(x0, t, KeyedNoise(keys(count, seed=3)))
        density = model.parts(u.flatten(1), at(t).expand(count))[0]
        return density[:, 0] - (density.logsumexp(1) - math.log(2))

    price = torch.zeros(count, dtype=F64)
    for k in range(8):  # the drift alone, at times of its own
        t, span = bound.times.at((KeyedNoise(keys(count, seed=4)).uniform() + k) / 8)
        pair = made.training_pair(x0, t, KeyedNoise(keys(count, seed=5 + k)))
        drift = model.score_and_drift(model.to_coordinates(pair.state), t)[1]
        off = (model.modes(pair.drift) - drift) / model.equation.alpha2(t)[:, None, None, None]
        price += 0.5 * span * off.square().sum((-3, -2, -1)) / 8
    found, end = bound.path(x0, keys(count)), divergence(model.T)
    want = divergence(T_MIN) - end + price  # the path alone: its end at T is not the prior's affair
    gap = found - want
    assert abs(gap.mean()) < 4.5 * gap.std() / count**0.5
    assert gap.std() / count**0.5 < 0.1 * found.mean()
    assert price.mean() > 4.5 * price.std() / count**0.5


def test_a_mixture_by_numerical_integration():
    """KL(N(y, σ²) ‖ mixture at σ) along one mode, by quadrature; the other modes cost nothing."""
    model = MixtureModel(process("ve"))
    mean = dct2(torch.full((1, SIZE, SIZE), 0.5, dtype=F64))
    _, noise = model.powers(at(model.T))
    root = noise[0, 0].sqrt()[:, :, None, None].clone()
    bound = bound_of(model, prior=GaussianPrior(mean, root))
    y = torch.linspace(-40, 40, 100001, dtype=F64)
    for value in (-0.8, 0.1):
        modes = torch.zeros(COUNT, 1, SIZE, SIZE, dtype=F64)
        modes[..., 0, 1] = value
        x0 = 0.5 + anisodiff.dct.idct2(modes)
        found = bound.path(x0, keys(COUNT)) + bound.start(x0, keys(COUNT))

        def divergence(t: float, log_density: Tensor, value: float = value) -> Tensor:
            spread = model.powers(at(t))[1][0, 0, 0, 1]
            own = -0.5 * (y - value).square() / spread - 0.5 * (2 * torch.pi * spread).log()
            return torch.trapezoid(own.exp() * (own - log_density), y)

        variance = noise[0, 0, 0, 1]
        prior = -0.5 * y.square() / variance - 0.5 * (2 * torch.pi * variance).log()
        start = divergence(model.T, prior)  # the prior is not the law of U_T: its divergence takes the place
        end = divergence(model.T, model.log_density(y, variance.expand_as(y)))
        low = model.powers(at(T_MIN))[1][0, 0, 0, 1]
        want = divergence(T_MIN, model.log_density(y, low.expand_as(y))) + start - end
        assert within(found, want)
        assert found.std() / COUNT**0.5 < 0.05 * want


def test_probabilities_of_bytes_add_up():
    values = torch.linspace(0, 1, 256, dtype=F64)
    for mean in (-0.3, 0.0, 0.4321, 1.2):
        for width in (1e-4, 0.003, 0.1, 10.0):
            total = byte_probability(values, torch.full_like(values, mean), width).logsumexp(0)
            assert float(total) == pytest.approx(0, abs=1e-9)
    far = byte_probability(at(1.0, 0.9), at(0.0, 0.0), 0.003)  # 300 and more standard deviations
    assert far.isfinite().all()
    assert far[0] == pytest.approx(-0.5 * ((1 - 0.5 / 255) / 0.003) ** 2, rel=1e-3)


@pytest.mark.parametrize(("levels", "t_min", "most"), [(2, 0.01, 1e-6), (16, 0.0005, 1e-3)])
def test_the_bound_is_tight_where_little_noise_is_left(levels, t_min, most):
    """Few images, all equally likely: ln(number of images), with the exact score, as the noise at t_min vanishes."""
    atoms = bytes_of(torch.randn(12, 1, SIZE, SIZE, generator=generator(3), dtype=F64), levels)

    class Atoms(ExactModel):
        def powers(self, t: Tensor) -> tuple[Tensor, Tensor]:
            variance = 1e-4 * torch.expm1(2 * math.log(5000) / self.T * t)  # of `ve`, 0.01 to 50
            return torch.zeros(1, 1, 1, 1), variance[:, None, None, None].expand(-1, 1, SIZE, SIZE)

        def expected(self, z: Tensor, t: Tensor) -> Tensor:
            _, noise = self.powers(t)
            images = self.to_coordinates(atoms)
            near = -0.5 * ((z[:, None] - images).square() / noise[:, None]).sum((-3, -2, -1))
            return torch.einsum("bn,nchw->bchw", near.softmax(1), images)

        def score_and_drift(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            return (self.expected(z, t) - z) / self.powers(t)[1], torch.zeros_like(z)

        def denoised(self, z: Tensor, t: Tensor) -> Tensor:
            return self.from_coordinates(self.expected(z, t))

    model = Atoms(anisodiff.process("ve", SIZE, sigma_max=50.0))
    power = model.powers(at(model.T))[1][0, 0] + dct2(atoms - 0.5).square().mean((0, 1))
    prior = GaussianPrior(dct2(atoms.mean(0)), power.sqrt()[:, :, None, None])
    x0 = atoms.repeat(300, 1, 1, 1)
    found = bound_of(model, prior=prior, t_min=t_min, levels=levels, count=16).terms(x0, keys(3600))
    assert within(found.total, math.log(12) + 5e-4)  # the prior is no mixture: its share is below 1e-3
    assert found.total.std() / 3600**0.5 < 0.08
    assert 0 <= found.last.mean() < most
    early = bound_of(model, prior=prior, t_min=0.5, levels=levels, count=16).terms(x0, keys(3600))
    assert early.total.mean() > math.log(12) + 0.1


def test_finer_bins_cost_their_number():
    """Where noise is wide against a bin, twice as many bins are ln 2 more for every number, and nothing else."""
    model = ExactModel(process("ve"))
    x0 = 0.5 + 0.1 * (gaussian_images(COUNT, SIZE, seed=8) - 0.5)
    found = []
    for levels in (257, 513):
        rounded = (x0 * (levels - 1)).round() / (levels - 1)
        found.append(bound_of(model, t_min=0.4, levels=levels).last(rounded, keys(COUNT)))
    gap = (found[1] - found[0]) / SIZE**2
    assert float(gap.mean()) == pytest.approx(math.log(2), abs=0.002)


def test_gaussian_images_in_fine_bins():
    """The whole bound exceeds the cross entropy by the last step alone: one width for all modes of E[x0 | u].

    The gap: ½ ln of mean over geometric mean of the posterior variances, and the mixture of widths, ln 49 at most.
    """
    made, levels, t_min = process("ve"), 4097, 0.3
    model = ExactModel(made)
    x0 = 0.5 + 0.1 * (gaussian_images(COUNT, SIZE, seed=9) - 0.5)  # in [0, 1]; the model pays for expecting more
    rounded = (x0 * (levels - 1)).round() / (levels - 1)
    found = bound_of(model, t_min=t_min, levels=levels).terms(rounded, keys(COUNT)).total
    modes, power = dct2(rounded - 0.5), spectrum(SIZE)
    exact = 0.5 * (modes.square() / power + (2 * torch.pi * power).log()).sum((-3, -2, -1))
    exact = exact + SIZE**2 * math.log(levels - 1)
    gap = (found - exact).mean()
    signal, noise = (x[0, 0] for x in model.powers(at(t_min)))
    posterior = signal * noise / (signal + noise)
    uneven = 0.5 * SIZE**2 * (posterior.mean() / posterior.log().mean().exp()).log()
    assert uneven - 0.5 < gap < uneven + math.log(49) + 0.5


def test_the_last_time_leaves_the_noise_of_one_bin():
    model = ExactModel(process("ve"))
    t = last_time(model, 1e-3)
    assert float(model.powers(at(t))[1].mean().sqrt()) == pytest.approx(1 / 255, rel=0.1)
    assert last_time(model, 0.5) == 0.5  # the model knows no earlier time


def test_times_are_even_in_information():
    model = ExactModel(process("ve"))
    times = path_times(model, T_MIN)
    uniform = (torch.arange(100000, dtype=F64) + 0.5) / 100000
    t, span = times.at(uniform)
    assert (t.diff() > 0).all()
    assert t[0] >= T_MIN
    assert t[-1] <= model.T
    assert float(span.mean()) == pytest.approx(model.T - T_MIN, rel=1e-4)  # ∫ dt
    assert float((span * t).mean()) == pytest.approx(0.5 * (model.T**2 - T_MIN**2), rel=1e-4)
