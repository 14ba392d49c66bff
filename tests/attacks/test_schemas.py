"""Well-formed files of ours with a key less, or a value of another type: read, or refused in one line."""

import copy
import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from anisodiff.data import open_dataset, prepare
from anisodiff.data.memory import in_memory
from anisodiff.experiments.layout import MADE, read_study
from anisodiff.experiments.layout import read_json as read_made
from anisodiff.experiments.page import _protocol as protocol_lines
from anisodiff.experiments.results import read_rows
from anisodiff.experiments.training import given_training
from anisodiff.generation import load
from anisodiff.generation.protocol import read_protocol
from anisodiff.io.schema import either, fields, of, optional, require, rows, table, text, whole
from anisodiff.metrics import Context, Report, cached_statistics, evaluate, image_set, load_statistics
from anisodiff.metrics.cache import load_arrays, read_key, store_arrays
from anisodiff.metrics.features import function_network
from anisodiff.metrics.references import fit_like
from anisodiff.metrics.samples import read_origin
from anisodiff.pretrained import shipped
from anisodiff.training import Plan, TrainConfig
from anisodiff.training.config import completed
from anisodiff.training.hooks import read_log
from anisodiff.training.setup import describe
from anisodiff.training.start import load_start
from tests.support.forged import forge_config

ODD = (None, True, -1, 10**30, 0.5, float("nan"), "x", [], [1], {}, {"a": 1})


def changed(values, odds=ODD, path=()):
    """Copies with one key less, or one value of another type, at every place of nested keys."""
    for key, value in values.items():
        yield (*path, key), "gone", {k: v for k, v in values.items() if k != key}
        for odd in odds:
            yield (*path, key), odd, {**values, key: odd}
        if isinstance(value, dict) and len(path) < 2:
            for place, what, inner in changed(value, odds, (*path, key)):
                yield place, what, {**values, key: inner}


def survives(read, values, write, odds=ODD) -> int:
    """How many of all changes are refused; every other exception fails the test."""
    refused = 0
    for place, what, bad in changed(values, odds):
        write(bad)
        try:
            read()
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error), (place, what)
        except Exception as error:
            raise AssertionError(f"{place} = {what!r}: {type(error).__name__}: {error}") from error
    return refused


def writer(path):
    return lambda values: path.write_text(json.dumps(values))


def test_shapes():
    @dataclass
    class Point:
        name: str
        x: float
        at: tuple[int, ...]
        note: str | None = None

    shape = fields(
        kind=text, runs=table(of(Point)), many=optional(rows(whole(0), count=2)), end=either(text, whole(3))
    )
    good = {"kind": "a", "runs": {"p": {"name": "n", "x": 1, "at": [1]}}, "end": 3, "later": 1}
    assert require(shape, good, "f") is good
    for place, value, says in (
        (("kind",), 3, "kind: got 3, expected text"),
        (("runs", "p", "x"), "y", "runs.p.x: got 'y', expected a number"),
        (("runs", "p", "at"), [1, "2"], r"runs.p.at\[1\]: got '2'"),
        (("runs", "p", "z"), 1, "runs.p.z: unknown key"),
        (("many",), [1], "many: got list, expected a list of 2"),
        (("many",), [1, -1], r"many\[1\]: got -1, expected a whole number from 0"),
        (("end",), 2, "end: got 2, expected a whole number from 3"),
    ):
        bad = copy.deepcopy(good)
        inner = bad
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        with pytest.raises(ValueError, match=f"f is damaged: {says}"):
            require(shape, bad, "f")
    with pytest.raises(ValueError, match="f is damaged: kind: got nothing"):
        require(shape, {}, "f")
    with pytest.raises(ValueError, match="f is damaged: got list, expected keys"):
        require(shape, [], "f")


def test_meta_of_a_dataset(tmp_path):
    made = prepare(in_memory(np.zeros((2, 8, 8), np.uint8)), tmp_path / "data", size=8, channels=1).dataset
    path = made.path / "meta.json"
    values = json.loads(path.read_text())

    def read() -> None:
        dataset = open_dataset(made.path)
        dataset.describe()
        fit_like(dataset.meta, (8, 8), 1)

    assert {"crop", "resample"} <= set(values["identity"]["fit"])
    assert survives(read, values, writer(path)) > 60


def test_config_and_manifest_of_a_checkpoint(tmp_path):
    shutil.copytree(shipped("cifar10-tiny"), tmp_path / "model")
    path, place = tmp_path / "model" / "config.json", tmp_path / "model" / "manifest.json"
    meta, manifest = json.loads(path.read_text()), json.loads(place.read_text())
    few = {key: meta["config"][key] for key in ("process", "network", "size", "channels", "ema")}
    rest = {key: value for key, value in meta["config"].items() if key not in few}

    def write(values) -> None:
        held = dict(values)
        if isinstance(held.get("config"), dict):
            held["config"] = {**rest, **held["config"]}
        forge_config(tmp_path / "model", held)

    def read() -> None:
        load(tmp_path / "model", device="cpu")

    small = {key: value for key, value in meta.items() if key not in ("process", "network")}
    kept = {"process": meta["process"], "network": meta["network"]}
    assert survives(read, {**small, "config": few}, lambda values: write({**kept, **values}), ODD[::4]) > 40
    shutil.copy(shipped("cifar10-tiny") / "config.json", path)
    assert survives(read, manifest, writer(place), ODD[::4]) > 15


