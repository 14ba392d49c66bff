"""Preparing: exact, atomic, idempotent, and clear about what went wrong."""

import json
import os
import resource
import shutil
import signal
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anisodiff.data import Dataset, guess, in_memory, is_dataset, open_dataset, open_source, prepare, verify_images
from anisodiff.data.dataset import fingerprint
from anisodiff.data.guessing import blurred
from tests.support.children import in_child


def pictures(root: Path, count: int, size: tuple[int, int] = (16, 16)) -> Path:
    root.mkdir()
    rng = np.random.default_rng(count)
    for i in range(count):
        values = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(values).save(root / f"{i:05d}.png")
    return root


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name.startswith("."))


def test_prepared_images_are_the_files_pixels(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 7)
    seen: list[tuple[int, int]] = []
    done = prepare(root, tmp_path / "out", progress=lambda i, n: seen.append((i, n)))
    want = np.stack([np.asarray(Image.open(p)).transpose(2, 0, 1) for p in sorted(root.iterdir())])
    np.testing.assert_array_equal(done.dataset.images, want)
    assert isinstance(done.dataset.images, np.memmap)
    assert not done.dataset.images.flags.writeable
    assert (len(done.dataset), done.dataset.size, done.dataset.channels) == (7, (16, 16), 3)
    assert seen == [(i, 7) for i in range(1, 8)]
    assert "picked 16×16 with 3 channels: all sampled images are 16×16" in done.message
    assert done.dataset.fingerprint == fingerprint(want)
    fit = {"size": [16, 16], "channels": 3, "crop": None, "resize": True, "resample": "lanczos"}
    assert done.dataset.meta["identity"]["fit"] == fit  # or older folders would count as other sets
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["images.npy", "meta.json"]
    assert leftovers(tmp_path) == []


def test_fingerprint_depends_on_content_and_shape_only(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 4)
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for path in root.iterdir():
            archive.write(path, path.name)
    one, two = (prepare(source, tmp_path / f"out{i}").dataset for i, source in enumerate((root, tmp_path / "in.zip")))
    assert one.fingerprint == two.fingerprint
    flat = np.asarray(one.images)
    assert fingerprint(flat.reshape(4, 3, 8, 32)) != one.fingerprint
    changed = flat.copy()
    changed[3, 2, 15, 15] ^= 1
    assert fingerprint(changed) != one.fingerprint


def test_second_call_does_nothing_and_other_inputs_are_refused(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 3)
    prepare(root, tmp_path / "out")
    before = (tmp_path / "out" / "images.npy").stat()
    again = prepare(root, tmp_path / "out", progress=lambda i, n: pytest.fail("it worked again"))
    assert not again.made
    assert "already prepared, nothing to do" in again.message
    assert (tmp_path / "out" / "images.npy").stat() == before
    with pytest.raises(ValueError, match="holds another dataset"):
        prepare(root, tmp_path / "out", size=8)
    assert open_dataset(tmp_path / "out", verify=True).size == (16, 16)
    assert prepare(root, tmp_path / "out", size=8, overwrite=True).made
    assert open_dataset(tmp_path / "out", verify=True).size == (8, 8)
    assert leftovers(tmp_path) == []
    with pytest.raises(ValueError, match="is no prepared dataset: expected a new or empty folder"):
        prepare(root, root)
    assert prepare(root, root / "out", size=8).made
    assert not prepare(root, root / "out", size=8).made  # its files are no pictures
    one = prepare(pictures(tmp_path / "single", 1), tmp_path / "one")
    assert one.message.startswith("prepared 1 image 3×16×16 from folder ")
    assert "single, 1 file;" in one.message


