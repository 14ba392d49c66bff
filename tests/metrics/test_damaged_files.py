"""Damaged files and archives end in one line."""

from __future__ import annotations

import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anisodiff.metrics import Context, FeatureNetwork, Generation, Report, Settings, evaluate, image_set
from tests.metrics.conftest import TINY, Run, fingerprint, random_images, save_folder

Case = tuple[str, str]


def test_numbers_out_of_range_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    Image.fromarray(np.full((12, 16), 300, dtype=np.float32)).save(tmp_path / "set" / "a.tif")
    with pytest.raises(ValueError, match=r"no image can be used .a.tif: mode F with values in"):
        fingerprint(image_set(tmp_path / "set"))


def test_a_sample_that_cannot_be_decoded_moves_no_other_to_its_source(pooled: FeatureNetwork, tmp_path: Path) -> None:
    images, said = random_images(12), list[str]()
    samples = save_folder(images, tmp_path / "samples")
    (samples / "00003.png").write_bytes(b"words")

    def measured(limit: int | None) -> Report:
        return evaluate(
            samples, images, network=pooled, generation=Generation(sources=tuple(range(12))),
            settings=Settings(limit=limit), metrics=("memorization",),
            context=Context(cache=tmp_path, say=said.append),
        )  # fmt: skip

    for limit in (None, 3, 6):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = measured(limit)
        whole = limit == 3  # the broken one comes after those
        assert sum("samples: 1 of 12 images cannot be used" in str(w.message) for w in caught) == (not whole)
        assert ("source_recovered_pixels" in {value.name for value in report.values}) == whole
        assert ("recovery of sources is not measured: 1 sample cannot be decoded" in said) != whole
        said.clear()


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
        ("locked.zip", "locked.zip: no image can be used (00000.png: RuntimeError: File '00000.png' is encrypted"),
        ("unknown.zip", "unknown.zip: no image can be used (00000.png: NotImplementedError: That compression method"),
        ("torn.zip", "torn.zip: damaged or unreadable"),
        ("stored.npz", "stored.npz: damaged or unreadable"),
        ("packed.npz", "packed.npz: damaged or unreadable"),
        ("header.npz", "header.npz:images.npy is no readable array"),
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


def test_a_warning_appears_once(run: Run, tmp_path: Path) -> None:
    images = save_folder(random_images(12), tmp_path / "images")
    (images / "00003.png").write_bytes(b"words")
    code, _, err = run("images", "-r", "images", *TINY, "--metrics", "kid")
    assert code == 0, err
    assert err.count("images: 1 of 12 images cannot be used") == 1
