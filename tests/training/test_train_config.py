"""A run's config: what it refuses, and that it reads back what it wrote."""

import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anisodiff.cli.names import LIST_OF_RECIPES
from anisodiff.data import NAMED
from anisodiff.pretrained import shipped
from anisodiff.registry import DEFAULT_PROCESS, PRESETS, process
from anisodiff.training import Plan, TrainConfig
from anisodiff.training.config import FIELDS
from anisodiff.training.recipes import RECIPES, recipe
from tests.training.conftest import tiny

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def test_reads_back_what_it_wrote():
    for config in (TrainConfig(), tiny(), recipe("cifar10-anisotropic-paper"), tiny(network={"name": "base"})):
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
        ("learns", "score_and_drif", "did you mean 'score_and_drift'"),
        ("calibration", 8, "calibration: got 8, expected a whole number, 16 or more"),
        ("batch", 1e99, r"batch: got 1e\+99, expected a whole number from 1 to 2\^53 - 1"),
        ("seed", 2**53, r"seed: got 9007199254740992, expected a whole number from 0 to 2\^53 - 1"),
        ("parameterization", "vee", "did you mean 've'"),
        ("process", {"preset": "heat", "sigma_max": 90}, "only ve and"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(key, value, words):
    with pytest.raises(ValueError, match=words):
        Plan.of(TrainConfig().changed({key: value}))


@pytest.mark.parametrize(
    ("batch", "accumulation", "world", "words"),
    [
        (14, 4, 1, "got 14 with accumulation = 4, expected a multiple of 4, such as 16"),
        (5, 1, 2, "got 5 with 2 processes, expected a multiple of 2, such as 6"),
        (12, 4, 2, "got 12 with accumulation = 4, 2 processes, expected a multiple of 8, such as 16"),
    ],
)
def test_a_batch_is_cut_evenly(batch, accumulation, world, words):
    with pytest.raises(ValueError, match=words):
        tiny(batch=batch, accumulation=accumulation).check_batch(world)


def test_names_of_other_trainers_lead_to_ours():
    for theirs, ours in (("learning_rate", "lr"), ("batch_size", "batch"), ("epochs", "images")):
        with pytest.raises(ValueError, match=f"unknown key '{theirs}'; did you mean '{ours}'"):
            TrainConfig().changed({theirs: 1})


def test_a_config_of_version_0_2_is_read():
    assert TrainConfig.from_dict({**tiny().to_dict(), "dequantize": False}) == tiny()
    with pytest.raises(ValueError, match="unknown key 'dequantize'"):
        TrainConfig.from_dict({**tiny().to_dict(), "dequantize": True})


def test_numbers_as_yaml_leaves_them():
    assert TrainConfig().changed({"lr": "2e-4", "images": "1e6"}).images == 1_000_000


SHORT = ("-base", "-small", "-tiny")


def original(name: str) -> str:
    """Church and bedroom differ in their images alone; in pixels they are LSUN."""
    return (
        name.replace("bedroom256", "church256")
        if name.endswith("-latent")
        else re.sub(r"^(church|bedroom)", "lsun", name)
    )


@pytest.mark.parametrize("name", [name for name in RECIPES if original(name) != name])
def test_recipes_of_one_kind_are_equal(name):
    assert recipe(name) == recipe(original(name))


@pytest.mark.parametrize("name", [name for name in RECIPES if original(name) == name])
def test_every_recipe_is_complete(name):
    config = recipe(name)
    plan = Plan.of(config)
    data, preset = name.split("-")[0], config.process["preset"]
    short = f"{data}-{name.rsplit('-', 1)[1]}" if name.endswith((*SHORT, "-latent")) else data
    if name == short:
        assert preset == DEFAULT_PROCESS
    else:
        assert name.startswith(f"{data}-{'song' if config.parameterization == 've' else preset}")
    noise = {}
    if preset in ("ve", "cartoon", DEFAULT_PROCESS) and not config.latent:
        noise = {"celeba64": {"sigma_max": 90}, "lsun256": {"sigma_max": 380}}.get(data, {})
    known = {"cifar10": (32, "cifar10"), "celeba64": (64, "celeba"), "scenes128": (128, "")}
    side, dataset = known.get(data, (256, "lsun"))
    assert config.size == (side, side)
    assert config.dataset == dataset
    assert dataset in (*NAMED, "")
    assert bool(config.latent) == name.endswith("-latent")
    if config.latent:
        side = 32
        assert config.state_shape == (4, 32, 32)
    assert plan.process.identity() == process(preset, side, **noise).identity()
    outputs = 2 if preset in ("anisotropic", "cartoon", DEFAULT_PROCESS) else 1
    assert plan.network.arguments["out_channels"] == outputs * config.state_shape[0]
    assert config.channel_pca == (preset in PRESETS and config.parameterization == "residual")
    assert 0 < config.log_every <= config.checkpoint_every <= config.sample_every < config.images
    assert config.flip == (name != "cifar10-heat-dissipation")
    assert config.steps * config.batch == config.images


PUBLISHED = {"cifar10": (62_758_787, 1), "celeba64": (62_758_787, 1), "lsun256": (65_574_421, 7)}
"""Parameters of Song et al.'s networks, and how many output layers they have (width 128 or 256)."""


PUBLISHED_RECIPES = [
    name for name in RECIPES if name.split("-")[0] in PUBLISHED and not name.endswith((*SHORT, "-latent"))
]


@pytest.mark.parametrize("name", PUBLISHED_RECIPES)
def test_recipes_have_the_published_networks(name):
    data, plan = name.split("-")[0], Plan.of(recipe(name))
    with torch.device("meta"):
        network = plan.network.build()
    count = sum(p.numel() for p in network.parameters())
    outputs = [v for k, v in network.state_dict().items() if k.endswith("head.conv.weight")]
    published, heads = PUBLISHED[data]
    assert len(outputs) == heads
    second = (
        sum(weight[:3].numel() + 3 for weight in outputs)
        if plan.kind.outputs(plan.process, plan.config.model_options) == 2
        else 0
    )
    smooth = plan.network.arguments["embedding"] == "positional"  # half as many features enter the embedding
    assert count == published + second - (128 * 512 if smooth else 0)
    config = plan.config
    if name == "cifar10-flow-matching":  # its authors' optimizer and dropout
        assert (config.lr, config.betas, config.clip, config.warm_up) == (1e-4, (0.9, 0.95), 0.0, 0)
        assert (config.batch, config.ema[0], config.network["dropout"]) == (512, "constant(decay=0.999)", 0.3)
        return
    assert (config.lr, config.betas, config.clip) == (2e-4, (0.9, 0.999), 1.0)
    assert config.warm_up == 5000 * config.batch
    assert config.batch == (64 if data == "lsun256" else 128)
    assert plan.network.arguments["dropout"] == (0.0 if data == "lsun256" else 0.1)
    assert config.recompute == (data == "lsun256")
    longer = data == "cifar10" and name not in ("cifar10-heat-dissipation", "cifar10-song")
    assert config.ema[0] == f"constant(decay={0.9999 if longer else 0.999})"


def test_the_recipe_of_the_model_that_ships():
    """So that the command on its card trains it again."""
    free = ("log_every", "checkpoint_every", "sample_every", "compile")
    stored = json.loads((shipped("cifar10-tiny") / "config.json").read_text())["config"]
    ours, theirs = (config.to_dict() for config in (recipe("cifar10-tiny"), TrainConfig.from_dict(stored)))
    assert {k: v for k, v in ours.items() if k not in free} == {k: v for k, v in theirs.items() if k not in free}


def test_song_is_ve_with_another_loss_and_another_use_of_the_network():
    for name in ("cifar10-{}-base", "celeba64-{}"):
        ours, theirs = (recipe(name.format(word)).to_dict() for word in ("ve", "song"))
        different = {key: value for key, value in theirs.items() if value != ours[key]}
        assert different == {
            "parameterization": "ve", "channel_pca": False, "weighting": "noise", "times": "log_uniform",
            "t_min": pytest.approx({"cifar10-{}-base": 0.0813921, "celeba64-{}": 0.0761384}[name], abs=1e-7),
        }  # fmt: skip
    assert recipe("cifar10-song").ema[0] == "constant(decay=0.999)"


def test_the_help_names_every_recipe():
    """In parts: the data, the process, the length."""
    for name in RECIPES:
        data, _, rest = name.partition("-")
        assert data in LIST_OF_RECIPES
        assert all(part in LIST_OF_RECIPES for part in rest.split("-"))


def test_the_papers_recipe_is_the_papers():
    plan = Plan.of(recipe("cifar10-anisotropic-paper"))
    assert plan.process.identity()["stencil"] == "paper"
    assert plan.process.identity()["step"].startswith("tamed(dt=0.01")
    assert plan.network.arguments["nf"] == 128
    assert plan.network.arguments["multipliers"] == (1, 2, 2, 2)
    assert (plan.config.lr, plan.config.warm_up / plan.config.batch, plan.config.clip) == (2e-4, 5000, 1.0)


def test_a_typo_in_a_recipes_name():
    with pytest.raises(ValueError, match="did you mean 'cifar10-anisotropic'"):
        recipe("cifar10-anisotropc")


def test_the_length_is_in_images():
    assert tiny(images=40, batch=4).steps == 10
    assert tiny(images=41, batch=4).steps == 11