def test_the_network_of_a_checkpoint_to_start_from(tmp_path):
    shutil.copytree(shipped("cifar10-tiny"), tmp_path / "model")
    meta = json.loads((tmp_path / "model" / "config.json").read_text())
    plan = Plan.of(TrainConfig.from_dict(completed(meta["config"])))
    about = {**describe(plan, None), "data": meta["data"]}
    assert load_start(tmp_path / "model", plan, about).tensors
    for bad in (None, "x", 0, True, [3], 1.5, 10**30, {}):
        forge_config(tmp_path / "model", {**meta, "network": {**meta["network"], "out_channels": bad}})
        with pytest.raises(ValueError, match="out_channels"):
            load_start(tmp_path / "model", plan, about)


NETWORK = function_network("rows", lambda x: x.float().flatten(1)[:, ::40] / 255, weights="rows")


def test_reports_protocols_and_logs(tmp_path):
    images = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    report = json.loads(evaluate(images, images, network=NETWORK, metrics=("fid",)).to_json())
    path = tmp_path / "report.json"

    def read() -> None:
        Report.from_json(path.read_text()).table()

    assert survives(read, report, writer(path)) > 150
    (tmp_path / "made").mkdir()
    place = tmp_path / "made" / "protocol.json"
    protocol = {
        "format": "anisodiff samples", "version": 2, "seeds": "0-3", "nfe": 5, "prior": "gaussian", "seed": 0,
        "count": 4, "channels": 1, "prior_images": "ab", "sources": [1, 2],
    }  # fmt: skip
    assert survives(lambda: read_origin(tmp_path / "made"), protocol, writer(place)) > 5
    assert survives(lambda: read_protocol(tmp_path / "made"), protocol, writer(place)) > 20
    for seeds, says in (
        ("9-1", "runs backwards"),
        ("all", "whole numbers"),
        ("1,1", "each seed once"),
        ("9" * 40, "2^62"),
    ):
        writer(place)({**protocol, "seeds": seeds})
        for reader in (read_origin, read_protocol, lambda out: read_made(out / "protocol.json", MADE)):
            with pytest.raises(ValueError, match=r"protocol\.json") as refused:  # the file, not the command's option
                reader(tmp_path / "made")
            assert says in str(refused.value)
            assert "seeds: got" in str(refused.value)
            assert "--seeds" not in str(refused.value)
    line = {"step": 3, "images": 12, "loss": 0.5, "images_per_second": 4.0}
    log = tmp_path / "log.jsonl"
    assert survives(lambda: read_log(tmp_path), line, writer(log)) == 0
    log.write_text(json.dumps(line) + '\n{"step": "x"}\n[]\n{"ste')
    assert read_log(tmp_path) == [line]


def test_study_and_results(tmp_path):
    images = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    report = json.loads(evaluate(images, images, network=NETWORK, metrics=("fid",)).to_json())
    runs = {"ve": {"run": "ve", "training": "ve", "text": "ve", "seed": 0, "config": {"lr": 1}}}
    study = {
        "format": "anisodiff study", "version": 3, "kind": "comparison", "command": "c", "fixed": {"n": 1},
        "runs": runs,
    }  # fmt: skip
    column = {"report": report, "sampling": {"sampler": "ode", "nfe": 5}}
    trained = {"images": 8, "seconds": 1.0, "steps": 2}
    (tmp_path / "results" / "ve").mkdir(parents=True)
    files = {"study.json": study, "ve/train.json": trained, "ve/gaussian-5.json": column}
    for name, values in files.items():
        writer(tmp_path / "results" / name)(values)

    def read() -> None:
        for row in read_rows(tmp_path, read_study(tmp_path, "comparison")):
            row.metric("gaussian-5", "fid")
            row.fact("train", "images")
        study = read_study(tmp_path, "comparison")
        protocol_lines(read_rows(tmp_path, study), study)

    read()
    for name, least in (("study.json", 60), ("ve/train.json", 8), ("ve/gaussian-5.json", 20)):
        assert survives(read, files[name], writer(tmp_path / "results" / name)) > least
        writer(tmp_path / "results" / name)(files[name])
    for n in (float("inf"), 0, "9"):
        writer(tmp_path / "results" / "study.json")({**study, "fixed": {"n": n}})
        with pytest.raises(ValueError, match=r"fixed\.n: got .*, expected a whole number"):
            read_study(tmp_path, "comparison")


def test_cached_statistics_with_an_array_less(tmp_path):
    images = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    context = Context(cache=tmp_path)
    cached_statistics(image_set(images), NETWORK, context=context)
    (file,) = (tmp_path / "statistics").iterdir()
    key = read_key(file)
    arrays = load_arrays(file, key)
    for name, array in arrays.items():
        for odd in (None, array.astype("U") if array.dtype.kind != "U" else np.zeros(3), np.zeros((1, 1, 1, 1))):
            kept = {k: v for k, v in arrays.items() if k != name} | ({} if odd is None else {name: odd})
            store_arrays(file, key, kept)
            with pytest.raises(ValueError, match="damaged statistics"):
                load_statistics(file, NETWORK)
            made = cached_statistics(image_set(images), NETWORK, context=context)  # computed again, and replaced
            assert made.count == 12
            assert load_statistics(file, NETWORK).count == 12


def test_a_line_of_a_log_without_its_images(tmp_path):
    """It says nothing of the time; the other lines do."""
    shutil.copytree(shipped("cifar10-tiny"), tmp_path / "model")
    good = [{"step": step, "images": 64 * step, "images_per_second": 32.0} for step in (1, 2)]
    lines = [good[0], {"step": 1}, {"step": 1, "images": None}, good[1]]
    (tmp_path / "model" / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    facts = given_training(tmp_path / "model")
    assert facts["seconds"] == facts["images"] / 32.0
