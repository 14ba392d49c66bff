"""Arrays in .npy and .npz files."""

from pathlib import Path

import numpy as np
import pytest

from anisodiff.data import array_file, guess, open_source, prepare

RNG = np.random.default_rng(0)
NHWC = RNG.integers(0, 256, (5, 8, 10, 3), dtype=np.uint8)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize("kind", ["uint8", "float32", "float64"])
def test_every_layout_and_type_gives_the_same_images(tmp_path: Path, layout: str, suffix: str, kind: str) -> None:
    values = NHWC if layout == "NHWC" else np.ascontiguousarray(NHWC.transpose(0, 3, 1, 2))
    values = values if kind == "uint8" else (values / 255).astype(kind)
    path = tmp_path / f"a.{suffix}"
    if suffix == "npy":
        np.save(path, values)
    else:
        np.savez_compressed(path, images=values, labels=np.arange(5))
    done = prepare(path, tmp_path / "out").dataset
    np.testing.assert_array_equal(done.images, NHWC.transpose(0, 3, 1, 2))
    assert done.size == (8, 10)
    assert (None if done.labels is None else done.labels.tolist()) == ([*range(5)] if suffix == "npz" else None)


def test_grayscale_stacks_and_the_only_array_that_fits(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", digits=NHWC[..., 0], about=np.zeros(3))
    source = open_source(tmp_path / "a.npz")
    assert source.shape == (1, 8, 10)
    done = prepare(source, tmp_path / "out").dataset
    np.testing.assert_array_equal(done.images[:, 0], NHWC[..., 0])
    assert done.labels is None


def test_large_arrays_are_guessed_down(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 300, 400, 3), np.uint8))
    assert guess(tmp_path / "a.npy").size == (256, 256)


def test_several_arrays_and_given_layout(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", one=NHWC, two=NHWC[:2])
    with pytest.raises(ValueError, match=r"holds one \[5, 8, 10, 3\], two \[2, 8, 10, 3\].*name it images"):
        array_file(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", np.zeros((4, 3, 9, 3), np.uint8))
    with pytest.raises(ValueError, match="both ends look like channels"):
        array_file(tmp_path / "b.npy")
    assert array_file(tmp_path / "b.npy", layout="NCHW").shape == (3, 9, 3)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros((4, 8, 8, 5), np.uint8), "no axis has 1 or 3 channels"),
        (np.zeros((4, 8, 8, 3), np.int64), "dtype int64"),
        (np.zeros((4, 8), np.uint8), r"shape \[4, 8\]"),
        (np.zeros((64, 48, 3), np.uint8), r"shape \[64, 48, 3\], which looks like one picture .* array\[None\]"),
        (np.zeros((0, 8, 8, 3), np.uint8), "one at least"),
        (np.asfortranarray(NHWC), "Fortran order"),
        (np.array([{}, {}]), "nothing is unpickled"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, values: np.ndarray, said: str) -> None:
    np.save(tmp_path / "a.npy", values, allow_pickle=True)
    with pytest.raises(ValueError, match=said):
        array_file(tmp_path / "a.npy")


def test_floats_outside_the_range_are_listed(tmp_path: Path) -> None:
    values = np.full((30, 4, 4, 3), 0.5, np.float32)
    values[7, 0, 0, 0] = np.nan
    values[9] = -1
    np.save(tmp_path / "a.npy", values)
    done = prepare(tmp_path / "a.npy", tmp_path / "out").dataset
    assert len(done) == 28
    assert [s["name"] for s in done.meta["skipped"]] == ["row 7", "row 9"]
    np.save(tmp_path / "b.npy", values * 2 - 1.5)
    with pytest.raises(ValueError, match=r"11 images cannot be used, expected at most 10 .*expected \[0, 1\]"):
        prepare(tmp_path / "b.npy", tmp_path / "out-b")
    assert not (tmp_path / "out-b").exists()


def test_truncated_and_corrupt_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", NHWC)
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(data[:-100])
    with pytest.raises(ValueError, match="ends at row 4, expected 5 rows"):
        prepare(tmp_path / "cut.npy", tmp_path / "out")
    (tmp_path / "head.npy").write_bytes(data[:40])
    with pytest.raises(ValueError, match="no readable array"):
        open_source(tmp_path / "head.npy")

    np.savez_compressed(tmp_path / "a.npz", images=NHWC)
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="truncated or no zip"):
        open_source(tmp_path / "cut.npz")
    (tmp_path / "junk.npz").write_bytes(b"junk" * 100)
    with pytest.raises(ValueError, match="truncated or no zip"):
        open_source(tmp_path / "junk.npz")
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    (tmp_path / "flip.npz").write_bytes(flipped)
    with pytest.raises(ValueError, match=r"flip.npz: damaged or unreadable|no readable array"):
        prepare(tmp_path / "flip.npz", tmp_path / "out")
    assert not (tmp_path / "out").exists()
