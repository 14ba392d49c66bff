"""Labels: from folders, arrays and named sets into a prepared dataset, and what is said of those that do not fit."""

import json
import shutil

import numpy as np
import pytest
import torch

from anisodiff.data import in_memory, open_dataset, open_source, prepare, verify_images
from anisodiff.data.source import class_folders as count_classes
from anisodiff.data.splitting import prepare_run
from tests.support.classes import class_folders, labeled_pixels


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "photos")


def prepared(tmp_path, name="data", **how):
    return prepare(open_source(tmp_path / "photos", **how), tmp_path / name, size=8, channels=1).dataset


def bright(dataset) -> np.ndarray:
    return dataset.images.mean((1, 2, 3)) > 127


def test_subfolders_are_classes_where_asked(photos, tmp_path):
    plain, told = prepared(tmp_path, "plain"), prepared(tmp_path, labels=True)
    assert plain.labels is None
    assert plain.classes == ()
    assert told.classes == ("bright", "dark")
    assert np.array_equal(told.labels == 0, bright(told))
    assert plain.fingerprint == told.fingerprint  # the images are the same, and so is their fingerprint
    assert plain.labels_fingerprint is None
    assert count_classes(open_source(photos)) == 2


def test_held_out_parts_keep_their_labels(photos, tmp_path):
    made = prepare_run(open_source(photos, labels=True), tmp_path / "run", "4", size=(8, 8), channels=1)
    for part in (made.data, made.heldout):
        assert part.classes == ("bright", "dark")
        assert np.array_equal(part.labels == 0, bright(part))


def test_pictures_beside_class_folders_are_refused(photos, tmp_path):
    (photos / "stray.png").write_bytes((photos / "dark" / "00.png").read_bytes())
    with pytest.raises(
        ValueError, match=r"stray\.png lies in no class folder; expected CLASS/NAME: move it, or train"
    ):
        open_source(photos, labels=True)
    assert count_classes(open_source(photos)) == 0
    assert len(open_source(photos)) == 13  # without classes all are taken


def test_classes_may_lie_below_one_folder_of_all(photos, tmp_path):
    """As in a zip that was made of a folder."""
    (tmp_path / "outer").mkdir()
    photos.rename(tmp_path / "outer" / "photos")
    source = open_source(tmp_path / "outer", labels=True)
    assert source.classes == ("bright", "dark")
    assert count_classes(open_source(tmp_path / "outer")) == 2
    shutil.rmtree(tmp_path / "outer" / "photos" / "bright")
    with pytest.raises(ValueError, match=r"got one class folder \(dark\), expected two or more"):
        open_source(tmp_path / "outer", labels=True)


def test_arrays_in_memory_and_in_files(tmp_path):
    images, labels = labeled_pixels()
    np.savez(tmp_path / "set.npz", images=images, labels=labels)
    one = prepare(open_source(tmp_path / "set.npz"), tmp_path / "one", size=8, channels=1).dataset
    other = prepare(in_memory(torch.from_numpy(images), torch.from_numpy(labels)), tmp_path / "other").dataset
    assert one.classes == other.classes == ("0", "1")
    assert one.labels_fingerprint == other.labels_fingerprint
    assert in_memory(images).identity() != in_memory(images, labels).identity()
    for wrong in (labels[:3], labels / 2):
        with pytest.raises(ValueError, match=r"labels: got .*, expected whole numbers \[40\], one an image"):
            in_memory(images, wrong)


@pytest.mark.parametrize("wrong", [-1, 1 << 20])
def test_numbers_that_stand_for_no_class_are_no_labels(tmp_path, wrong):
    images, labels = labeled_pixels()
    made = prepare(in_memory(images, np.where(labels == 1, wrong, 0)), tmp_path / "data").dataset
    assert made.labels is None


def test_damaged_labels_are_found(photos, tmp_path):
    made = prepared(tmp_path, labels=True)
    verify_images(made)
    np.save(made.path / "labels.npy", 1 - made.labels)
    with pytest.raises(ValueError, match=r"labels\.npy is not what was written: damaged or changed"):
        open_dataset(made.path, verify=True)
    np.save(made.path / "labels.npy", made.labels + 7)
    with pytest.raises(ValueError, match=r"labels\.npy: labels from 7 to 8, expected 0 to 1"):
        open_dataset(made.path)


def test_a_dataset_of_before_has_its_labels(photos, tmp_path):
    """Without a fingerprint of the labels, and with classes that were not named."""
    made = prepared(tmp_path, labels=True)
    meta = json.loads((made.path / "meta.json").read_text())
    (made.path / "meta.json").write_text(
        json.dumps({key: value for key, value in meta.items() if key not in ("labels_fingerprint", "classes")})
    )
    again = open_dataset(made.path, verify=True)
    assert again.classes == ("0", "1")
    assert again.labels_fingerprint != made.labels_fingerprint
