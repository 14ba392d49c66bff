"""Every sampler against exact distributions: a table (sampler, case, order) with measured slopes."""

import pytest
import torch

import anisodiff
from anisodiff import Equation
from anisodiff.samplers import Sampler
from anisodiff.samplers.ancestral import Ancestral, ancestral_step
from anisodiff.samplers.churn import Churn
from anisodiff.samplers.euler import Euler
from anisodiff.samplers.exponential import Exponential, exponential_step
from anisodiff.samplers.multistep import Multistep
from anisodiff.samplers.ode import Ode
from tests.support.exact_score import F64, Impulses, Oracle, data, gaps, oracle, propagated
from tests.support.oracles import slope

T_MIN = 0.02
EQUATIONS = {
    "noise": Equation(diffusivity=0.0, intensity="geometric(0.05, 5)", T=2.0),
    "heat": Equation(diffusivity="geometric(0.3, 3)", intensity="geometric(0.1, 1)", T=2.0),
    "gentle": Equation(diffusivity="geometric(0.5, 0.001)", intensity="geometric(0.05, 5)", T=2.0),
}
CASES = {
    "noise": lambda: oracle(EQUATIONS["noise"], flat=True),
    "heat": lambda: oracle(EQUATIONS["heat"]),
    "one window": lambda: oracle(EQUATIONS["gentle"], intervals=1, drift=True),
    "windows": lambda: oracle(EQUATIONS["heat"], intervals=4, drift=True),
    "reverse_drift": lambda: oracle(EQUATIONS["heat"], intervals=4, drift=True, learns="reverse_drift"),
}
MADE: dict[str, Oracle] = {}


def case(name: str) -> Oracle:
    if name not in MADE:
        MADE[name] = CASES[name]()
    return MADE[name]


def error(model: Oracle, sampler: Sampler, steps: int, t_min: float = T_MIN) -> tuple[float, float]:
    """Errors of mean and covariance of the state at t_min."""
    times = sampler.times(model, steps * sampler.cost + 1, t_min=t_min)
    assert len(times) == steps + 1
    draws = 0 if isinstance(sampler, Ode | Multistep) else steps
    return gaps(propagated(model, sampler, times, draws)[0], model.law.at(t_min))


TABLE = [
    # sampler                                            cases                          order
    (Exponential(order=1), ("noise", "heat", "windows", "reverse_drift"), 1),
    (Exponential(order=1, wiener=1.0), ("noise", "heat", "windows"), 1),
    (Exponential(order=2), ("noise", "heat", "windows", "reverse_drift"), 2),
    (Exponential(order=2, wiener=1.0), ("noise", "heat", "windows"), 2),
    (Exponential(order=2, wiener=0.5), ("noise",), 2),
    (Ode(), ("noise", "heat", "one window", "windows"), 2),
    (Ode(grid="adapted"), ("heat",), 2),
    (Multistep(), ("noise", "heat", "one window"), 2),
    (Churn(), ("noise", "heat", "one window"), 1),
    (Churn(eta=0.3), ("noise",), 1),
    (Ancestral(), ("noise", "heat"), 1),
    (Euler(drift="flux", norm="none", tames="all"), ("noise", "heat"), 1),
    (Euler(drift="projected", norm="none", tames="all"), ("windows", "reverse_drift"), 1),
]
ROWS = [(sampler, name, order) for sampler, names, order in TABLE for name in names]


@pytest.mark.parametrize(("sampler", "name", "order"), ROWS, ids=[f"{s}-{n}" for s, n, _ in ROWS])
def test_measured_orders(sampler, name, order):
    """Mean and covariance of the generated distribution, exactly propagated, against the exact ones."""
    levels = [24, 96] if order == 2 else [16, 64]
    found = [error(case(name), sampler, n) for n in levels]
    assert order - 0.2 < slope(levels, [both[1] for both in found]) < order + 0.5
    assert found[-1][1] < (0.1 if order == 1 else 0.006)
    first = 2.5e-3 if name == "reverse_drift" else 2e-3
    assert found[-1][0] < (first if order == 1 else 3.2e-4)


@pytest.mark.parametrize(("name", "limit"), [("noise", 0.01), ("heat", 0.04), ("windows", 0.04)])
def test_images_have_mean_and_covariance_of_the_data(name, limit):
    """t_min = 0.01: E[x0 | u] has the distribution of x0 but for what the remaining noise hides of it."""
    model, sampler = case(name), Exponential()
    image = propagated(model, sampler, sampler.times(model, 97, t_min=0.01))[1]
    mean, covariance = data(*model.law.shape[:2])
    off = gaps(image, (mean.flatten(), covariance))
    assert off[0] < 1e-3
    assert off[1] < limit
    assert gaps(image, model.law.images(0.01))[1] < 0.008


