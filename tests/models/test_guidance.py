"""Classifier-free guidance: what is guided, where, and what it costs; against classes whose scores are known."""

import math

import pytest
import torch
from torch import Tensor

import anisodiff
from anisodiff.models.base import ModelOptions
from anisodiff.models.guidance import Guidance
from anisodiff.models.score import ScoreModel
from anisodiff.noise import KeyedNoise
from anisodiff.registry import build_sampler
from tests.samplers.test_own_times import OWN, model_for
from tests.samplers.test_sampler_contract import ROWS, T_MIN, allowed, with_corrector
from tests.support.classes import BETWEEN, MEANS, SIZE, WITHIN, score_model, velocity_model
from tests.support.oracles import F64, at, gaussian_images, keys
from tests.support.score_models import Small, process, small_model

LABELS = torch.tensor([0, 1])
W = 1.7


class Labeled(torch.nn.Module):
    """A network that adds to another's output a term of the class: nothing for the null label, which is 2."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network, self.calls = network, 0

    def forward(
        self, x: Tensor, c: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        self.calls += 1
        out = self.network(x, c)
        labels = torch.full((len(x),), 2) if labels is None else labels
        return out + 0.3 * torch.tensor([1.0, -2.0, 0.0]).to(x)[labels][:, None, None, None] * torch.cos(3 * out)


def guided(answers: tuple[Tensor, Tensor], w: float = W) -> Tensor:
    own, null = answers
    return null + w * (own - null)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ve", {}), ("ve", {"parameterization": "scalar"}), ("ve", {"parameterization": "ve"}),
        ("ve", {"channel_pca": True}), ("windows", {}), ("windows", {"learns": "reverse_drift"}),
    ],
)  # fmt: skip
def test_to_guide_the_network_is_to_guide_score_drift_and_image(name, options):
    """The linear part is common to both answers: the guided sum of each is what the view gives."""
    options = ModelOptions(**options)
    made, images = process(name), gaussian_images(32, 4, channels=2)
    statistics = made.estimate_statistics(images, channel_pca=options.channel_pca)
    model = ScoreModel.build(Labeled(Small(2)), made, statistics, options).double()
    z = model.to_coordinates(images[:2] + 0.1)
    t = at(0.4 * made.T)
    own, null, view = model.given(LABELS), model, model.given(LABELS, Guidance(weight=W))
    for ask in (
        lambda m: m.score(z, t), lambda m: m.score_and_drift(z, t)[1], lambda m: m.denoised(z, t),
        lambda m: m.residuals(z, m.coefficients(t))[0],
    ):  # fmt: skip
        torch.testing.assert_close(ask(view), guided((ask(own), ask(null))), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(own.score(z, t), null.score(z, t))


@pytest.mark.parametrize("word", [word for word in OWN if word != "midpoint"])
def test_to_guide_the_network_is_to_guide_answers_of_the_baselines(word):
    model, _ = model_for(word)
    model.network = Labeled(model.network)
    z, t = torch.randn(2, 1, 4, 4, dtype=F64, generator=torch.Generator().manual_seed(0)), at(0.5)
    own, null, view = model.given(LABELS), model, model.given(LABELS, Guidance(weight=W))
    torch.testing.assert_close(view.predict(z, t), guided((own.predict(z, t), null.predict(z, t))))
    assert torch.equal(model.given(LABELS, Guidance(weight=1)).predict(z, t), own.predict(z, t))
    assert torch.equal(model.given(LABELS, Guidance(weight=0)).predict(z, t), null.predict(z, t))


def integrated(slope, x: Tensor, ends: tuple[float, float], steps: int = 600) -> Tensor:
    """x at the second end of dx/dy = slope(x, y), by the classical Runge–Kutta method."""
    y, h = ends[0], (ends[1] - ends[0]) / steps
    for _ in range(steps):
        a = slope(x, y)
        b = slope(x + 0.5 * h * a, y + 0.5 * h)
        c = slope(x + 0.5 * h * b, y + 0.5 * h)
        x, y = x + h / 6 * (a + 2 * b + 2 * c + slope(x + h * c, y + h)), y + h
    return x


def pull(u: Tensor, noise: float, w: float) -> Tensor:
    """The guided score of pixels under white noise of this variance: of the classes, and of all together."""
    means = torch.tensor(MEANS, dtype=F64)[:, None, None, None]
    null = -(u - 0.5) / (WITHIN + BETWEEN + noise)
    return null + w * (-(u - means) / (WITHIN + noise) - null)


@pytest.mark.parametrize(("sampler", "interval"), [("ode", (0.5, 4.0)), ("multistep", None)])
def test_probability_flow_of_known_classes(sampler, interval):
    """The flow with the guided score, du/d ln N = −N s_w/2, integrated apart from the samplers."""
    made = anisodiff.process("ve", SIZE)
    model = score_model(made)
    g = torch.Generator().manual_seed(1)
    start = 0.5 + 3 * torch.randn(2, 1, SIZE, SIZE, dtype=F64, generator=g)
    chosen = build_sampler(sampler, made)
    times = chosen.times(model, 301, t_min=0.02)
    low, high = ((float(model.coefficients(t).noise.mean())) for t in (times[-1:], times[:1]))

    def weight(log_noise: float) -> float:
        level = math.exp(0.5 * log_noise) / (float(model.statistics_data.mean())) ** 0.5
        return W if interval is None or interval[0] < level <= interval[1] else 1.0

    def flow(w):
        def slope(u: Tensor, y: float) -> Tensor:
            return -0.5 * math.exp(y) * pull(u, math.exp(y), w(y))

        return integrated(slope, start, (math.log(high), math.log(low)))

    exact = flow(weight)
    seen: list[Tensor] = []
    view = model.given(LABELS, Guidance(weight=W, interval=interval))
    chosen.run(view, start, times, None, callback=lambda i, u: seen.append(u))
    torch.testing.assert_close(seen[-1], exact, rtol=0, atol=2e-3)
    assert (flow(lambda y: 1.0) - exact).abs().max() > 0.02  # guidance moves it by more than the tolerance


def test_flow_matching_of_known_classes():
    made = anisodiff.process("flow-matching-uniform", SIZE)
    model, chosen = velocity_model(made), build_sampler("heun", made)
    start = 0.5 + 0.5 * torch.randn(2, 1, SIZE, SIZE, dtype=F64, generator=torch.Generator().manual_seed(1))
    means = torch.tensor(MEANS, dtype=F64)[:, None, None, None]

    def velocity(z: Tensor, t: float, mean: Tensor | float, variance: float) -> Tensor:
        a, s = 1 - t, t + made.sigma_min * (1 - t)
        score = -(z - a * (2 * mean - 1)) / (4 * a * a * variance + s * s)
        return -(z + (s * s + (1 - made.sigma_min) * s * a) * score) / a  # Tweedie for image and noise

    def slope(z: Tensor, t: float) -> Tensor:
        null = velocity(z, t, 0.5, WITHIN + BETWEEN)
        return null + W * (velocity(z, t, means, WITHIN) - null)

    exact = integrated(slope, 2 * start - 1, (0.9, 0.0), 400)
    view = model.given(LABELS, Guidance(weight=W))
    found = chosen.run(view, start, torch.linspace(0.9, 0, 201, dtype=F64), None).images
    torch.testing.assert_close(found, 0.5 * (exact + 1), rtol=0, atol=1e-4)


def test_samples_of_a_class_have_its_distribution():
    """w = 1, the stochastic sampler: mean and variance of 600 × 16 pixels of each class, within five errors."""
    made = anisodiff.process("ve", SIZE)
    model, chosen = score_model(made), build_sampler("exponential", made)
    times = chosen.times(model, 41, t_min=0.02)
    labels = torch.arange(1200) % 2
    top = float(model.coefficients(times[:1]).noise.mean())
    noise = KeyedNoise(keys(1200, 4)).normal(torch.zeros(1200, 1, SIZE, SIZE, dtype=F64))
    start = 0.5 + (top + WITHIN + BETWEEN) ** 0.5 * noise
    seen: list[Tensor] = []
    chosen.run(model.given(labels), start, times, KeyedNoise(keys(1200, 5)), callback=lambda i, u: seen.append(u))
    spread = WITHIN + float(model.coefficients(times[-1:]).noise.mean())
    for label, mean in enumerate(MEANS):
        pixels = seen[-1][labels == label].flatten()
        assert float(pixels.mean()) == pytest.approx(mean, abs=5 * (spread / len(pixels)) ** 0.5)
        assert float(pixels.var()) == pytest.approx(spread, rel=0.08)


TABLE = [*ROWS, ("ve", "pc"), ("ve", with_corrector("exponential")), ("heat", with_corrector("ode"))]
FEW = (("ve", "exponential"), ("heat", with_corrector("ode")), ("heun", "heun"), ("posterior", "posterior"))
WEIGHTS = {"never": W, "always": W, "part": W, "no class": 0.0}
"""Where guidance acts in the table below."""


def made_for(name: str, text: str):
    """A model whose network takes classes and counts its calls, its sampler, and the NFE allowed."""
    if name in OWN:
        model, chosen = model_for(name)
        nfe = {"deblurring": 300, "dopri5": 300}.get(name, 40)
    else:
        model, chosen, nfe = small_model(name), build_sampler(text, process(name)), allowed(name)
    model.network = Labeled(model.network)
    return model, chosen.within(4 * nfe), nfe


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        *((name, text, "part") for name, text in (*TABLE, *((word, word) for word in OWN))),
        *((name, text, where) for where in ("never", "always", "no class") for name, text in FEW),
    ],
)
def test_every_sampler_guides_and_counts(name, text, where):
    """The network is called as often as the sampler says before and after; two for a guided answer, else one."""
    model, chosen, nfe = made_for(name, text)
    middle = math.exp(float(model.level_at(at(0.5 * model.T))))
    interval = {"never": (1e5, 2e5), "part": (0.0, middle)}.get(where)
    view = model.given(LABELS, Guidance(weight=WEIGHTS[where], interval=interval))
    shape = (2, 1, 4, 4) if name in OWN else (2, 2, 4, 4)
    dtype = F64 if name in OWN else torch.float32
    start = 0.5 + 0.5 * torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    times = chosen.times(model, nfe, t_min=T_MIN)
    found = chosen.run(view, start, times, KeyedNoise(keys(2, 1)))
    assert found.images.isfinite().all()
    if name == "dopri5":
        assert found.nfe <= model.network.calls
        assert found.nfe > (20 if where in ("always", "part") else 6)
        return
    single = chosen.nfe(times)
    assert model.network.calls == found.nfe == chosen.evaluations(view, times)
    known = {"never": single, "always": 2 * single, "no class": single}
    if where in known:
        assert found.nfe == known[where]
    else:
        assert single < found.nfe < 2 * single
    plain = chosen.run(model.given(LABELS), start, times, KeyedNoise(keys(2, 1))).images
    assert torch.equal(plain, found.images) == (where == "never")


def test_mistakes_in_words():
    for wrong, words in (
        ({"weight": -1}, "guidance: got -1, expected a number from 0 to 100"),
        ({"weight": math.nan}, "guidance: expected a number, got nan"),
        ({"interval": (2.0, 1.0)}, "two noise levels σ/σ_data, low < high"),
        ({"interval": (1.0,)}, "two noise levels"),
    ):
        with pytest.raises(ValueError, match=words):
            Guidance(**wrong)
    assert str(Guidance(weight=1.5, interval=(0.2, 5))) == "guidance 1.5 for σ/σ_data in (0.2, 5]"
