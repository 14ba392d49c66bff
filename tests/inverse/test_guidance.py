"""Models given a measurement, against exact Gaussian posteriors.

With images N(μ, D), D diagonal in the DCT, and a process that is linear per frequency, the law of every state given y
is Gaussian and known: scores are compared with it, and so are mean and covariance of what samplers make, exactly
(one impulse a sample, as in `tests/support/exact_score.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import anisodiff
from anisodiff.dct import dct2, idct2
from anisodiff.inverse import METHODS, Measurement, condition_on_measurement, read_operator
from anisodiff.inverse.guidance import DPS, PiGDM
from anisodiff.models.base import Model
from anisodiff.models.score import ScoreModel
from anisodiff.noise import KeyedNoise
from anisodiff.processes import EdgePreserving, FlowMatching, HeatDissipation
from anisodiff.registry import build_sampler
from anisodiff.runtime.cuda_graphs import Replayed
from tests.support.baselines import exact_model
from tests.support.exact_score import Impulses, gaps
from tests.support.oracles import F64, at, gaussian_images, keys, spectrum
from tests.support.score_models import T_MIN, small_model, wiener_model

SIZE = 4
OPERATORS = ("inpainting(hole=2)", "super-resolution(factor=2)", "deblurring(width=0.7)", "colorization")


@functools.cache
def model(name: str, *, pca: bool = False) -> ScoreModel:
    """The exact score of Gaussian images with the power that the statistics say, three channels."""
    images = gaussian_images(200, SIZE, channels=3)
    images[:, 1] = 0.7 * images[:, 0] + 0.3 * images[:, 1]
    return wiener_model(anisodiff.process(name, SIZE), images.float(), channel_pca=pca).double()


class Posterior:
    """The law of states u_t of ``of`` given y, in DCT coordinates about the channel means; vectors of D numbers."""

    def __init__(self, of: ScoreModel, text: str, noise: float) -> None:
        operator = read_operator(text)
        self.of, self.shape = of, (3, SIZE, SIZE)
        count = 3 * SIZE * SIZE
        units = torch.eye(count, dtype=F64).reshape(count, *self.shape)
        self.a = operator.apply(of.field(units)).flatten(1).mT  # of coordinates of the image
        self.prior = (of.statistics.data.double() * of.statistics.shares.double()).expand(self.shape).flatten()
        g = torch.Generator().manual_seed(7)
        truth = of.from_coordinates(
            (self.prior.sqrt() * torch.randn(count, dtype=F64, generator=g)).reshape(1, *self.shape)
        )
        clean = operator.apply(truth)
        y = clean + noise * torch.randn(clean.shape, dtype=F64, generator=g)
        self.given = Measurement(operator=operator, values=y, noise=noise)
        away = (y - operator.apply(of.from_coordinates(torch.zeros_like(truth)))).flatten()
        gain = (
            self.prior[:, None]
            * self.a.mT
            @ torch.linalg.inv(self.a * self.prior @ self.a.mT + noise**2 * torch.eye(len(self.a), dtype=F64))
        )
        self.mean, self.covariance = gain @ away, torch.diag(self.prior) - gain @ self.a * self.prior

    def state(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance of û_t given y: û = √(S/D) x̂ + noise of power N."""
        c = self.of.coefficients(t)
        kept, noise = (x.expand(1, *self.shape).flatten() for x in (c.kept.sqrt(), c.noise))
        return kept * self.mean, kept[:, None] * self.covariance * kept + torch.diag(noise)

    def batch(self, count: int) -> Measurement:
        """The same measurement for every state."""
        y = self.given.values
        return dataclasses.replace(self.given, values=y.expand(count, *y.shape[1:]))


