"""A run's config: what it refuses, and that it reads back what it wrote."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisodiff.processes import process
from anisodiff.recipes import RECIPES, for_images, recipe
from anisodiff.train import Plan, TrainConfig
from anisodiff.train.config import FIELDS

from .conftest import tiny

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def test_reads_back_what_it_wrote():
    for config in (TrainConfig(), tiny(), recipe("cifar10-anisotropic-paper"), tiny(network={"size": "base"})):
        assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(st.sampled_from(FIELDS), PLAIN)
@settings(max_examples=300, deadline=None)
def test_garbage_is_refused_in_words_or_read_back(key, value):
    try:
        config = TrainConfig.from_dict({key: value})
    except ValueError as error:
        assert str(error)
        return
    assert TrainConfig.from_dict(config.to_dict()) == config


@given(st.sampled_from(["process", "network"]), st.dictionaries(st.text(max_size=6), PLAIN, max_size=2))
@settings(max_examples=100, deadline=None)
def test_garbage_in_a_group_is_refused(group, values):
    for key, value in values.items():
        try:
            Plan.of(TrainConfig().changed({f"{group}.{key}": value}))
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("lrate", 1e-4, "lr"),
        ("precisoin", "fp32", "precision"),
        ("precision", "fp16", "fp32"),
        ("process", "anisotropc", "anisotropic"),
        ("process.difusivity", 3, "diffusivity"),
        ("network", "smal", "small"),
        ("network.droput", 0.1, "dropout"),
        ("network.nf", "many", "network|nf"),
        ("ema", "constnt(0.9)", "constant"),
        ("ema", "constant(1.5)", "decay"),
        ("ema", [], "ema"),
        ("batch", 2.5, "whole"),
        ("batch", 0, "batch"),
        ("images", True, "number"),
        ("lr", "fast", "number"),
        ("betas", [0.9, 1.0], "betas"),
        ("size", [8, 8, 8], "size"),
        ("accumulation", 3, "multiple"),
        ("t_min", 2.0, "T = 2"),
        ("flip", 1, "true or false"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(key, value, words):
    with pytest.raises(ValueError, match=words):
        Plan.of(TrainConfig().changed({key: value}))


def test_numbers_as_yaml_leaves_them():
    assert TrainConfig().changed({"lr": "2e-4", "images": "1e6"}).images == 1_000_000


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_complete(name):
    config = recipe(name)
    plan = Plan.of(config)
    assert plan.process.identity() == process(config.process["preset"], 32).identity()
    assert plan.network.out_channels == (6 if plan.objective.learns_drift else 3)
    assert config.checkpoint_every > 0
    assert config.dataset == "cifar10"


def test_the_papers_recipe_is_the_papers():
    plan = Plan.of(recipe("cifar10-anisotropic-paper"))
    assert plan.process.identity()["stencil"] == "paper"
    assert plan.process.identity()["step"].startswith("tamed(dt=0.01")
    assert plan.network.nf == 128
    assert plan.network.multipliers == (1, 2, 2, 2)
    assert (plan.config.lr, plan.config.warm_up / plan.config.batch, plan.config.clip) == (2e-4, 5000, 1.0)


def test_a_typo_in_a_recipes_name():
    with pytest.raises(ValueError, match="did you mean 'cifar10-anisotropic'"):
        recipe("cifar10-anisotropc")


@pytest.mark.parametrize("size", [(16, 16), (24, 24), (64, 48), (256, 256), (33, 33), (24, 256)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_recipe_for_any_images(size, channels):
    config, words = for_images(1000, channels, size)
    plan = Plan.of(config)
    assert all(side % plan.network.factor == 0 for side in size)
    assert f"{size[0]}×{size[1]}" in words
    assert "small" in words
    assert 1_000_000 - config.batch < config.images <= 50_000_000


def test_the_length_is_in_images():
    assert tiny(images=40, batch=4).steps == 10
    assert tiny(images=41, batch=4).steps == 11
