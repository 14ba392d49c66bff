"""Image files of every kind are decoded as `data prepare` does; damaged ones end in one line."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anisodiff.data import prepare
from anisodiff.metrics import Report, image_set
from anisodiff.metrics.images import fingerprint

from .conftest import TINY, Run, random_images, save_folder

Case = tuple[str, str]


def save_kind(kind: str, folder: Path) -> None:
    """Twenty images 12×16 of a kind that a plain conversion to RGB gets wrong."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for n in range(20):
        if kind == "deep":
            Image.fromarray(draw.integers(0, 65536, (12, 16), dtype=np.uint16)).save(folder / f"{n:02d}.png")
        elif kind == "float":
            Image.fromarray(draw.random((12, 16), dtype=np.float32)).save(folder / f"{n:02d}.tif")
        elif kind == "transparent":
            Image.fromarray(draw.integers(0, 256, (12, 16, 4), dtype=np.uint8)).save(folder / f"{n:02d}.png")
        else:
            rotate_channels = Image.fromarray(draw.integers(0, 256, (16, 12, 3), dtype=np.uint8))
            rotate_channels.getexif()[0x0112] = 6  # lies on its side
            rotate_channels.save(folder / f"{n:02d}.png", exif=rotate_channels.getexif())


@pytest.mark.parametrize("kind", ["deep", "float", "transparent", "turned"])
def test_a_folder_and_its_prepared_dataset_are_the_same_images(kind: str, tmp_path: Path) -> None:
    save_kind(kind, tmp_path / "set")
    prepare(tmp_path / "set", tmp_path / "data", size=(12, 16), channels=3)
    assert fingerprint(image_set(tmp_path / "set")) == fingerprint(image_set(tmp_path / "data"))


def test_transparent_images_are_at_distance_zero_from_themselves(run: Run, tmp_path: Path) -> None:
    save_kind("transparent", tmp_path / "set")
    prepare(tmp_path / "set", tmp_path / "data", size=(12, 16), channels=3)
    code, out, err = run("set", "-r", "data", *TINY, "--metrics", "fid", "--json", "-")
    assert code == 0, err
    assert Report.from_json(out)["fid"].value == pytest.approx(0, abs=1e-9)


def test_numbers_out_of_range_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    Image.fromarray(np.full((12, 16), 300, dtype=np.float32)).save(tmp_path / "set" / "a.tif")
    with pytest.raises(ValueError, match=r"a.tif: not a readable image .mode F with values in"):
        fingerprint(image_set(tmp_path / "set"))


def patch(path: Path, offset: int, value: int, width: str) -> None:
    """Write a number into every local and central header of a zip; offsets count from the local one."""
    content = bytearray(path.read_bytes())
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        at = content.find(mark)
        while at >= 0:
            struct.pack_into(width, content, at + offset + shift, value)
            at = content.find(mark, at + 4)
    path.write_bytes(content)


def damaged(folder: Path) -> list[Case]:
    images = save_folder(random_images(3), folder / "three")
    for name in ("locked", "unknown", "torn"):
        with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(images.iterdir()):
                archive.write(file, file.name)
            if name == "torn":
                archive.writestr("protocol.json", '{"seed": 1, "prior": "gaussian"}' * 40)
    patch(folder / "locked.zip", 6, 1, "<H")
    patch(folder / "unknown.zip", 8, 77, "<H")
    content = bytearray((folder / "torn.zip").read_bytes())
    inside = content.find(b"protocol.json") + len(b"protocol.json")
    content[inside : inside + 20] = b"\xff" * 20
    (folder / "torn.zip").write_bytes(content)
    for name, method in (("stored", np.savez), ("packed", np.savez_compressed)):
        method(folder / f"{name}.npz", images=random_images(20).numpy())
        content = bytearray((folder / f"{name}.npz").read_bytes())
        middle = len(content) // 2
        content[middle : middle + 40] = bytes(255 - b for b in content[middle : middle + 40])
        (folder / f"{name}.npz").write_bytes(content)
    np.savez(folder / "header.npz", images=random_images(4).numpy())
    content = (folder / "header.npz").read_bytes().replace(b"'shape'", b"'sh\xffpe'")
    (folder / "header.npz").write_bytes(content)
    return [
        ("locked.zip", "locked.zip: damaged or unreadable"),
        ("unknown.zip", "unknown.zip: damaged or unreadable"),
        ("torn.zip", "torn.zip: damaged or unreadable"),
        ("stored.npz", "stored.npz: damaged or unreadable"),
        ("packed.npz", "packed.npz: damaged or unreadable"),
        ("header.npz", "header.npz: "),
    ]


def test_damaged_archives_end_in_one_line(run: Run, tmp_path: Path) -> None:
    save_folder(random_images(4, seed=2), tmp_path / "reference")
    for name, message in damaged(tmp_path):
        code, _, err = run(name, "-r", "reference", *TINY)
        last = err.strip().splitlines()[-1]
        assert code == 2, (name, err)
        assert last.startswith("anisodiff: "), (name, err)
        assert message in last, (name, err)
        assert "Traceback" not in err
