"""Places to write to that are no files."""

import json
import os
import stat
import subprocess
import sys
import threading

import pytest

from anisodiff.io.atomic import atomic, replacing


def test_a_device_is_written_into_not_replaced(tmp_path):
    """Root may replace /dev/null; so may anybody replace a pipe of their own."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    while True:
        try:
            with replacing(pipe) as temporary:
                temporary.write_text("[1, 2]")
            break
        except ValueError:  # the reader has not opened it yet
            continue
    reader.join()
    assert json.loads(got[0]) == [1, 2]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe.json"]
    with atomic("/dev/null") as temporary:
        temporary.write_text("gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_an_open_stream_goes_on(tmp_path):
    """/dev/stdout may be a pipe without a name, or a file that already holds something."""
    work = (
        "from anisodiff.io.atomic import replacing\nwith replacing('/dev/stdout') as t: t.write_text('[1]')\nprint(2)"
    )
    command = [sys.executable, "-c", f"print(0)\n{work}"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout == "0\n[1]2\n"
    with (tmp_path / "all.txt").open("w") as file:
        file.write("first\n")
        file.flush()
        subprocess.run(command, stdout=file, check=True)
    assert (tmp_path / "all.txt").read_text() == "first\n0\n[1]2\n"
    (tmp_path / "link").symlink_to("/dev/stdout")
    for name in (str(tmp_path / "link"), "/proc/thread-self/fd/1"):
        with (tmp_path / "all.txt").open("w") as file:
            subprocess.run([*command[:2], command[2].replace("/dev/stdout", name)], stdout=file, check=True)
        assert (tmp_path / "all.txt").read_text() == "0\n[1]2\n"
    with pytest.raises(ValueError, match="cannot write"), replacing("/dev/fd/99999999999999999999") as temporary:
        temporary.write_text("x")
    read, written = os.pipe()
    with atomic(f"/dev/fd/{written}") as temporary:
        temporary.write_text("[1]")
    os.close(written)
    with os.fdopen(read) as stream:
        assert stream.read() == "[1]"


def test_a_pipe_without_a_reader_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="No such device"), replacing(tmp_path / "pipe") as temporary:
        temporary.write_text("x")


def test_a_link_stays_and_a_circle_is_one_line(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "a.txt")
    for text in ("one", "two"):
        with replacing(tmp_path / "link.txt") as temporary:
            temporary.write_text(text)
        assert (tmp_path / "link.txt").is_symlink()
        assert (tmp_path / "real" / "a.txt").read_text() == text
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(ValueError, match="Too many levels"), replacing(tmp_path / "circle") as temporary:
        temporary.write_text("x")


@pytest.mark.parametrize(
    "words",
    [
        ("forward", "--output", "circle"),
        ("forward", "--output", "a.png", "--states", "circle"),
        ("sample", "cifar10-tiny", "--n", 1, "--steps", 1, "--out", "circle"),
        ("sample", "cifar10-tiny", "--n", 1, "--steps", 1, "--out", "a.zip", "--grid", "circle"),
        ("edit", "cifar10-tiny", "photo.png", "--out", "circle"),
        ("train", "--data", "circle", "-o", "run"),
        ("train", "--data", "photos", "-o", "circle"),
        ("data", "prepare", "circle", "--out", "data"),
        ("data", "prepare", "photos", "--out", "circle"),
        ("evaluate", "photos", "-r", "photos", "--network", "none", "--json", "circle"),
        ("compare", "ve", "--data", "photos", "--out", "circle"),
        ("demo", "--output", "circle"),
        ("diagnose", "--data", "circle"),
    ],
)
def test_a_circle_of_links_anywhere_is_one_line(command, tmp_path, words):
    from PIL import Image

    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "photos").mkdir()
    for name in ("photo.png", "photos/a.png", "photos/b.png"):
        Image.new("RGB", (8, 8), "red").save(tmp_path / name)
    code, _, err = command(*words, *(("--device", "cpu") if words[0] not in ("data", "forward", "diagnose") else ()))
    assert code == 2, err
    assert err.splitlines()[-1].startswith("anisodiff: "), err
    assert "Traceback" not in err
