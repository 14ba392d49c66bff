"""Samples made while they are measured: by any model, and by a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anisodiff import priors
from anisodiff.data import prepare
from anisodiff.metrics import (
    Context,
    FeatureNetwork,
    Generation,
    Report,
    Settings,
    evaluate,
    generated,
    image_set,
    image_statistics,
    read_batches,
)
from anisodiff.metrics.samples import Origin, find_sources, ordered_fingerprint, read_origin, sources_of
from tests.metrics.conftest import TINY, Process, Run, random_images, save_folder
from tests.training.conftest import pixels, tiny


class Model:
    """Image s of a fixed table for seed s; counts what it is asked for."""

    def __init__(self, count: int = 60) -> None:
        self.images = random_images(count, seed=4)
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, seeds: Sequence[int]) -> torch.Tensor:
        self.asked.append(tuple(seeds))
        return self.images[list(seeds)].float() / 255


def test_samples_are_made_batch_by_batch_when_they_are_asked_for() -> None:
    model = Model()
    images = generated(model, 50, name="m", seed=7)
    assert (images.count, images.once, model.asked) == (50, True, [])
    steps = read_batches(images, 8)
    first = next(steps)
    assert len(model.asked) == 1  # nothing is made before it is wanted
    got = torch.cat([first, *steps])
    assert torch.equal(got, model.images[7:57])
    assert max(map(len, model.asked)) == 8
    assert [s for seeds in model.asked for s in seeds] == list(range(7, 57))


@pytest.mark.parametrize(("count", "world"), [(50, 2), (50, 3), (5, 4), (16, 2)])
def test_several_processes_make_each_sample_once_in_order(pooled: FeatureNetwork, count: int, world: int) -> None:
    parts: list[Any] = []
    settings = Settings(batch_size=8)
    for rank in range(world):  # what each process would hand over
        alone = Process(rank, world, lambda piece: parts.append(piece) or [piece])
        made = generated(Model(), count, name="m", distributed=alone)
        image_statistics(made, pooled, settings=settings, keep=5, context=Context(distributed=alone))
    joined = Process(0, world, lambda _: parts)
    made = generated(Model(), count, name="m", distributed=joined)
    whole = image_statistics(made, pooled, settings=settings, keep=5, context=Context(distributed=joined))
    expected = image_statistics(image_set(Model().images[:count]), pooled, settings=settings, keep=5)
    assert whole.digests == expected.digests
    torch.testing.assert_close(whole.features, expected.features)
    assert torch.equal(whole.kept, expected.kept)
    torch.testing.assert_close(whole.pixels.spectrum.power, expected.pixels.spectrum.power)
    with pytest.raises(ValueError, match="3 samples are too few for 4 processes"):
        generated(Model(), 3, name="m", distributed=Process(0, 4))


def test_a_streamed_report_is_that_of_the_images(pooled: FeatureNetwork, tmp_path: Path) -> None:
    reference, model = random_images(50, seed=2), Model()
    streamed = evaluate(generated(model, 60, name="m"), reference, network=pooled, context=Context(cache=tmp_path))
    stored = evaluate(image_set(model.images, name="m"), reference, network=pooled, context=Context(cache=tmp_path))
    assert streamed == stored

    class Broken(Model):
        def __call__(self, seeds: Sequence[int]) -> torch.Tensor:
            return super().__call__(seeds) * torch.nan

    with pytest.raises(ValueError, match="the model made NaN or infinite pixels in 60 of 60 images"):
        evaluate(generated(Broken(), 60, name="m"), reference, network=pooled, context=Context(cache=tmp_path))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``run``, trained for a moment on the prepared ``data`` of 40 gray images of 8²."""
    from anisodiff.generation import load
    from anisodiff.training import train
    from anisodiff.training.hooks import Hooks
    from anisodiff.training.preview import fit_prior

    folder = tmp_path_factory.mktemp("trained")
    np.save(folder / "raw.npy", pixels())
    dataset = prepare(folder / "raw.npy", folder / "data", size=8, channels=1).dataset
    train(tiny(images=8), dataset, folder / "run", track=(), hooks=Hooks(fit_prior=fit_prior))
    assert load(folder / "run", "cpu").size == (8, 8)
    return folder


