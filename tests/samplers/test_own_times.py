"""The samplers of the baselines: their counts, their orders on Gaussian images, and what they leave of a spectrum."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import anisodiff
from anisodiff import Equation
from anisodiff.dct import dct2, idct2
from anisodiff.noise import KeyedNoise
from anisodiff.processes import ClosedForm
from anisodiff.registry import PROCESSES, build_sampler, default_sampler
from anisodiff.samplers.dopri5 import Dopri5
from anisodiff.samplers.posterior import posterior
from anisodiff.samplers.predictor_corrector import reverse_diffusion
from tests.support.baselines import exact_model
from tests.support.exact_score import Impulses, oracle
from tests.support.oracles import F64, at, gaussian_images, keys, spectrum

SIZE = 4
WIDE = {"lambda_min": 1e12, "lambda_max": 1e12}
VE = ClosedForm(equation=Equation(diffusivity=0.0, intensity="geometric(0.05, 5)", T=2.0))
OWN = {
    "heun": ("flow-matching", True),
    "midpoint": ("flow-matching", True),
    "dopri5": ("flow-matching", True),
    "deblurring": ("heat-dissipation", False),
    "posterior": ("edge-preserving", False),
}
"""Sampler → a process that it samples, and whether it is deterministic."""
BENT = ("heun", "midpoint")
"""Samplers with a grid to choose."""


def model_for(word: str, **overrides):
    """A model whose network counts its calls, and the sampler ``word`` for it."""
    if word == "pc":
        return oracle(VE.equation, channels=2, size=3, intervals=8), build_sampler("pc(norms=sample)", VE)
    process = anisodiff.process(OWN[word][0], SIZE, **overrides)
    return exact_model(process, SIZE), build_sampler(word, process)


def calls(model) -> int:
    return model.made if hasattr(model, "made") else model.network.calls


@pytest.mark.parametrize("word", ["pc", *OWN])
@pytest.mark.parametrize(("allowed", "t_max"), [(210, None), (125, 0.6)])
def test_contract(word, allowed, t_max):
    """Times end in 0; evaluations are those announced, or fewer where they adapt; a sample follows from its key."""
    model, chosen = model_for(word)
    chosen = chosen.within(allowed)
    times = chosen.times(model, allowed, t_min=0.01, t_max=t_max)
    assert times.dtype == F64
    first = 80 / 81 if word in BENT else model.T
    assert float(times[0]) == pytest.approx(first if t_max is None else t_max)
    assert float(times[-1]) == 0
    assert (times.diff() < 0).all()
    channels, size = (2, 3) if word == "pc" else (1, SIZE)
    start = 0.5 + 0.5 * torch.randn(6, channels, size, size, dtype=F64, generator=torch.Generator().manual_seed(2))
    seen: list[int] = []
    result = chosen.run(model, start, times, KeyedNoise(keys(6, 1)), callback=lambda i, u: seen.append(i))
    images = result.images
    assert images.isfinite().all()
    assert seen == list(range(len(times) - 1))
    if word == "dopri5":
        assert 6 < result.nfe <= calls(model) < allowed
    else:
        assert calls(model) == result.nfe == chosen.nfe(times) <= allowed
    alone = chosen.run(model, start[4:5], times, KeyedNoise(keys(6, 1)[4:5])).images
    torch.testing.assert_close(images[4:5], alone, rtol=0, atol=1e-9)
    other = chosen.run(model, start, times, KeyedNoise(keys(6, 2))).images
    assert torch.equal(images, other) == (word != "pc" and OWN[word][1])
    again = build_sampler(str(chosen), VE if word == "pc" else model.process)
    assert again == chosen


@pytest.mark.parametrize("word", ["pc", *OWN])
def test_options_of_other_samplers_are_refused(word):
    process = VE if word == "pc" else anisodiff.process(OWN[word][0])
    for option in ("corrector=0.1",) if word in BENT else ("corrector=0.1", "grid=level", "rho=3"):
        with pytest.raises(ValueError, match="own times"):
            build_sampler(f"{word}({option})", process)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("exponential", "flow-matching", "use 'heun', 'midpoint' or 'dopri5'"),
        ("euler", "edge-preserving", "use 'posterior'"),
        ("heun", "heat-dissipation", "use 'deblurring'"),
        ("heun", "ve", "use 'exponential', 'ode', "),
        ("pc", "heat", "noise without a drift"),
        ("pc", "anisotropic", "use 'exponential', 'ode', "),
        ("pc(norms=bach)", "ve", "unknown norms 'bach'; did you mean 'batch'"),
        ("heun(grid=levels)", "flow-matching", "did you mean 'level'"),
        ("heun(rho=0)", "flow-matching", "rho: got 0, expected a number from 1"),
        ("dopri5(tolerance=0)", "flow-matching", "tolerance: got 0, expected a number from 1e-14"),
        ("dopri5(most=1.5)", "flow-matching", "whole number"),
        ("deblurring(delta=2)", "heat-dissipation", "delta: got 2, expected a number from 0"),
        ("posterior(clip=3)", "edge-preserving", "true or false"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(text, name, says):
    with pytest.raises(ValueError, match=says):
        build_sampler(text, anisodiff.process(name, 8))


def test_too_few_evaluations_are_refused():
    model, chosen = model_for("deblurring")
    with pytest.raises(ValueError, match="expected at least 200"):
        chosen.times(model, 199, t_min=0.001)
    assert len(chosen.times(model, 60, t_min=0.001, t_max=0.3)) == 61
    with pytest.raises(ValueError, match="expected at least 2"):
        model_for("pc")[1].times(model_for("pc")[0], 1, t_min=0.1)
    model, _ = model_for("dopri5")
    start = torch.randn(1, 1, SIZE, SIZE, dtype=F64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="not done after 20 evaluations at tolerance 1e-05"):
        Dopri5(most=20).run(model, start, at(1.0, 0.0), None)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_default_sampler_of_a_model_fits_its_process(name):
    process = anisodiff.process(name, SIZE)
    model = exact_model(process, SIZE)
    assert default_sampler(type(model), process, model.provided).name == model.default_sampler


@pytest.mark.parametrize("word", ["heun", "midpoint", "dopri5"])
def test_a_network_may_overwrite_its_last_answer(word):
    """As a replayed one does: all evaluations of a step are kept."""
    model, chosen = model_for(word)
    start = torch.randn(3, 1, SIZE, SIZE, dtype=F64, generator=torch.Generator().manual_seed(0))
    times = chosen.times(model, 60, t_min=0.01)
    want = chosen.run(model, start, times, None).images
    place, answer = torch.zeros_like(start), model.network.forward
    model.network.forward = lambda *given, **keys: place.copy_(answer(*given, **keys))
    assert torch.equal(chosen.run(model, start, times, None).images, want)


def flow_error(text: str, nfe: int, sigma_min: float = 0.0) -> float:
    """Largest relative error per mode of the gain from the first time on, √(V(0)/V(t)), V = (1 − t)²4D + a²."""
    process = anisodiff.process("flow-matching", sigma_min=sigma_min)
    model, chosen = exact_model(process, SIZE), build_sampler(text, process).within(nfe)
    start = idct2(torch.eye(SIZE * SIZE, dtype=F64).reshape(-1, 1, SIZE, SIZE))
    times = chosen.times(model, nfe, t_min=1e-5)
    image = chosen.run(model, model.from_coordinates(start), times, None).images
    gain = dct2(model.to_coordinates(image)).reshape(SIZE**2, SIZE**2)
    power = 4 * spectrum(SIZE).flatten()
    noise = process.noise(times[0])
    want = ((power + sigma_min**2) / ((1 - times[0]) ** 2 * power + noise**2)).sqrt()
    assert float((gain - torch.diag(gain.diagonal())).abs().max()) < 1e-10
    return float((gain.diagonal() / want - 1).abs().max())


@pytest.mark.parametrize("word", BENT)
@pytest.mark.parametrize("grid", ["uniform", "level"])
def test_fixed_steps_have_order_two(word, grid):
    """At least: on straight paths to Gaussian noise the midpoint rule happens to have three."""
    text = f"{word}(grid={grid})"
    errors = [flow_error(text, n) for n in (128, 256, 512)]
    slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(1.7 < slope < (2.4 if word == "heun" else 3.4) for slope in slopes)
    assert flow_error(text, 512, sigma_min=0.1) < 0.02


@pytest.mark.parametrize("word", BENT)
def test_flow_matching_steps_where_it_was_trained(word):
    """Skewed: EDM's σ_i = (80^{1/7} + i/(n − 1)·(0.002^{1/7} − 80^{1/7}))^7, t = σ/(1 + σ), then 0. Uniform: even."""
    steps = 25
    sigma = [(80 ** (1 / 7) + i / (steps - 1) * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7 for i in range(steps)]
    for name, want in (
        ("flow-matching", [*(s / (1 + s) for s in sigma), 0.0]),
        ("flow-matching-uniform", [1 - k / steps for k in range(steps + 1)]),
    ):
        process = anisodiff.process(name, SIZE)
        model, chosen = exact_model(process, SIZE), build_sampler(word, process)
        torch.testing.assert_close(chosen.times(model, 2 * steps, t_min=1e-5), torch.tensor(want, dtype=F64))
        assert chosen.grid == {"skewed": "level", "uniform": "uniform"}[process.density]
    for t_max, nfe in ((1e-4, 12), (0.995, 12), (0.3, 2)):  # edits begin at t_max
        times = chosen.times(model, nfe, t_min=1e-5, t_max=t_max)
        assert float(times[0]) == pytest.approx(t_max)
        assert (times.diff() < 0).all()


def test_adapted_steps_keep_their_tolerance():
    """The error follows the tolerance, and is far below that of fixed steps at equal evaluations."""
    errors = {tol: flow_error(f"dopri5(tolerance={tol:g})", 5000) for tol in (1e-3, 1e-5, 1e-7)}
    assert errors[1e-3] < 0.1
    assert errors[1e-5] < 0.03 * errors[1e-3]
    assert errors[1e-7] < 0.03 * errors[1e-5]
    process = anisodiff.process("flow-matching")
    model, chosen = exact_model(process, SIZE), Dopri5(tolerance=1e-5)
    start = 0.5 + 0.5 * torch.randn(20, 1, SIZE, SIZE, dtype=F64, generator=torch.Generator().manual_seed(0))
    result = chosen.run(model, start, at(1.0, 0.6, 0.0), None)
    fine = result.images
    exact = ((4 * spectrum(SIZE)).sqrt() * dct2(2 * start - 1)).flatten(1)
    assert float((dct2(2 * fine - 1).flatten(1) - exact).abs().max()) < 1e-3
    assert result.nfe < 120
    assert result.nfe != round(result.nfe)  # a mean over samples, each with its own steps


def test_a_state_may_be_moved_between_adapted_steps():
    """As a mask does: what follows is the way of the new state, though the solver remembers its last velocity."""
    model, chosen = exact_model(anisodiff.process("flow-matching"), SIZE), Dopri5(tolerance=1e-7)
    z = torch.randn(2, 1, SIZE, SIZE, dtype=F64, generator=torch.Generator().manual_seed(0))
    memory = {}
    moved = chosen.step(model, z, at(1.0), at(0.5), None, memory) + 0.3
    onward, afresh = (chosen.step(model, moved, at(0.5), at(0.0), None, m) for m in (memory, {}))
    torch.testing.assert_close(onward, afresh, rtol=0, atol=1e-5)


def spread_of(model, chosen, times: Tensor, start: Tensor, draws: int) -> Tensor:
    """Exact variance per DCT mode [H, W] of the images, for a sampler that is linear about ½ in start and noise.

    ``start``: variance per mode of the first state, which has no correlations.
    """
    count = SIZE * SIZE
    first = torch.diag(start.flatten().sqrt()).reshape(-1, 1, SIZE, SIZE)
    begin = torch.cat([idct2(first), torch.zeros(draws * count, 1, SIZE, SIZE, dtype=F64)]) + 0.5
    images = chosen.run(model, begin, times, Impulses(len(begin), count)).images
    return dct2(images - 0.5).square().sum((0, 1))


def test_heat_dissipation_reproduces_the_spectrum_with_the_right_noise():
    """The sampler's variance is that of its recursion P' = g²P + δ², exactly. The posterior of Gaussian images has
    variance σ²(1 + B'²D/V), up to 2σ² where an image is seen: δ = √2σ keeps all power, δ = 1.25σ loses a part.
    """
    process = anisodiff.process("heat-dissipation", SIZE, levels=60)
    model, power, ratio = exact_model(process, SIZE), spectrum(SIZE), {}
    like = torch.zeros(61, 1, SIZE, SIZE, dtype=F64)
    decay = process.decay(torch.arange(61, dtype=F64) / 60, like)[:, 0]
    for delta in (0.0125, 0.01 * math.sqrt(2)):
        chosen = build_sampler(f"deblurring(delta={delta})", process)
        times = chosen.times(model, 60, t_min=0.001)
        start = decay[60] ** 2 * power + process.noise**2
        want = start
        for k in range(60, 0, -1):
            gain = decay[k] * decay[k - 1] * power / (decay[k] ** 2 * power + process.noise**2)
            want = gain**2 * want + (delta**2 if k > 1 else 0)
        found = spread_of(model, chosen, times, start, draws=60)
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-15)
        ratio[delta] = found / power
    seen = power > 100 * process.noise**2
    assert int(seen.sum()) >= 3
    assert 0.95 < ratio[0.01 * math.sqrt(2)][seen].min() <= ratio[0.01 * math.sqrt(2)][seen].max() < 1.02
    assert 0.6 < ratio[0.0125][seen].min() < 0.95


