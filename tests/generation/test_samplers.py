"""Samplers by name on trained models: those that are advertised work, the others are refused with those that do."""

import re

import pytest

import anisodiff
from anisodiff.cli.sample import sample
from anisodiff.pretrained import IN_REPOSITORY, SHIPPED
from anisodiff.registry import PRESETS, SAMPLERS
from anisodiff.training import Hooks, train
from anisodiff.training.preview import fit_prior
from tests.training.conftest import tiny

PROCESSES = [name for name in ("ve", "heat", "anisotropic", "anisotropic-gentle") if name in PRESETS]


def advertised(process: str) -> list[str]:
    """What `sample --help` lists for a process of the SPDE."""
    found = re.search(r"Samplers: ([^.;]+); for ve and heat also (\w+), for ve also (\w+)\.", sample.__doc__ or "")
    assert found is not None
    every = re.split(r", | and ", found[1])
    return every + [found[2]] * (process in ("ve", "heat")) + [found[3]] * (process == "ve")


def test_the_help_names_samplers_that_exist():
    assert advertised("anisotropic") == ["exponential", "ode", "multistep", "churn", "euler"]
    assert set(advertised("ve")) == {*advertised("anisotropic"), "ancestral", "pc"} < set(SAMPLERS)


@pytest.mark.parametrize("process", PROCESSES)
def test_what_the_help_lists_works(runs, process):
    """On a model that has learned score and drift, and nothing else does."""
    generator = anisodiff.load(runs(process), "cpu")
    assert generator.plan.config.learns == "score_and_drift"
    for name in SAMPLERS:
        if name in advertised(process):
            images = generator.sample(1, steps=23, sampler=name)
            assert images.shape == (1, 1, 8, 8)
            assert images.isfinite().all()
            continue
        with pytest.raises(ValueError, match=f"the sampler '{name}' needs") as caught:
            generator.reverse_process(steps=23, sampler=name)
        text = str(caught.value)
        remedy = text.partition("; use ")[2]
        assert set(re.findall(r"'([\w-]+)'", remedy)) == set(advertised(process))
        assert "\n" not in text
        assert "Model" not in text
        assert text.count(" and ") <= 1


@pytest.fixture(scope="module")
def narrow(data, tmp_path_factory):
    """Models that have learned less, and a baseline."""
    kinds = {
        "reverse_drift": {"process": "anisotropic", "learns": "reverse_drift"},
        "score": {"process": "anisotropic", "learns": "score"},
        "flow-matching": {"process": "flow-matching", "t_min": 1e-5},
    }
    made = {}
    for name, keys in kinds.items():
        folder = tmp_path_factory.mktemp(name)
        train(tiny(images=4, **keys), data, folder, hooks=Hooks(fit_prior=fit_prior), track=())
        made[name] = anisodiff.load(folder, "cpu")
    return made


@pytest.mark.parametrize(
    ("kind", "sampler", "says"),
    [
        (
            "reverse_drift", "ode",
            "the score by itself, which this model did not learn (learns=score_and_drift and score do); "
            "use 'exponential' or 'euler(drift=projected)'",
        ),
        (
            "score", "exponential",
            "the drift, which this model did not learn (learns=score_and_drift and reverse_drift do); use 'euler'",
        ),
        (
            "reverse_drift", "posterior",
            "a model that predicts the noise; use 'exponential' or 'euler(drift=projected)'",
        ),
        ("flow-matching", "exponential", "a process of the SPDE; use 'heun', 'midpoint' or 'dopri5'"),
    ],
)  # fmt: skip
def test_a_sampler_that_does_not_fit_names_those_that_do(narrow, kind, sampler, says):
    with pytest.raises(ValueError, match="sampler") as caught:
        narrow[kind].reverse_process(steps=25, sampler=sampler)
    assert str(caught.value) == f"the sampler '{sampler}' needs {says}"
    for name in re.findall(r"'([^']+)'", says.partition("; use ")[2]):
        assert narrow[kind].sample(1, steps=25, sampler=name).isfinite().all()


@pytest.mark.parametrize("name", sorted({*SHIPPED} - {*IN_REPOSITORY}))
def test_shipped_models_can_do_what_the_help_lists(name):
    generator = anisodiff.load(name, "cpu")
    for sampler in advertised(generator.plan.config.process["preset"]):
        images = generator.sample(1, steps=20, sampler=sampler)
        assert 0.1 < images.std() < 0.45, sampler
