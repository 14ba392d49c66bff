"""A model to give away: the folder, its card, and the Hub over its own HTTP API on this machine."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import torch
import yaml
from PIL import Image

import anisodiff
from anisodiff.io import hub as hub_names
from anisodiff.io.checkpoint import find, folder_of
from anisodiff.training import Hooks, train
from anisodiff.training.preview import fit_prior
from tests.support.classes import labeled_pixels
from tests.support.forged import forge_config
from tests.support.hub import hub
from tests.training.conftest import dataset, pixels, tiny  # noqa: F401


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("shared") / "run"
    config = tiny(process="ve", images=16)
    train(config, dataset, folder, hooks=Hooks(fit_prior=fit_prior), track=())
    return folder


def test_a_folder_gives_the_same_images(run, tmp_path):
    model = anisodiff.load(run, "cpu")
    folder = model.save_pretrained(tmp_path / "faces", samples=4)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "manifest.json", "model.safetensors", "prior.safetensors", "samples.png",
    ]  # fmt: skip
    again = anisodiff.Generator.from_pretrained(folder, "cpu")
    assert torch.equal(model.sample(3, steps=5), again.sample(3, steps=5))
    assert again.origin.model == model.origin.model  # the weights, byte by byte
    twice = again.save_pretrained(tmp_path / "again", samples=4)
    for name in ("model.safetensors", "config.json", "samples.png"):
        assert (folder / name).read_bytes() == (twice / name).read_bytes()


def test_the_card_says_what_is_known(run, tmp_path):
    numbers = "| metric | value |\n|---|---|\n| fid | 12.3 |\n\nprotocol: 10,000 samples of /home/me/run/made"
    folder = anisodiff.load(run, "cpu").save_pretrained(tmp_path / "faces", numbers=numbers, samples=4)
    _, head, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "anisodiff"
    for words in (
        "# faces", "| Process | `ve` |", "`small`", "16 images seen in 4 steps of 4", "1×8×8", "| fid | 12.3 |",
        "10,000 samples of made", "![samples](samples.png)", "4 samples: seeds 0 to 3", "40 images from ",
    ):  # fmt: skip
        assert words in body, words
    whole = body + (folder / "config.json").read_text(encoding="utf-8")
    assert str(run.parent) not in whole
    assert "/home" not in whole


def test_the_card_says_what_was_kept_aside_once(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, picture in enumerate(pixels(10)):
        Image.fromarray(picture[0]).save(folder / f"{number}.png")
    words = {"size": 8, "network": {"name": "tiny", "nf": 8}, "batch": 8, "images": 8, "sample_every": 0}
    model = anisodiff.train(folder, tmp_path / "run", holdout=2, device="cpu", track=(), process="ve", **words)
    text = (model.save_pretrained(tmp_path / "shared", samples=0) / "README.md").read_text(encoding="utf-8")
    assert "| Data | 8 images from folder photos, 10 files, 2 held out, fingerprint `" in text


def test_the_card_names_the_classes(tmp_path):
    pixels, labels = labeled_pixels()
    words = {"size": 8, "network": {"name": "tiny", "nf": 8}, "batch": 8, "images": 8, "sample_every": 0}
    model = anisodiff.train(
        pixels, tmp_path / "run", labels=labels, classes="auto", device="cpu", track=(), process="ve", **words
    )
    text = (model.save_pretrained(tmp_path / "shared", samples=0) / "README.md").read_text(encoding="utf-8")
    assert "| Classes | 0, 1; label dropout 0.1 |" in text
    assert "images = model.sample(16, seed=0, classes='0')" in text


def test_a_name_that_is_no_utf8(run, tmp_path):
    folder = anisodiff.load(run, "cpu").save_pretrained(tmp_path / "shared\udcff", samples=0)
    assert "# shared\\udcff" in (folder / "README.md").read_text(encoding="utf-8")


def test_a_mistyped_folder_is_not_looked_for_on_the_hub(run):
    with pytest.raises(ValueError, match=r"^no such folder: runn; expected that of a run"):
        anisodiff.Generator.from_pretrained("runn", "cpu")
    with pytest.raises(ValueError, match=r"revision: got 'main', but .* is not on the Hub"):
        anisodiff.Generator.from_pretrained(run, "cpu", revision="main")


def test_text_of_a_stranger_stays_in_its_cell(run, tmp_path):
    folder = tmp_path / "copy"
    model = anisodiff.load(run, "cpu")
    model.save_pretrained(folder, samples=0)
    meta = json.loads((folder / "config.json").read_text())
    meta["data"]["source"] = "x |\n\n# Trust me\n<script>"
    forge_config(folder, meta)
    anisodiff.load(folder, "cpu").save_pretrained(tmp_path / "made", samples=0)
    card = (tmp_path / "made" / "README.md").read_text(encoding="utf-8")
    assert "\n# Trust me" not in card
    assert "<script>" not in card


def test_nothing_is_overwritten_or_left_behind(run, tmp_path, monkeypatch):
    model = anisodiff.load(run, "cpu")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(ValueError, match="is not empty: choose a new folder"):
        model.save_pretrained(tmp_path / "full")
    monkeypatch.setattr(type(model), "sample", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.save_pretrained(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_the_verb(run, command, refused, tmp_path):
    code, out, err = command("share", run, "--out", "faces", "--samples", 2, "--device", "cpu")
    assert code == 0, err
    assert out == "wrote faces\n"
    refused("share", run, says="--out FOLDER, or --push OWNER/NAME")
    refused("share", run, "--push", "no-owner", "--device", "cpu", says="expected hub:OWNER/NAME")


@pytest.mark.parametrize("name", ["hub:", "hub:name", "hub:a/b/c", "hub:../x", "hub:a/b@", "hub:a/b c"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="expected hub:OWNER/NAME"):
        hub_names.split(name)


def test_without_the_package(run, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    says = "needs the package huggingface_hub: pip install 'anisodiff[hub]'"
    refused("sample", "hub:me/faces", "--device", "cpu", says=f"hub:me/faces {says}")
    refused("share", run, "--push", "me/faces", "--device", "cpu", says=f"push_to_hub {says}")
    assert anisodiff.load(run, "cpu").sample(1, steps=2).shape == (1, 1, 8, 8)


SCRIPT = """
import json, pathlib, sys
import anisodiff
from anisodiff.cli.main import run