@pytest.mark.parametrize("text", OPERATORS)
@pytest.mark.parametrize(("name", "pca"), [("ve", False), ("ve", True), ("heat", False)])
def test_the_score_is_exact_for_gaussian_images(name: str, pca: bool, text: str) -> None:
    of, noise = model(name, pca=pca), 0.05
    exact = Posterior(of, text, noise)
    z = torch.randn(5, *exact.shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    guided = condition_on_measurement(of, exact.batch(5), PiGDM())
    assert isinstance(guided, ScoreModel)
    for t in (0.02, 0.1, 0.3):
        assert float(of.coefficients(at(t)).kept.min()) > 0.05  # x̂ is raised fully
        mean, covariance = exact.state(at(t))
        score = -torch.linalg.solve(covariance, (z.flatten(1) - mean).mT).mT.reshape(z.shape)
        found = guided.score(z, at(t))
        torch.testing.assert_close(found, score, rtol=1e-5, atol=1e-5 * float(score.abs().max()))
        image = guided.denoised(z, at(t))  # E[x0 | u, y]
        c = of.coefficients(at(t))
        expected = of.from_coordinates((z + c.noise * score) / c.kept.sqrt())
        torch.testing.assert_close(image, expected, rtol=1e-5, atol=1e-5)


def propagated(exact: Posterior, guided: ScoreModel, sampler: Any, times: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the state at the last time, started in the exact law."""
    mean, covariance = exact.state(times[:1])
    count, draws = len(mean), 0 if sampler.name in ("ode", "multistep") else len(times) - 1
    start = mean + torch.cat([torch.zeros(1, count), torch.linalg.cholesky(covariance).mT, torch.zeros(draws * count, count)])  # noqa: E501  # fmt: skip
    states: list[Tensor] = []
    first = exact.of.from_coordinates(start.reshape(-1, *exact.shape))
    sampler.run(guided, first, times, Impulses(len(start), count + 1), callback=lambda i, u: states.append(u))
    modes = exact.of.to_coordinates(states[-1]).flatten(1)
    rows = modes[1:] - modes[0]
    return modes[0], rows.mT @ rows


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        # limits: root mean square over all directions of the error of mean and covariance, in units of the posterior
        ("exponential", "super-resolution(factor=2)", 0.02),
        ("ode", "colorization", 0.005),
        ("multistep", "inpainting(hole=2)", 0.02),
        ("ancestral", "deblurring(width=0.7)", 0.2),
    ],
)
def test_samples_have_mean_and_covariance_of_the_posterior(name: str, text: str, limit: float) -> None:
    of = model("ve")
    exact = Posterior(of, text, 0.05)
    chosen = build_sampler(name, anisodiff.process("ve", SIZE))
    errors = []
    for steps in (20, 40):
        times = chosen.times(of, steps * chosen.cost + 1, t_min=T_MIN)
        count = 49 if name in ("ode", "multistep") else 1 + 48 * len(times)
        guided = condition_on_measurement(of, exact.batch(count), PiGDM())
        assert isinstance(guided, ScoreModel)
        errors.append(max(gaps(propagated(exact, guided, chosen, times), exact.state(times[-1:]))))
    assert errors[1] < limit
    assert errors[1] < 0.7 * errors[0]  # it is the size of the steps that is left


def exact_conditional(process: FlowMatching | EdgePreserving) -> Model:
    """The exact network, and statistics that are those of the law, not of a few images."""
    found, power = exact_model(process, SIZE), spectrum(SIZE)
    kept = process.signal_power(found.statistics.phases)[:, None, None] * power
    found.statistics_log_signal, found.statistics_data = kept.clamp(min=1e-300).log()[None], power
    return found


@pytest.mark.parametrize(
    "process", [FlowMatching(), FlowMatching(sigma_min=0.05), EdgePreserving(lambda_min=1e9, lambda_max=1e9)], ids=str
)
@pytest.mark.parametrize("text", OPERATORS[:3])
def test_velocity_and_noise_are_exact_for_gaussian_images(process: Any, text: str) -> None:
    """E[z0 | z, y] is what `denoised` says, as by conditioning of Gaussians with dense matrices."""
    of, operator, noise, power = exact_conditional(process), read_operator(text), 0.05, spectrum(SIZE).flatten()
    g = torch.Generator().manual_seed(3)
    y = operator.apply(0.5 + idct2(spectrum(SIZE).sqrt() * torch.randn(1, 1, SIZE, SIZE, dtype=F64, generator=g)))
    count = SIZE * SIZE
    a = operator.apply(idct2(torch.eye(count, dtype=F64).reshape(-1, 1, SIZE, SIZE))).flatten(1).mT
    away = (y - operator.apply(torch.full((1, 1, SIZE, SIZE), 0.5, dtype=F64))).flatten()
    for t in of.statistics.phases[[8, 20, 30, 36]].tolist():  # where nothing is interpolated
        kept = float(process.signal_power(at(t)).sqrt())
        spread = float(process.spread(torch.full((1, 1, SIZE, SIZE), 0.5, dtype=F64), at(t)).mean())
        u = 0.5 + torch.randn(1, 1, SIZE, SIZE, dtype=F64, generator=g)
        guided: Any = condition_on_measurement(of, Measurement(operator=operator, values=y, noise=noise), PiGDM())
        seen = torch.cat([kept * torch.eye(count, dtype=F64), a])
        apart = torch.cat([torch.full((count,), spread**2, dtype=F64), torch.full((len(a),), noise**2, dtype=F64)])
        both = torch.cat([dct2(u - 0.5).flatten(), away])
        gain = power[:, None] * seen.mT @ torch.linalg.inv(seen * power @ seen.mT + torch.diag(apart))
        expected = 0.5 + idct2((gain @ both).reshape(1, 1, SIZE, SIZE))
        z = of.to_coordinates(u)
        image = guided.denoised(z, at(t)) if isinstance(process, FlowMatching) else None
        if image is None:  # without the cut to [−1, 1]
            image = of.from_coordinates(guided.image(z, at(t)))
        torch.testing.assert_close(image, expected, rtol=1e-5, atol=1e-5)


def small(kind: str) -> tuple[Any, Any, str]:
    if kind == "score":
        return (
            small_model("windows"),
            anisodiff.process("anisotropic", 4, step="exponential(windows=4)"),
            "exponential",
        )
    process = FlowMatching() if kind == "velocity" else EdgePreserving(levels=20)
    return exact_model(process, SIZE), process, "heun" if kind == "velocity" else "posterior"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["score", "velocity", "noise"])
def test_a_measurement_of_infinite_noise_changes_no_bit(kind: str, method: str) -> None:
    of, process, name = small(kind)
    chosen = build_sampler(name, process)
    times = chosen.times(of, 13, t_min=T_MIN)
    start = torch.rand(3, 2 if kind == "score" else 1, 4, 4, generator=torch.Generator().manual_seed(0))
    start = start if kind == "score" else start.double()
    y = torch.zeros_like(start)
    given = Measurement(operator=read_operator("deblurring"), values=y, noise=math.inf)
    plain = chosen.run(of, start, times, KeyedNoise(keys(3))).images
    guided = chosen.run(
        condition_on_measurement(of, given, METHODS[method]()), start, times, KeyedNoise(keys(3))
    ).images
    assert torch.equal(plain, guided)
    near = dataclasses.replace(given, noise=0.1)
    assert not torch.equal(plain, chosen.run(condition_on_measurement(of, near, METHODS[method]()), start, times, KeyedNoise(keys(3))).images)  # noqa: E501  # fmt: skip


@pytest.mark.parametrize("method", [PiGDM(), DPS()], ids=str)
@pytest.mark.parametrize("text", OPERATORS)
def test_every_method_agrees_with_the_measurement(method: Any, text: str) -> None:
    """Samples fit y to its noise: root mean square of y − A x between a third and three times σ."""
    of, noise = model("ve"), 0.03
    exact, chosen = Posterior(of, text, noise), build_sampler("exponential", anisodiff.process("ve", SIZE))
    times = chosen.times(of, 60, t_min=1e-3)
    start = 0.5 + float(of.coefficients(times[:1]).power.mean().sqrt()) * torch.randn(
        40, *exact.shape, dtype=F64, generator=torch.Generator().manual_seed(2)
    )
    guided = condition_on_measurement(of, exact.batch(40), method)
    images = chosen.run(guided, start, times, KeyedNoise(keys(40))).images
    operator = exact.given.operator
    left = (exact.given.values - operator.apply(images)).square().sum() / (40 * operator.count(images[:1] if text.startswith("inp") else exact.given.values))  # noqa: E501  # fmt: skip
    assert noise / 3 < float(left.sqrt()) < 3 * noise


def test_the_network_is_asked_as_often_and_its_weights_stay() -> None:
    of = small_model("ve")
    given = Measurement(operator=read_operator("deblurring"), values=torch.zeros(2, 2, 4, 4), noise=0.1)
    guided: Any = condition_on_measurement(of, given, PiGDM())
    before = of.network.calls  # type: ignore[attr-defined]
    guided.score(torch.zeros(2, 2, 4, 4), at(0.5))
    assert of.network.calls == before + 1  # type: ignore[attr-defined]
    assert guided.network is of.network
    assert "residuals" not in vars(of)


def test_a_network_that_is_replayed_on_a_gpu_has_a_backward_pass() -> None:
    """A recording has none: where a gradient is asked for, the network itself is called; that needs no GPU."""
    inner = small_model("ve").network
    x = torch.rand(1, 2, 4, 4, requires_grad=True)
    out = Replayed(Keywords(inner))(x, torch.zeros(1))
    (found,) = torch.autograd.grad(out.sum(), x)
    (expected,) = torch.autograd.grad(inner(x, torch.zeros(1)).sum(), x)
    assert torch.equal(found, expected)


class Keywords(torch.nn.Module):
    """A network with the whole call of the contract."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, level: Tensor, labels: Any = None, dropout_key: Any = None) -> Tensor:
        found: Tensor = self.inner(x, level)
        return found


def test_what_cannot_be_guided_is_refused() -> None:
    given = Measurement(operator=read_operator("colorization"), values=torch.zeros(1, 1, 4, 4), noise=0.1)
    with pytest.raises(ValueError, match="need a score or a velocity, and DeblurringModel has learned neither"):
        condition_on_measurement(exact_model(HeatDissipation(levels=10), SIZE), given, PiGDM())
    for noise in (-1.0, math.nan):
        with pytest.raises(ValueError, match="expected a standard deviation from 0 to 10"):
            dataclasses.replace(given, noise=noise)
