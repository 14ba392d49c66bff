from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.data import prepare
from anisodiff.io.images import Fit
from anisodiff.metrics import image_set, read_batches
from tests.metrics.conftest import fingerprint, random_images, save_folder


def save_zip(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"inside/{file.name}")
    return path


def all_images(source: object) -> torch.Tensor:
    return torch.cat(list(read_batches(image_set(source), 3)))  # type: ignore[arg-type]


def test_folder_zip_npz_array_and_batches_give_the_same_images_and_fingerprint(tmp_path: Path) -> None:
    images = random_images(8)
    folder = save_folder(images, tmp_path / "set")
    archive = save_zip(folder, tmp_path / "set.zip")
    stored = tmp_path / "set.npz"
    np.savez_compressed(stored, images=images.permute(0, 2, 3, 1).numpy())
    np.save(plain := tmp_path / "set.npy", images.numpy())
    sources = [folder, str(folder), archive, stored, plain, images, images.numpy(), list(images.split(3))]
    for source in sources:
        assert torch.equal(all_images(source), images)
    assert len({fingerprint(image_set(s)) for s in sources}) == 1
    assert [image_set(s).count for s in sources[:7]] == [8] * 7


def test_fingerprint_ignores_order_and_batches_but_not_pixels() -> None:
    images = random_images(6)
    mark = fingerprint(image_set(images), batch_size=4)
    assert fingerprint(image_set(images.flip(0)), batch_size=1) == mark
    changed = images.clone()
    changed[2, 1, 3, 3] += 1
    assert fingerprint(image_set(changed)) != mark
    assert fingerprint(image_set(images[:5])) != mark


def test_a_generator_is_walked_once_and_only_as_far_as_needed() -> None:
    taken = []

    def batches():
        for n in range(10):
            taken.append(n)
            yield random_images(4, seed=n)

    images = image_set(batches())
    assert images.once
    assert sum(len(b) for b in read_batches(images, 99, limit=6)) == 6
    assert taken == [0, 1]


def test_npz_is_read_piece_by_piece(tmp_path: Path) -> None:
    stored = tmp_path / "many.npz"
    images = random_images(50)
    np.savez(stored, images.numpy())  # [N,C,H,W] under numpy's own name
    sizes = [len(b) for b in read_batches(image_set(stored), 16)]
    assert sizes == [16, 16, 16, 2]
    assert torch.equal(all_images(stored), images)


def test_an_npz_gives_the_images_that_prepare_takes(tmp_path: Path) -> None:
    """Floats, gray stacks, and which of several arrays."""
    images = random_images(5)
    np.savez(tmp_path / "a.npz", samples=images.permute(0, 2, 3, 1).numpy() / 255, latents=np.zeros((5, 4, 8, 8)))
    np.savez(tmp_path / "b.npz", images[:, 0].numpy())
    for name, expected in (("a", images), ("b", images[:, :1].expand(-1, 3, -1, -1))):
        assert torch.equal(all_images(tmp_path / f"{name}.npz"), expected)
        prepared = prepare(tmp_path / f"{name}.npz", tmp_path / name, size=16, channels=3).dataset
        assert torch.equal(torch.from_numpy(np.array(prepared.images)), expected)


def test_gray_images_become_three_channels(tmp_path: Path) -> None:
    (tmp_path / "gray").mkdir()
    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(tmp_path / "gray" / "a.png")
    got = all_images(tmp_path / "gray")
    assert got.shape == (1, 3, 16, 16)
    assert torch.equal(got[0, 0], got[0, 2])
    assert all_images(random_images(3)[:, :1]).shape == (3, 3, 16, 16)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "fit", [None, Fit(size=(8, 8), channels=3), Fit(size=(8, 8), channels=1), Fit(size=(6, 6), channels=3)]
)
def test_a_prepared_dataset_is_read_as_its_array_is_and_decoded_only_to_change_it(tmp_path, channels, fit) -> None:
    save_folder(random_images(5, size=8), tmp_path / "photos")
    prepare(tmp_path / "photos", tmp_path / "data", size=8, channels=channels)
    found, expected = (image_set(path, fit=fit) for path in (tmp_path / "data", tmp_path / "data" / "images.npy"))
    for size in (2, 5):
        assert torch.equal(*(torch.cat([*read_batches(images, size)]) for images in (found, expected)))
    assert (found.name, found.count, found.resize) == ("data", 5, expected.resize)
    assert (found.fitting is None) == (found.resize == "none")


def test_bad_sets_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    mixed = save_folder(random_images(2), tmp_path / "mixed")
    Image.new("RGB", (20, 16)).save(mixed / "z.png")
    broken = save_folder(random_images(2), tmp_path / "broken")
    (broken / "00000.png").unlink()
    (broken / "00001.png").write_bytes((broken / "00001.png").read_bytes()[:60])
    (tmp_path / "fake.zip").write_bytes(b"no zip at all")
    (tmp_path / "fake.npz").write_bytes(b"no npz at all")
    np.savez(tmp_path / "floats.npz", images=np.full((2, 8, 8, 3), 1.5))
    np.savez(tmp_path / "objects.npz", images=np.array([{}, {}], dtype=object))
    (tmp_path / "notes.txt").write_text("words")
    with zipfile.ZipFile(tmp_path / "hollow.zip", "w") as archive:
        archive.writestr("readme.txt", "words")
    cases: list[tuple[object, str]] = [
        (tmp_path / "empty", "holds no images"),
        (tmp_path / "absent", "No such file or directory.: expected a folder of images, a zip, an .npy or .npz file"),
        (
            mixed,
            r"mixed sizes: 00000.png is 16×16, z.png is 16×20; .* prepare \S*/mixed --output \S*/mixed-16 --size 16$",
        ),
        (broken, "no image can be used .00001.png: image file is truncated.*; repair or remove them"),
        (tmp_path / "fake.zip", "truncated or no zip"),
        (tmp_path / "hollow.zip", "holds no images"),
        (tmp_path / "fake.npz", "truncated or no zip"),
        (
            tmp_path / "floats.npz",
            r"floats.npz: 1 image cannot be used, .*row 0: float values in \[1.5, 1.5\], expected \[0, 1\]",
        ),
        (tmp_path / "objects.npz", "nothing is unpickled"),
        (tmp_path / "notes.txt", "expected a folder of images, a zip, an .npy or .npz file"),
        (
            torch.zeros(2, 3, 8, 8, dtype=torch.int64),
            r"array: got int64 \[2, 3, 8, 8\], expected batches .* of uint8",
        ),
        (torch.full((2, 3, 8, 8), 1.5), r"array: got values from 1.5 to 1.5, expected floats in \[0, 1\]"),
        (torch.zeros(2, 5, 8, 8, dtype=torch.uint8), "expected 1 or 3 channels"),
        (iter([]), "no images in iterator"),
        ([random_images(2), random_images(2, size=8)], "mixed sizes in batches"),
    ]
    for source, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            all_images(source)
        assert "\n" not in str(caught.value)


def test_a_cut_npz_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    images = random_images(5).numpy()
    with zipfile.ZipFile(path, "w") as archive, archive.open("images.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": images.shape})
        stream.write(images.tobytes()[:-100])
    with pytest.raises(ValueError, match="ends at row 4, expected 5 rows"):
        all_images(path)
