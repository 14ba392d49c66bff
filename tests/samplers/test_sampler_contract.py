"""What every sampler keeps: its notation, its count of evaluations, its times, and a sample's independence."""

import pytest
import torch

from anisodiff.noise import KeyedNoise
from anisodiff.registry import SAMPLERS, build_sampler
from anisodiff.samplers import Sampler
from anisodiff.samplers.euler import Euler
from anisodiff.samplers.exponential import Exponential
from anisodiff.samplers.grids import GRIDS
from tests.samplers.test_own_times import OWN
from tests.support.oracles import keys
from tests.support.score_models import PROCESSES, level_grid, process, small_model

F64 = torch.float64
T_MIN = 0.1
TEXTS = {
    "ve": (
        "exponential",
        "exponential(order=1)",
        "exponential(wiener=0.5, grid=adapted)",
        "ode",
        "multistep",
        "churn(eta=0.5, lam=0.1)",
        "euler",
        "ancestral",
    ),
    "heat": ("exponential", "ode", "multistep", "euler(norm=none)", "ancestral"),
    "windows": (
        "exponential",
        "exponential(order=1, rho=3)",
        "ode",
        "multistep",
        "churn",
        "euler",
        "euler(drift=projected)",
    ),
    "one step": ("exponential(grid=uniform)", "ode", "multistep", "euler(drift=projected)"),
    "anisotropic noise": ("euler", "euler(drift=projected)"),
}
ROWS = [(name, text) for name, texts in TEXTS.items() for text in texts]


def allowed(name: str) -> int:
    """Evaluations enough for every sampler with corrector: single steps have twenty intervals."""
    return 64 if name in ("one step", "anisotropic noise") else 24


def with_corrector(text: str) -> str:
    return text[:-1] + ", corrector=0.16)" if text.endswith(")") else text + "(corrector=0.16)"


@pytest.mark.parametrize(("name", "text"), ROWS + [(n, with_corrector(t)) for n, t in ROWS])
def test_evaluations_are_counted(name, text):
    """As many calls of the network as `evaluations` says, and as many of them as were allowed."""
    model, chosen = small_model(name), build_sampler(text, process(name))
    times = chosen.times(model, allowed(name), t_min=T_MIN)
    steps: list[int] = []
    start = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    image = chosen.run(model, start, times, KeyedNoise(keys(2, 1)), callback=lambda i, u: steps.append(i)).images
    assert image.shape == start.shape
    assert image.isfinite().all()
    assert steps == list(range(len(times) - 1))
    assert model.network.calls == chosen.nfe(times) <= allowed(name)
    per_step = (chosen.nfe(times) - 1) // (len(times) - 1)
    assert chosen.nfe(times) + per_step > allowed(name)
    assert per_step == (2 if text.startswith("ode") else 1) + ("corrector" in text)


