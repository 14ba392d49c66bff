"""A file is the older one or the new one, whole, whatever happens to its writer."""

import os
import resource
import signal
import stat

import numpy as np
import pytest

from anisodiff.io.atomic import atomic, replacing
from anisodiff.io.picture_folder import PictureFolder
from anisodiff.io.records import RecordKind
from anisodiff.metrics.cache import load_arrays, store_arrays
from tests.support.children import in_child

LIMIT = 100
"""Bytes after which a writer is killed; all of the files below are longer."""


def write_text(path, seed: int) -> None:
    with replacing(path) as temporary:
        temporary.write_text(f"{seed}" * 1000)


def write_arrays(path, seed: int) -> None:
    store_arrays(path, "key", {"x": np.random.default_rng(seed).random(50)})


def write_image(path, seed: int) -> None:
    folder(path).write(path, np.random.default_rng(seed).integers(0, 256, (9, 9, 3), np.uint8))


def folder(path) -> PictureFolder:
    return PictureFolder(path.parent, RecordKind("anisodiff pictures", 1), "record.json", [path])


def die_in_the_middle(write, path) -> None:
    """The system kills who writes beyond the limit: the first bytes are on the disk, the others never come."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    write(path, 2)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("write", "name"), [(write_text, "a.txt"), (write_arrays, "a.npz"), (write_image, "00000007.png")]
)
def test_a_writer_killed_midway_leaves_the_older_file(tmp_path, write, name):
    path = tmp_path / name
    write(path, 1)
    older = path.read_bytes()
    status = in_child(lambda: die_in_the_middle(write, path))
    assert os.WTERMSIG(status) == signal.SIGXFSZ
    assert path.read_bytes() == older
    (half,) = (p for p in tmp_path.iterdir() if p != path)
    assert half.name.startswith(".")
    assert half.stat().st_size == LIMIT
    write(path, 2)  # what the dead one left is in nobody's way
    assert path.read_bytes() != older
    assert half.exists()
    if write is write_arrays:
        assert load_arrays(path, "key") is not None
    if write is write_image:
        path.write_bytes(older[:-1])
        pictures, record = folder(path), RecordKind("anisodiff pictures", 1).new({})
        assert pictures.begin(record) == [path]  # it is cut off
        assert not half.exists()
        write(path, 2)
        assert pictures.begin(record) == []


@pytest.mark.parametrize("writer", [atomic, replacing])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_write_keeps_the_older_file(tmp_path, writer, error):
    target = tmp_path / "a.txt"
    target.write_text("older")
    with pytest.raises(error), writer(target) as temporary:
        temporary.write_text("half")
        raise error
    assert target.read_text() == "older"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_what_the_disk_refuses(tmp_path):
    """The writer itself passes it on; for a file that a user has named it is one line."""
    (tmp_path / "file").write_text("in the way of a folder")
    with pytest.raises(NotADirectoryError), atomic(tmp_path / "file" / "a.txt", parents=False):
        pass
    with pytest.raises(FileNotFoundError), atomic(tmp_path / "missing" / "a.txt", parents=False):
        pass
    with pytest.raises(ValueError, match=r"^cannot write .*a\.txt: (Not a directory|File exists)$"):
        write_text(tmp_path / "file" / "a.txt", 1)
    with pytest.raises(ValueError, match="it is a folder; give a file name"):
        write_text(tmp_path, 1)
    with pytest.raises(FileNotFoundError), atomic(tmp_path / "gone") as temporary:
        temporary.unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_is_as_open_to_others_as_any_new_one(tmp_path):
    for number, write in enumerate((write_text, write_arrays, write_image)):
        write(tmp_path / f"{number:08d}", 1)
    (tmp_path / "plain").touch()
    assert len({stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}) == 1


def test_a_temporary_file_has_the_suffix_of_its_target_or_another(tmp_path):
    for suffix, expected in ((None, ".png"), (".part", ".part"), ("", "")):
        with atomic(tmp_path / "a.png", suffix=suffix) as temporary:
            assert temporary.suffix == expected
            assert temporary.parent == tmp_path