def test_one_corrupt_image_in_many_is_listed(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 30, (8, 8))
    data = (root / "00004.png").read_bytes()
    (root / "00004.png").write_bytes(data[: len(data) // 2])
    (root / "00009.png").write_bytes(b"")
    (root / "00011.jpg").symlink_to(tmp_path / "nowhere.jpg")
    done = prepare(root, tmp_path / "out", size=8).dataset
    assert done.images.shape == (28, 3, 8, 8)
    assert [s["name"] for s in done.meta["skipped"]] == ["00004.png", "00009.png", "00011.jpg"]
    assert all(s["reason"] for s in done.meta["skipped"])
    assert done.meta["seen"] == 31
    assert "3 unreadable left out (" in done.describe()
    open_dataset(tmp_path / "out", verify=True)


def test_too_many_corrupt_images_are_an_error_that_shows_some(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 14, (8, 8))
    for path in sorted(root.iterdir())[:11]:
        path.write_bytes(b"broken")
    with pytest.raises(
        ValueError, match=r"11 images cannot be used, expected at most 10 \(00000\.png: .*and 8 more\)"
    ):
        prepare(root, tmp_path / "out", size=8, channels=3)
    assert len(prepare(root, tmp_path / "out", size=8, channels=3, max_skipped=11).dataset) == 3
    with pytest.raises(ValueError, match="expected at most 2"):
        prepare(root, tmp_path / "out2", size=8, channels=3, max_skipped=2)
    for path in root.iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(ValueError, match="no image can be used"):
        prepare(root, tmp_path / "out3", size=8, channels=3, max_skipped=99)
    with pytest.raises(ValueError, match="none of the sampled images can be read"):
        prepare(root, tmp_path / "out3")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    root = pictures(tmp_path / "in", 6)

    def progress(done: int, total: int) -> None:
        if done == 3:
            raise stop

    with pytest.raises(stop):
        prepare(root, tmp_path / "out", progress=progress)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_killed_run_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 6)
    status = in_child(
        lambda: prepare(
            root, tmp_path / "out", progress=lambda i, n: os.kill(os.getpid(), signal.SIGKILL) if i == 4 else None
        )
    )
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not (tmp_path / "out").exists()
    lock, left = sorted(leftovers(tmp_path))
    assert lock == ".out.lock"
    assert not is_dataset(tmp_path / left)
    os.utime(tmp_path / left, (1, 1))  # long ago
    assert prepare(root, tmp_path / "out").made
    assert leftovers(tmp_path) == []


def test_of_two_processes_one_prepares_while_the_other_waits(tmp_path: Path) -> None:
    """As many as there are GPUs are started at once: they must not write a copy each."""
    root = pictures(tmp_path / "in", 4)
    waiting: list[threading.Thread] = []
    seen: list[bool] = []

    def second(done: int, total: int) -> None:
        if done == 1:
            waiting.append(threading.Thread(target=lambda: seen.append(prepare(root, tmp_path / "out").made)))
            waiting[0].start()
        if done == 4:
            waiting[0].join(0.2)
            assert waiting[0].is_alive()
            assert len(list(tmp_path.glob(".out.partial-*"))) == 1

    done = prepare(root, tmp_path / "out", progress=second)
    waiting[0].join(30)
    assert (done.made, seen) == (True, [False])
    assert len(open_dataset(tmp_path / "out", verify=True)) == 4
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_said_and_nothing_is_kept(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 40)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 1024, hard))  # writes beyond it fail as on a full disk
    try:
        with pytest.raises(OSError, match=r"cannot write .*out: File too large; nothing was kept"):
            prepare(root, tmp_path / "out", size=16, channels=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_too_little_room_is_seen_before_the_first_image(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 2, (8, 8))
    with pytest.raises(OSError, match=r"GB needed"):
        prepare(root, tmp_path / "out", size=30_000_000, channels=3)
    assert not (tmp_path / "out").exists()


def test_target_below_a_file_is_refused(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", 2)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot write below"):
        prepare(root, tmp_path / "file" / "out")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return prepare(pictures(tmp_path / "in", 5), tmp_path / "out").dataset


def test_damage_is_noticed_on_opening(dataset: Dataset) -> None:
    images = dataset.path / "images.npy"
    whole = images.read_bytes()
    images.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"cannot read .*images\.npy"):
        open_dataset(dataset.path)
    images.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    open_dataset(dataset.path)
    with pytest.raises(ValueError, match=r"has fingerprint .*damaged or changed; prepare it again"):
        open_dataset(dataset.path, verify=True)
    np.save(images, np.zeros((4, 3, 16, 16), np.uint8))
    with pytest.raises(ValueError, match=r"images\.npy is uint8 \[4, 3, 16, 16\], expected uint8 \[5, 3, 16, 16\]"):
        open_dataset(dataset.path)
    images.unlink()
    with pytest.raises(ValueError, match=r"cannot read .*images\.npy"):
        open_dataset(dataset.path)


def test_other_versions_and_other_folders(dataset: Dataset, tmp_path: Path) -> None:
    file = dataset.path / "meta.json"
    meta = json.loads(file.read_text())
    file.write_text(json.dumps(meta | {"version": 99}))
    with pytest.raises(ValueError, match="dataset version 99, expected 1"):
        open_dataset(dataset.path)
    file.write_text("{")
    with pytest.raises(ValueError, match="is no prepared dataset"):
        open_dataset(dataset.path)
    assert not is_dataset(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "want", "said"),
    [
        ([(64, 64)] * 10, (64, 64), "all sampled images are 64×64"),
        ([(64, 96)] * 10, (96, 64), "all sampled images are 96×64"),
        ([(64, 64)] * 39 + [(20, 20)], (64, 64), "39 of 40 sampled images are 64×64"),
        ([(100, 300), (130, 70), (500, 99)] * 3, (64, 64), "sizes differ"),
        ([(28, 28)] * 5, (24, 24), "expected a size from 16 to 256"),
        ([(900, 700)] * 5, (256, 256), "expected a size from 16 to 256"),
        ([(9, 9)] * 5, (16, 16), "expected a size from 16 to 256"),
    ],
)
def test_guessed_size(tmp_path: Path, sizes: list[tuple[int, int]], want: tuple[int, int], said: str) -> None:
    for i, size in enumerate(sizes):
        Image.new("L", size).save(tmp_path / f"{i}.png")
    got = guess(tmp_path)
    assert got.size == want
    assert got.channels == 1
    assert f"{want[0]}×{want[1]} with 1 channel" in got.words()
    assert said in got.words()