@pytest.mark.parametrize(
    ("name", "text"), [*ROWS, ("ve", with_corrector("exponential")), ("heat", with_corrector("ode"))]
)
def test_a_sample_does_not_depend_on_its_batch(name, text):
    """Batch 1 against batch 8, single precision: within 10⁻⁴ of the largest value. A few steps show it."""
    model, chosen = small_model(name), build_sampler(text, process(name))
    times = chosen.times(model, allowed(name) // 3 * chosen.cost, t_min=T_MIN)
    start = torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    together = chosen.run(model, start, times, KeyedNoise(keys(8, 2))).images
    alone = chosen.run(model, start[5:6], times, KeyedNoise(keys(8, 2)[5:6])).images
    torch.testing.assert_close(together[5:6], alone, rtol=0, atol=1e-4 * float(together.abs().max()))
    other = chosen.run(model, start, times, KeyedNoise(keys(8, 3))).images
    assert torch.equal(other, together) == (text in ("ode", "multistep"))  # they draw nothing


@pytest.mark.parametrize(("name", "text"), ROWS)
def test_notation_reads_back(name, text):
    chosen = build_sampler(text, process(name))
    assert build_sampler(str(chosen), process(name)) == chosen
    assert isinstance(chosen, Sampler)
    assert str(chosen).startswith(text.split("(")[0])
    assert build_sampler(chosen.brief, process(name)) == chosen


@pytest.mark.parametrize("text", ["exponential", "exponential(order=1)", "ode(corrector=0.1, rho=3)", "multistep"])
def test_people_read_only_what_differs_from_the_defaults(text):
    assert build_sampler(text, process("ve")).brief == text


def test_names():
    """Here and in `test_own_times`."""
    assert {text.split("(")[0] for texts in TEXTS.values() for text in texts} | {"pc", *OWN} == set(SAMPLERS)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ve", "exponentail", "did you mean 'exponential'?"),
        ("ve", "exponential(ordr=2)", "did you mean 'order'?"),
        ("ve", "exponential(order=3)", "order: got 3, expected a whole number from 1 to 2"),
        ("ve", "exponential(order=inf)", "order: got inf, expected a whole number from 1 to 2"),
        ("ve", "exponential(wiener=2)", "wiener: got 2, expected a number from 0 to 1"),
        ("ve", "ode(corrector=-1)", "corrector: got -1, expected a number from 0 to 1"),
        ("ve", "ode(grid=levle)", "did you mean 'level'?"),
        ("ve", "euler(drift=projcted)", "did you mean 'projected'?"),
        ("ve", "euler(norm=imge)", "did you mean 'image'?"),
        ("windows", "ancestral", "a closed-form process (step=exact); use 'exponential'"),
        ("windows", "heun", "use 'exponential', 'ode', 'multistep', 'churn' or 'euler'"),
        ("ve", "churn(eta=2)", "eta: got 2, expected a number from 0 to 1"),
        ("anisotropic noise", "heun", "a model that predicts the velocity; use 'euler'"),
        ("anisotropic noise", "exponential", "isotropic noise (noise_anisotropy=infinite); use 'euler'"),
        ("anisotropic noise", "ode", "use 'euler'"),
        ("heat", "euler(tames=drift)", "take tames=all"),
        ("one step", "euler(tames=drift, drift=projected)", "take tames=all"),
        ("one step", "euler(tames=drift, norm=rms)", "take tames=all"),
        ("one step", "euler(dt=0.5)", "takes dt from the process, here 0.4, got 0.5"),
        ("heat", "euler(dt=0.5)", "got 0.5"),
        ("one step", "euler(tames=score)", "known"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(name, text, words):
    with pytest.raises(ValueError, match="sampler") as refused:
        build_sampler(text, process(name))
    assert words in str(refused.value)
    assert text == "ancestral" or "'ancestral'" not in str(refused.value)  # that serves closed forms alone


def test_euler_takes_stencil_and_taming_from_the_process():
    assert build_sampler("euler", process("one step")) == Euler(drift="paper", norm="image", tames="drift", dt=0.4)
    assert build_sampler("euler(tames=all)", process("one step")) == Euler(drift="paper", norm="image", tames="all")
    assert build_sampler("euler(norm=rms)", process("heat")) == Euler(drift="flux", norm="rms", tames="all")
    assert build_sampler("euler(norm=rms)", process("one step")) == Euler(drift="paper", norm="rms", tames="all")
    learned = Euler(drift="projected", norm="none", tames="all")  # the drift of a tamed chain is tamed already
    assert build_sampler("euler(drift=projected)", process("one step")) == learned
    model = small_model("heat")
    with pytest.raises(ValueError, match="sampler"):
        Euler().run(model, torch.zeros(1, 2, 4, 4), torch.tensor([2.0, 1.0], dtype=F64), None)


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("nfe", "t_min", "t_max"), [(60, 0.05, None), (33, 0.1, 1.3), (90, 0.5, 2.0)])
def test_times(name, grid, nfe, t_min, t_max):
    """From t_max to t_min, descending, one for every evaluation, with all edges of the drift; even in the clock."""
    model = small_model(name)
    times = Exponential(grid=grid).times(model, nfe, t_min=t_min, t_max=t_max)
    top = 2.0 if t_max is None else t_max
    assert times.dtype == F64
    assert len(times) == nfe
    assert float(times[0]) == top
    assert float(times[-1]) == t_min
    assert (times[1:] < times[:-1]).all()
    edges = [e for e in model.statistics_edges.tolist() if t_min < e < top]
    if model.learns_drift:
        assert set(edges) <= set(times.tolist())
    elif grid == "uniform":
        torch.testing.assert_close(times.diff(), torch.full_like(times[1:], (t_min - top) / (nfe - 1)))


def test_a_bent_level_grid_has_more_of_its_times_at_the_top():
    """ρ = 3 against even steps of the logarithm (Karras et al. 2022)."""
    model = small_model("ve")
    even, bent = (level_grid(model, 40, 0.05, rho=rho) for rho in (1.0, 3.0))
    assert (bent > 1.0).sum() > 1.2 * (even > 1.0).sum()


@pytest.mark.parametrize(
    ("name", "nfe", "t_min", "t_max", "words"),
    [
        ("windows", 4, 0.1, None, "expected at least 5"),
        ("ve", 1, 0.1, None, "expected at least 2"),
        ("ve", 0, 0.1, None, "expected at least 2"),
        ("ve", 10, 0.0, None, "0 < t_min"),
        ("ve", 10, 0.5, 0.4, "t_min = 0.5, t_max = 0.4"),
        ("ve", 10, 0.5, 2.5, "T = 2"),
    ],
)
def test_times_that_cannot_be_are_refused(name, nfe, t_min, t_max, words):
    with pytest.raises(ValueError) as refused:
        Exponential().times(small_model(name), nfe, t_min=t_min, t_max=t_max)
    assert words in str(refused.value)


def test_times_must_descend():
    model = small_model("ve")
    with pytest.raises(ValueError, match="descends"):
        Exponential().run(model, torch.zeros(1, 2, 4, 4), torch.tensor([1.0, 1.0], dtype=F64), None)


def test_one_time_gives_the_denoised_image():
    """No step at all: E[x0 | u], here by hand for a process in closed form."""
    model = small_model("heat")
    u = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    t = torch.tensor([0.1], dtype=F64)
    image = Exponential().run(model, u, t, None).images
    score, _ = model(u, t.expand(3))
    assert not model.learns_drift
    noise_free = model.to_coordinates(u) + model.coefficients(t).noise * model.to_coordinates(
        score + model.statistics_mean[:, None, None]
    )
    decay = model.coefficients(t).kept.sqrt()
    torch.testing.assert_close(model.to_coordinates(image), noise_free / decay, rtol=1e-4, atol=1e-5)