def verb(*words):
    sys.argv = ["anisodiff", *words, "--device", "cpu"]
    try:
        run()
    except SystemExit as stop:
        return stop.code or 0

def said(name):
    try:
        anisodiff.load(name, "cpu")
    except ValueError as error:
        return str(error)

folder = sys.argv[1]
model = anisodiff.load(folder, "cpu")
found = {"codes": [verb("share", folder, "--push", "me/faces", "--samples", "2")]}
again = anisodiff.load("hub:me/faces", "cpu")
found["equal"] = bool((again.sample(2, steps=4) == model.sample(2, steps=4)).all())
found["class"] = repr(anisodiff.Generator.from_pretrained("me/faces", "cpu"))
found["address"] = again.push_to_hub("me/faces", samples=0)
found["codes"] += [
    verb("sample", "hub:me/faces", "--n", "2", "--steps", "4", "--out", "made"),
    verb("edit", "hub:me/faces", *map(str, pathlib.Path("made").glob("*.png")), "--steps", "4", "--out", "edits"),
    verb("evaluate", "hub:me/faces", "--reference", "made", "--metrics", "sliced", "--n", "12", "--steps", "4"),
]
found["errors"] = [said("hub:me/none"), said("hub:me/other"), said("hub:me/damaged"), said("hub:me/outside")]
found["pinned"] = repr(anisodiff.load("hub:me/faces@" + again.saved.path.name, "cpu"))
import huggingface_hub
huggingface_hub.constants.HF_HUB_OFFLINE = True
found["offline"] = said("hub:me/faces")
print(json.dumps(found))
"""


def test_the_hub_over_http(run, tmp_path):
    """The real client of huggingface_hub against a stand-in: create, commit with LFS, download by commit."""
    pytest.importorskip("huggingface_hub")
    saved = find(run).path
    good = {name: (saved / name).read_bytes() for name in ("config.json", "model.safetensors", "prior.safetensors")}
    codes = {name: hashlib.sha256(data).hexdigest() for name, data in good.items()}
    head = {key: value for key, value in json.loads((saved / "manifest.json").read_text()).items() if key != "files"}
    with hub() as server:
        server.commit("me/other", {"README.md": b"another library"})
        manifest = json.dumps({**head, "files": codes}).encode()
        server.commit("me/damaged", {**good, "manifest.json": manifest, "model.safetensors": b"changed"})
        outside = json.dumps({**head, "files": {**codes, "../../escaped": "0"}}).encode()
        server.commit("me/outside", {**good, "manifest.json": outside, "../../escaped": b"!"})
        settings = {
            "HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_local",
            "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(run)], cwd=tmp_path, env={**os.environ, **settings},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        commits = server.repositories["me/faces"]
    assert found["codes"] == [0, 0, 0, 0], done.stderr[-3000:]
    assert found["equal"]
    assert found["offline"] is None  # from the cache
    assert found["class"].startswith("Generator(hub:me/faces: process ve")
    assert found["address"] == f"{server.address}/me/faces"
    assert "hub:me/faces@" in found["pinned"]
    none, other, damaged, outside_said = found["errors"]
    assert none.startswith("hub:me/none: RepositoryNotFoundError")
    assert "holds no model of anisodiff: manifest.json is missing" in other
    assert "model.safetensors is not what was written (checksum)" in damaged
    assert "lists ../../escaped, which is not inside" in outside_said
    assert not list(tmp_path.rglob("escaped"))
    assert len(commits) == 3  # the empty one, and two pushes
    files = next(iter(reversed(commits.values())))
    assert {"README.md", "manifest.json", "model.safetensors", "prior.safetensors", "samples.png"} <= set(files)
    assert server.objects  # tensors went by LFS
    assert any("/resolve/" in line for line in server.asked)
    assert not any("state" in line for line in server.asked)
    assert folder_of(run).is_dir()


def test_without_a_network_one_line_says_so(refused, monkeypatch, tmp_path):
    """Nothing listens at the address of the Hub."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    says = "hub:me/faces: no connection to the Hugging Face Hub, and it has not been downloaded before"
    refused("sample", "hub:me/faces", "--device", "cpu", says=says)


def test_an_answer_of_the_hub_is_not_taken_for_no_connection():
    class Answered(OSError):
        response = "429"

    class LocalEntryNotFoundError(OSError):
        """As huggingface_hub wraps it."""

    wrapped = LocalEntryNotFoundError("an error happened while trying to locate the files")
    assert hub_names.explain(wrapped).startswith("no connection to the Hugging Face Hub")
    wrapped.__cause__ = Answered("429 Too Many Requests")
    assert hub_names.explain(wrapped) == "Answered: 429 Too Many Requests"
