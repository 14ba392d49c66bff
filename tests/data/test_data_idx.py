"""Fashion-MNIST's idx files, in small."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from anisodiff.data import FashionMnist, prepare
from anisodiff.data.idx import Table, read_idx

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (9, 28, 28), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 9, dtype=np.uint8)
SMALL = Table(
    rows=9,
    pixels=hashlib.sha256(IMAGES.tobytes()).hexdigest(),
    labels=hashlib.sha256(LABELS.tobytes()).hexdigest(),
)


def idx(values: NDArray[np.uint8]) -> bytes:
    return b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def test_files_are_found_by_content_packed_or_not(tmp_path: Path) -> None:
    other = RNG.integers(0, 256, (4, 28, 28), dtype=np.uint8)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.gz").write_bytes(gzip.compress(idx(other)))
    (tmp_path / "in" / "b.gz").write_bytes(gzip.compress(idx(LABELS)))
    (tmp_path / "in" / "c").write_bytes(idx(IMAGES))
    (tmp_path / "in" / "README").write_bytes(b"hello")
    done = prepare(FashionMnist(path=tmp_path / "in", table=SMALL), tmp_path / "out").dataset
    np.testing.assert_array_equal(done.images[:, 0], IMAGES)
    assert done.labels is not None
    assert done.labels.tolist() == LABELS.tolist()


def test_another_set_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(idx(IMAGES ^ 1))
    (tmp_path / "labels").write_bytes(idx(LABELS))
    with pytest.raises(ValueError, match=r"no images of Fashion-MNIST train \(other content: images \[9, 28, 28\]"):
        next(FashionMnist(path=tmp_path, table=SMALL).items())
    with pytest.raises(ValueError, match="expected one of train, test"):
        FashionMnist(path=tmp_path, split="val")  # type: ignore[arg-type]


def test_truncated_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(idx(IMAGES))[:-500])
    with pytest.raises(ValueError, match=r"cut\.gz is truncated or damaged"):
        next(FashionMnist(path=tmp_path, table=SMALL).items())
    for kept in (-1, 10, 6):
        with pytest.raises(ValueError, match=r"truncated\?"):
            read_idx(idx(IMAGES)[:kept])
    with pytest.raises(ValueError, match="expected an idx file"):
        read_idx(b"PNG")