def test_guessed_channels_and_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for i in range(4):
        Image.new("L", (32, 16)).save(tmp_path / f"{i}.png", exif=exif)
    assert (guess(tmp_path).size, guess(tmp_path).channels) == ((32, 16), 1)
    Image.new("RGB", (32, 16)).save(tmp_path / "color.png", exif=exif)
    assert guess(tmp_path).channels == 3


def test_names_that_are_no_utf8_are_written_legibly(tmp_path: Path) -> None:
    """Names from old systems: neither a bad picture nor the folder's own name may cost the whole preparation."""
    root = os.fsencode(tmp_path / "in") + b"-\xe9"
    try:
        os.makedirs(root)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    Image.new("L", (16, 16), 7).save(os.fsdecode(root + b"/caf\xe9.png"))
    Path(os.fsdecode(root + b"/b\xe9d.png")).write_bytes(b"no picture")
    done = prepare(os.fsdecode(root), tmp_path / "out")
    assert len(done.dataset) == 1
    assert [skipped["name"] for skipped in open_dataset(tmp_path / "out").meta["skipped"]] == ["b\\udce9d.png"]
    assert "in-\\udce9" in done.message
    done.message.encode()  # can be printed
    assert not prepare(os.fsdecode(root), tmp_path / "out").made


def test_pictures_that_are_enlarged_are_told(tmp_path):
    (tmp_path / "photos").mkdir()
    for name, size in (("a", (1, 1)), ("b", (9, 12)), ("c", (20, 7)), ("d", (8, 8))):
        Image.new("RGB", size, "red").save(tmp_path / "photos" / f"{name}.png")
    made = prepare(tmp_path / "photos", tmp_path / "data", size=8)
    assert made.message.endswith(", 2 enlarged (the smallest from 1×1); picked 3 channels")
    assert made.dataset.blurred() == [
        "1 of 4 images is enlarged by more than a factor of two, the smallest from 1×1, and so blurred: remove such "
        "pictures, or choose a smaller size"
    ]
    assert open_dataset(tmp_path / "data").describe() in made.message
    (tmp_path / "photos" / "a.png").unlink()
    (tmp_path / "photos" / "c.png").unlink()
    made = prepare(tmp_path / "photos", tmp_path / "other", size=8)
    assert "enlarged" not in made.message
    assert made.dataset.blurred() == []


def test_pictures_that_would_be_enlarged_are_found_before_preparing(tmp_path: Path) -> None:
    for name, size in (("a", (4, 9)), ("b", (30, 15)), ("c", (16, 16)), ("d", (32, 40))):
        Image.new("RGB", size, "red").save(tmp_path / f"{name}.png")
    source = open_source(tmp_path)
    assert [line[:22] for line in blurred(source, (32, 32))] == ["2 of 4 sampled images "]
    assert "the smallest from 9×4," in blurred(source, (32, 32))[0]
    assert blurred(source, (8, 8)) == []
    held = in_memory(np.zeros((3, 8, 8), np.uint8))
    assert blurred(held, (16, 16)) == []
    assert blurred(held, (17, 17))[0].startswith("3 of 3 sampled images are enlarged")


def test_a_dataset_is_read_in_full_once_and_after_every_change(dataset: Dataset, tmp_path: Path) -> None:
    def read(path: Path) -> int:
        """How many images were read to verify the dataset."""
        done = [0]
        verify_images(open_dataset(path), lambda now, _: done.__setitem__(0, now))
        return done[0]

    assert [read(dataset.path) for _ in range(3)] == [5, 0, 0]
    shutil.copytree(dataset.path, tmp_path / "copy")  # with the times of the original
    assert [read(tmp_path / "copy") for _ in range(2)] == [5, 0]
    images = dataset.path / "images.npy"
    times = images.stat()
    images.write_bytes(whole := images.read_bytes())
    os.utime(images, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert read(dataset.path) == 5
    (dataset.path / "verified.json").write_text("{")
    assert [read(dataset.path) for _ in range(2)] == [5, 0]
    images.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(images, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ValueError, match="damaged or changed"):
        read(dataset.path)
    with pytest.raises(ValueError, match="damaged or changed"):  # not remembered as verified
        read(dataset.path)
