"""Folders and zips as sources: classes, splits, identity, and what is said when nothing is found."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anisodiff.data import celeba, imagenet, named_source, open_source, pictures, prepare


def picture(value: int = 0, size: tuple[int, int] = (8, 8), kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(buffer, kind)
    return buffer.getvalue()


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


MIXED = {
    "b/2.png": picture(2),
    "a/10.PNG": picture(10),
    "1.jpg": picture(1, kind="JPEG"),
    "a/notes.txt": b"no picture",
    ".hidden.png": picture(),
    "__MACOSX/a/._10.png": b"no picture either",
}


def test_splits_and_labels(tmp_path: Path) -> None:
    files = {f"{split}/{cls}/{i}.png": picture(i) for split in ("train", "val") for cls in "yx" for i in range(2)}
    for root in (write(tmp_path / "f", files), pack(tmp_path / "z.zip", files)):
        source = imagenet(root, "train")
        assert source.classes == ("x", "y")
        assert [(item.name, item.label) for item in source.items()] == [
            ("train/x/0.png", 0),
            ("train/x/1.png", 0),
            ("train/y/0.png", 1),
            ("train/y/1.png", 1),
        ]
    for root in (tmp_path / "f", tmp_path / "z.zip"):
        source = imagenet(root, "val")
        assert [item.name for item in source.items()] == [f"val/{name}.png" for name in ("x/0", "x/1", "y/0", "y/1")]
        assert source.classes == ("x", "y")
        with pytest.raises(ValueError, match=r"no folder 'test'.*it holds train, val"):
            imagenet(root, "test")  # not all of it, with 'train' and 'val' for classes
    only = pack(tmp_path / "val.zip", {name: data for name, data in files.items() if name.startswith("val")})
    with pytest.raises(ValueError, match=r"no folder 'train'.*it holds val"):
        imagenet(only)
    direct = imagenet(tmp_path / "f" / "train")
    assert direct.classes == ("x", "y")
    done = prepare(named_source("imagenet", tmp_path / "f"), tmp_path / "out", size=8).dataset
    assert done.labels is not None
    assert done.labels.tolist() == [0, 0, 1, 1]
    assert done.meta["classes"] == ["x", "y"]


def test_labels_need_class_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1\.jpg lies in no class folder"):
        pictures(write(tmp_path / "f", MIXED), labels=True)
    with pytest.raises(ValueError, match=r"one class folder \(only\)"):
        pictures(write(tmp_path / "g", {"only/1.png": picture()}), labels=True)


def test_identity_follows_content_not_place(tmp_path: Path) -> None:
    one = pack(tmp_path / "one.zip", MIXED)
    moved = pack(tmp_path / "moved.zip", MIXED)
    other = pack(tmp_path / "other.zip", MIXED | {"b/2.png": picture(3)})
    assert pictures(one).identity() == pictures(moved).identity()
    assert pictures(one).identity() != pictures(other).identity()
    root = write(tmp_path / "f", MIXED)
    before = pictures(root).identity()
    os.utime(root / "1.jpg", (1, 1))
    assert pictures(root).identity() != before


def message(call: object) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "texts", {"a.txt": b"x", "b/c.doc": b"y"})
    whole = pack(tmp_path / "whole.zip", MIXED).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "odd.bin").write_bytes(b"what is this")
    assert "No such file" in message(lambda: open_source(tmp_path / "nowhere"))
    assert "symbolic links" in message(lambda: open_source(tmp_path / "loop"))
    assert "holds no images" in message(lambda: open_source(tmp_path / "empty"))
    assert "holds no images" in message(lambda: open_source(tmp_path / "texts"))
    assert "truncated or no zip" in message(lambda: open_source(tmp_path / "cut.zip"))
    assert "expected a folder of images" in message(lambda: open_source(tmp_path / "odd.bin"))


def test_damaged_zip_member_is_skipped(tmp_path: Path) -> None:
    path = pack(tmp_path / "z.zip", {f"{i}.png": picture(i) for i in range(4)})
    data = bytearray(path.read_bytes())
    at = data.index(b"IDAT")  # inside the first member
    data[at + 8] ^= 0xFF
    path.write_bytes(data)
    done = prepare(path, tmp_path / "out", size=8).dataset
    assert [s["name"] for s in done.meta["skipped"]] == ["0.png"]
    assert done.images[:, 0, 0, 0].tolist() == [1, 2, 3]


def test_celeba_crop_size_and_splits(tmp_path: Path) -> None:
    values = np.full((218, 178, 3), 255, np.uint8)
    values[39:179, 19:159] = 100
    face = io.BytesIO()
    Image.fromarray(values).save(face, "PNG")
    names = ("000001", "162770", "162771", "182638")
    files = {f"img_align_celeba/{name}.png": face.getvalue() for name in names}
    path = pack(tmp_path / "celeba.zip", files | {"img_align_celeba/000002.png": picture()})
    done = prepare(named_source("celeba", path), tmp_path / "out").dataset
    assert done.images.shape == (2, 3, 64, 64)
    assert np.all(done.images == 100)
    assert done.meta["skipped"] == [{"name": "img_align_celeba/000002.png", "reason": "8×8 pixels, expected 218×178"}]
    assert [len(celeba(path, split)) for split in ("valid", "test", "all")] == [1, 1, 5]
    with pytest.raises(ValueError, match="expected one of train, valid"):
        celeba(path, "dev")
    with pytest.raises(ValueError, match="no face of CelebA's split test"):
        celeba(pack(tmp_path / "few.zip", {"000001.png": face.getvalue()}), "test")


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown dataset 'cifar-10'; did you mean 'cifar10'"):
        named_source("cifar-10", "x")
    with pytest.raises(ValueError, match="say where its folder or archive lies"):
        named_source("cifar10")


def test_an_lsun_folder_is_one_split(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--split test: a folder of LSUN holds one split"):
        named_source("lsun", tmp_path, split="test")