def test_exponential_is_stable_where_explicit_steps_diverge():
    """`heat` as the paper has it for 32²: α1 = 0.5 → 2·32. Steps of Δt = 0.02 have α1Δt up to 1.28 > ¼.

    The explicit variance is 10²⁰ times too large a quarter of the way down. (Further down α1Δt < ¼, and in double
    precision the modes that grew die out again; in single precision their rounding errors stay.)
    """
    model = oracle(anisodiff.process("heat", 32).equation, size=4)
    assert error(model, Euler(drift="flux", norm="none", tames="all"), 25, t_min=1.5)[1] > 1e20
    limits = {Exponential(order=1): 0.15, Exponential(order=2): 0.01, Ancestral(): 0.15, Ode(): 0.01}
    for sampler, limit in limits.items():
        mean, covariance = error(model, sampler, 99)
        assert covariance < limit, sampler
        assert mean < 1e-3, sampler
        assert error(model, sampler, 25, t_min=1.5)[1] < limit, sampler


@pytest.mark.parametrize(("order", "limit"), [(1, 0.3), (2, 0.1)])
def test_exponential_is_stable_with_a_stiff_learned_drift(order, limit):
    """Edge weights that mix all frequencies, α1 up to 64, four or five steps a window, α1Δt up to 2.8."""
    model = oracle(
        Equation(diffusivity="geometric(0.5, 64)", intensity="geometric(0.01, 2)"), intervals=10, drift=True
    )
    assert error(model, Exponential(order=order), 45)[1] < limit


def test_multistep_needs_half_the_evaluations_of_heun():
    """Eight and twelve steps under a gentle learned drift: less error than Heun's method with as many steps."""
    for steps in (8, 12):
        assert error(case("one window"), Multistep(), steps)[1] < error(case("one window"), Ode(), steps)[1]


def test_flow_multiplies_errors_of_a_stiff_learned_drift():
    """Where `ode` fails: the same process, twice the evaluations."""
    model = oracle(
        Equation(diffusivity="geometric(0.5, 64)", intensity="geometric(0.01, 2)"), intervals=10, drift=True
    )
    assert error(model, Ode(), 45)[1] > 1.0


def test_ancestral_step_is_the_first_order_exponential_step():
    model = case("heat")
    z = torch.randn(4, *model.law.shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    for t, after in ((2.0, 1.7), (1.0, 0.95), (0.05, 0.025)):
        when = [torch.tensor([x], dtype=F64) for x in (t, after)]
        one = ancestral_step(model, z, *when, Impulses(4, 4))
        other, _ = exponential_step(model, z, *when, Impulses(4, 4), wiener=0.0)
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3 * float(other.std()))


@pytest.mark.parametrize("crosses", [True, False])
def test_across_an_edge_the_score_is_extrapolated_and_the_drift_is_not(crosses):
    model = case("windows")
    edge = float(model.statistics_edges[2])  # an edge belongs to the interval below it
    places = (edge + 0.05, edge, edge - 0.1) if crosses else (edge, edge - 0.04, edge - 0.1)
    first, second, third = torch.tensor(places, dtype=F64).split(1)
    z = torch.randn(3, *model.law.shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    down, before = exponential_step(model, z, first, second, Impulses(3, 3), wiener=0.0)

    def following(evaluation):
        return exponential_step(model, down, second, third, Impulses(3, 3), wiener=0.0, before=evaluation)[0]

    plain = following(before)
    assert not torch.allclose(following(before._replace(f=before.f + 1)), plain)
    assert torch.equal(following(before._replace(d=before.d + 1)), plain) == crosses


def test_edges_of_a_gentle_drift_cost_no_accuracy():
    """Twelve steps, three a window: without the score's slope across edges the covariance is off by 6%."""
    assert error(case("windows"), Exponential(order=2), 12)[1] < 0.03


@pytest.mark.parametrize("name", ["ve", "heat"])
def test_adapted_grid_is_the_best_for_ancestral_steps(name):
    """At equal evaluations the error of all directions' variance is at least a fifth smaller than on other grids."""
    model = oracle(anisodiff.process(name, 16).equation, size=4)
    found = {grid: error(model, Exponential(order=1, grid=grid), 48)[1] for grid in ("adapted", "level", "uniform")}
    assert found["adapted"] < 0.8 * min(found["level"], found["uniform"])