def test_posterior_of_isotropic_noise_is_the_ancestral_step():
    """Ho et al. 2020, Eq. 7, for neighboring levels; and the image itself at level 0."""
    process = anisodiff.process("edge-preserving", **WIDE)
    z, image = (gaussian_images(2, SIZE, seed=s) for s in (1, 2))
    k, t = 300, at(0.4)
    beta = torch.linspace(1e-4, 0.02, 750, dtype=F64)
    kept = torch.cumprod(1 - beta, 0)
    now, below, b = kept[k - 1], kept[k - 2], beta[k - 1]
    mean, variance = posterior(process, z, image, t, at((k - 1) / 750))
    want = below.sqrt() * b / (1 - now) * image + (1 - b).sqrt() * (1 - below) / (1 - now) * z
    torch.testing.assert_close(mean, want, rtol=1e-8, atol=1e-10)
    assert float(variance.mean()) == pytest.approx(float((1 - below) / (1 - now) * b), rel=1e-8)
    mean, variance = posterior(process, z, image, t, at(0.0))
    torch.testing.assert_close(mean, image)
    assert float(variance.abs().max()) == 0


def test_posterior_is_that_of_the_chain():
    """Mean and variance from the joint Gaussian of (z_s, z_t) given an image with edges, at every pixel."""
    process = anisodiff.process("edge-preserving", lambda_min=0.01)
    image = torch.rand(1, 1, SIZE, SIZE, dtype=F64, generator=torch.Generator().manual_seed(3)) * 2 - 1
    edges, s, t, z = process.edges(image), at(0.2), at(0.31), gaussian_images(1, SIZE)
    var_s, var_t = (process.scale(edges, x).square() for x in (s, t))
    gain = (process.signal_power(t) / process.signal_power(s)).sqrt()
    gap = z - process.signal_power(t).sqrt() * image
    mean, variance = posterior(process, z, image, t, s)
    torch.testing.assert_close(mean, process.signal_power(s).sqrt() * image + gain * var_s / var_t * gap)
    torch.testing.assert_close(variance, var_s - gain**2 * var_s**2 / var_t)
    assert float(variance.max() / variance.min()) > 2