def test_from_a_checkpoint_is_what_its_samples_on_the_disk_give(
    run: Run,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from anisodiff.generation import SamplingConfig, load, write_samples

    words = ("-r", trained / "data", *TINY, "--metrics", "fid,kid,prdc,edges", "--json", "-")
    code, out, err = run(trained / "run", "--n", 20, "--seed", 5, "--steps", 3, "--batch", 8, *words)
    assert code == 0, err
    streamed = Report.from_json(out)
    p = streamed.protocol
    assert (p.samples, p.samples_count, p.nfe, p.prior, p.seed) == ("run", 20, 3, "gaussian", 5)
    assert "20 samples" in err
    for kind in ("folder", "s.zip", "s.npz"):
        write_samples(load(trained / "run", "cpu"), range(5, 25), tmp_path / kind, SamplingConfig(steps=3, batch=8))
        code, out, err = run(kind, "--batch", 8, *words)
        assert code == 0, err
        stored = Report.from_json(out)
        assert stored.values == streamed.values
        assert stored.protocol == replace(p, samples=stored.protocol.samples)
    Path("s.zip.json").unlink()  # the zip has its protocol within
    assert Report.from_json(run("s.zip", "--batch", 8, *words)[1]).protocol.prior == "gaussian"


def test_sources_of_a_simulated_prior_are_known_from_the_seeds(
    run: Run,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[torch.Tensor] = []
    choose = priors.choose

    def watched(images: Any, count: int, source: Any) -> torch.Tensor:
        taken.append(choose(images, count, source))
        return taken[-1]

    monkeypatch.setattr(priors, "choose", watched)
    words = (trained / "run", "--n", 20, "--steps", 2, "--prior", "simulate", "--images", trained / "data")
    code, out, err = run(*words, "-r", trained / "data", *TINY, "--metrics", "memorization", "--json", "-")
    assert code == 0, err
    report = Report.from_json(out)
    assert {"source_recovered_features", "source_recovered_pixels"} <= {v.name for v in report.values}
    drawn = torch.cat([t for t in taken if t.shape[1:] == (1, 8, 8)])[:20]
    images = torch.from_numpy(np.load(trained / "data" / "images.npy")).float() / 255
    assert torch.equal(images[list(sources_of(tuple(range(20)), 40))], drawn)
    np.savez("other.npz", images=pixels(40, seed=3).transpose(0, 2, 3, 1))
    code, out, err = run(*words, "-r", "other.npz", *TINY, "--metrics", "memorization", "--json", "-")
    assert code == 0, err
    assert "recovery of sources is not measured: the prior started from other images than other" in err
    assert "source_recovered_features" not in out


def test_sources_are_left_alone_where_they_are_unsure(tmp_path: Path) -> None:
    images = random_images(10)
    np.savez(tmp_path / "set.npz", images=images.numpy())
    held = image_set(tmp_path / "set.npz")
    mark, number = ordered_fingerprint(held, tmp_path / "set.npz", 3)
    assert number == 10
    assert mark == prepare(tmp_path / "set.npz", tmp_path / "data", size=16, channels=3).dataset.fingerprint
    seeds = tuple(range(6))
    origin = Origin(generation=Generation(prior="simulate"), seeds=seeds, prior_images=mark)
    found = find_sources(origin, 6, held, tmp_path / "set.npz")
    assert found == sources_of(seeds, 10)
    assert all(0 <= i < 10 for i in found)
    said: list[str] = []
    for changed, count in (
        (origin, 5),
        (replace(origin, seeds=(1, 10**8)), 2),
        (replace(origin, prior_images="0" * 64), 6),
    ):
        assert find_sources(changed, count, held, tmp_path / "set.npz", say=said.append) is None
    assert len(said) == 3
    assert find_sources(replace(origin, generation=Generation(prior="gaussian")), 6, held, tmp_path) is None
    save_folder(images, tmp_path / "plain")
    assert read_origin(tmp_path / "plain") == Origin()
    (tmp_path / "plain" / "protocol.json").write_text(json.dumps({"seeds": "9-1"}))
    with pytest.raises(ValueError, match=r"protocol.json: seeds: got '9-1', but 9-1 runs backwards"):
        read_origin(tmp_path / "plain")
    for text in ("[]", json.dumps({"sources": "all"}), json.dumps({"sources": [1.5]})):
        (tmp_path / "plain" / "protocol.json").write_text(text)
        with pytest.raises(ValueError, match=r"protocol.json: (expected keys and values|sources: got .* a list)"):
            read_origin(tmp_path / "plain")
