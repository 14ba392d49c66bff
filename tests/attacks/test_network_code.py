"""A checkpoint, a run or a config from a stranger that names code: nothing is imported, nothing is called."""

import json
import shutil
import sys

import pytest
import yaml

import anisodiff
from anisodiff.io.checkpoint import find
from anisodiff.networks import own
from anisodiff.training import train
from tests.support.forged import forge_config
from tests.training.conftest import dataset, tiny  # noqa: F401

TRAP = "from pathlib import Path\nPath('ran').write_text('')\nclass Net: pass\n"
NAMES = ["trap:Net", "os:system", "subprocess:run", "trap.inner:Net", "builtins:exec", "anisodiff.registry:resolve"]
WRONG = [
    "../trap:Net",
    "trap:Net()",
    "trap",
    "trap:Net\n",
    ":Net",
    "trap:",
    "https://host/trap:Net",
    7,
    None,
    ["trap"],
]


def rename(run, network) -> None:
    """Let a checkpoint name another network, with checksums that fit."""
    folder = find(run).path
    meta = json.loads((folder / "config.json").read_text())
    meta["config"]["network"] = meta["network"] = network
    forge_config(folder, meta)
    lines = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**lines, "network": network}))


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny(images=4), dataset, folder, track=())
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A real run in the working folder, beside a module that leaves a file where it is imported."""
    monkeypatch.setattr(own, "_TRUSTED", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text(TRAP)
    return shutil.copytree(trained, tmp_path / "run")


def untouched(folder) -> None:
    assert not (folder / "ran").exists()
    assert "trap" not in sys.modules


@pytest.mark.parametrize("name", NAMES)
def test_a_path_in_a_checkpoint_is_text(run, name):
    rename(run, {"name": name})
    with pytest.raises(ValueError, match="nothing was imported"):
        anisodiff.load(run, "cpu")
    untouched(run.parent)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_path_is_refused(run, name):
    rename(run, {"name": name})
    with pytest.raises(ValueError, match=r"network\.name: (unknown|got)"):
        anisodiff.load(run, "cpu")
    untouched(run.parent)


def test_no_verb_imports_it(run, refused):
    rename(run, {"name": "trap:Net"})
    out = ("--device", "cpu", "-o", "made")
    for words in (
        ["sample", "run", *out],
        ["edit", "run", "photo.png", *out],
        ["evaluate", "run", "--metrics", "sliced", "--n", 12, "--device", "cpu"],
        ["train", "-o", "run", "--images", 8, "--device", "cpu"],
        ["train", "--config", "run/config.yaml", *out],
        ["train", "--config", "run/config.yaml", "--dry-run", *out],
        ["compare", "run", "--data", "run/data", "--network", "none", "--n", 12, *out],
    ):
        if words[0] == "compare":
            words[words.index("run/data")] = str(yaml.safe_load((run / "config.yaml").read_text())["data"])
        refused(*words, says="trap:Net is code outside of anisodiff, named by a file: nothing was imported")
        untouched(run.parent)


def test_a_start_that_names_it_is_refused_as_well(run, command, dataset, tmp_path):  # noqa: F811
    rename(run, {"name": "trap:Net"})
    words = ("train", "ve", "--data", dataset.path, "--from", "run", "--set", "calibration=16", "--device", "cpu")
    code, _, err = command(*words, "-o", "new")
    assert code == 2
    assert "trap:Net is code outside of anisodiff" in err.splitlines()[-1]
    untouched(tmp_path)


def test_to_trust_one_is_not_to_trust_another(run):
    own.trust({"network": "other:Net"})
    rename(run, {"name": "trap:Net"})
    with pytest.raises(ValueError, match="nothing was imported"):
        anisodiff.load(run, "cpu")
    untouched(run.parent)


def test_allowed_and_still_no_network(run):
    """With --trust-code the module is imported; what is no network is not called."""
    rename(run, {"name": "os:system", "command": "touch ran"})
    with pytest.raises(ValueError, match=r"expected a class of torch\.nn\.Module, got builtin_function"):
        anisodiff.load(run, "cpu", trust_code=True)
    untouched(run.parent)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_layers": 10**9}, {"num_attention_heads": 10**6}, {"patch_size": 0}, {"patch_size": "x"},
        {"classes": 10**9}, {"dropout": -1}, {"sample_size": 7}, {"num_layers": [2]}, {"activation_fn": "os.system"},
        {"attention_head_dim": 1024, "num_attention_heads": 256, "patch_size": 1},
    ],
)  # fmt: skip
def test_arguments_for_diffusers_that_would_take_hours(run, keys):
    pytest.importorskip("diffusers")
    rename(run, {"name": "diffusers:DiTTransformer2DModel", **keys})
    with pytest.raises(ValueError, match="network"):
        anisodiff.load(run, "cpu")