def test_posterior_sampler_converges_to_the_spectrum():
    """Isotropic, exact network: first order in the number of levels used."""
    process = anisodiff.process("edge-preserving", levels=500, **WIDE)
    model, chosen, power = exact_model(process, SIZE), build_sampler("posterior", process), spectrum(SIZE)
    kept = process.signal_power(at(1.0))
    start = kept * power + 0.25 * (1 - kept)
    errors = []
    for steps in (50, 100, 200):
        found = spread_of(model, chosen, chosen.times(model, steps, t_min=1e-5), start, draws=steps)
        errors.append((1 - found / power).flatten()[:2])
    for a, b in itertools.pairwise(errors):
        assert (a > 1.6 * b).all()
        assert (a < 2.2 * b).all()
    assert float(errors[-1].max()) < 0.07


def test_predictor_corrector_has_songs_times_and_formulas():
    """2N evaluations on a geometric grid of the noise a state has, from all of it to σ = 0.01 or t_min's, then 0."""
    process = anisodiff.process("ve")
    model, chosen = oracle(process.equation, intervals=8), build_sampler("pc", process)
    times = chosen.times(model, 2000, t_min=0.02)
    assert len(times) == 1001
    sigma = process.variance(torch.zeros(1000, 1, 3, 3, dtype=F64), 0.0, times[:-1])[:, 0, 0, 0].sqrt()
    assert float(sigma[0]) == pytest.approx(50, rel=1e-6)
    assert float(sigma[-1]) == pytest.approx(0.01, rel=1e-6)
    steps = sigma.log().diff()
    torch.testing.assert_close(steps, steps.mean().expand_as(steps), rtol=1e-5, atol=0)
    z, t, after = torch.randn(3, 1, 3, 3, dtype=F64, generator=torch.Generator().manual_seed(0)), at(1.2), at(1.1)
    c = model.coefficients(t)
    score = -z / c.power + c.scale * model.residuals(z, c)[0]
    gained = process.variance(z, 1.1, 1.2)
    xi = KeyedNoise(keys(3, 1)).normal(z)
    found = reverse_diffusion(model, z, t, after, KeyedNoise(keys(3, 1)))
    torch.testing.assert_close(found, z + gained * score + gained.sqrt() * xi, rtol=1e-6, atol=1e-8)
    last = reverse_diffusion(model, z, t, at(0.0), KeyedNoise(keys(3, 1)))
    torch.testing.assert_close(last, z + process.variance(z, 0.0, 1.2) * score, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("nfe", "norms", "tolerance"), [(40, "sample", 0.35), (240, "sample", 0.12), (240, "batch", 0.06)]
)
def test_predictor_corrector_on_a_gaussian(nfe, norms, tolerance):
    """Mean variance of the images over all directions of 72, in units of that of E[x0 | u] at the last level; 1500
    samples: standard error 0.4%. Fewer steps are further off; the corrector's own bias is (1 + 2/72)² − 1 = 6% with
    norms of each sample. With those of the batch there is next to none: the step hardly depends on state and noise.
    """
    model, chosen = (
        oracle(VE.equation, channels=8, intervals=8),
        build_sampler(f"pc(sigma_min=0.05, norms={norms})", VE),
    )
    mean, covariance = model.law.at(2.0)
    xi = torch.randn(1500, len(mean), dtype=F64, generator=torch.Generator().manual_seed(1))
    start = idct2((mean + xi @ torch.linalg.cholesky(covariance).mT).reshape(-1, *model.law.shape)) + 0.5
    times = chosen.times(model, nfe, t_min=0.02)
    images = chosen.run(model, start, times, KeyedNoise(keys(1500, 4))).images
    center, spread = model.law.images(float(times[-2]))
    gap = dct2(images - 0.5).flatten(1) - center
    width = float((gap * torch.linalg.solve(spread, gap.mT).mT).sum(1).mean() / len(mean))
    assert width == pytest.approx(1, abs=tolerance)
