"""Which files of a folder or zip are pictures, and what is told of those that cannot be decoded."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from anisodiff.io.images import to_array
from anisodiff.io.picture_files import Skipped, list_pictures
from tests.data.test_data_files import picture, write


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "far", {"x.png": picture(5)})
    write(tmp_path / "f", {"a.png": picture(1)})
    (tmp_path / "f" / "link").symlink_to(tmp_path / "far", target_is_directory=True)
    (tmp_path / "f" / "circle").symlink_to(tmp_path / "f", target_is_directory=True)
    assert [item.name for item in list_pictures(tmp_path / "f").items()] == ["a.png", "link/x.png"]


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may read everything")
def test_unreadable_folder(tmp_path: Path) -> None:
    root = write(tmp_path / "f", {"a/b.png": picture()})
    (root / "a").chmod(0)
    try:
        with pytest.raises(ValueError, match="check its permissions"):
            list_pictures(root)
    finally:
        (root / "a").chmod(0o755)


def test_a_hidden_folder_may_be_given_itself(tmp_path: Path) -> None:
    root = write(tmp_path / ".photos", {"a.png": picture(), ".b.png": picture()})
    assert [name for name, _, _ in list_pictures(root).entries] == ["a.png"]


def test_one_set_walked_twice_is_reported_once(tmp_path: Path) -> None:
    files = list_pictures(write(tmp_path / "f", {"a.png": b"x", "b.png": picture(5), "c.png": b""}))
    skipped = Skipped("f", len(files))
    for _ in range(2):
        read = list(skipped.read(files.items(), lambda image: to_array(image, 3)))
        assert [(item.name, pixels.max()) for item, pixels in read] == [("b.png", 5)]
        assert [*skipped.reasons] == ["a.png", "c.png"]
    with pytest.warns(UserWarning, match=r"^f: 2 of 3 images .* left out, the first is a.png .not an image"):
        skipped.report()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        skipped.report()


@pytest.mark.skipif(os.name == "nt", reason="names are bytes elsewhere")
def test_names_that_are_no_text_are_told_legibly(tmp_path: Path) -> None:
    root = write(tmp_path / "f", {"a.png": picture()})
    try:
        Path(os.fsdecode(os.fsencode(root) + b"/\xff.png")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system has no such names")
    skipped = Skipped("f", 2)
    assert len(list(skipped.read(list_pictures(root).items(), np.asarray))) == 1
    assert [*skipped.reasons] == ["\\udcff.png"]
