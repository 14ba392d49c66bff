"""One writer for a folder; a killed process blocks nobody. (Without POSIX: tests/test_platforms.py.)"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anisodiff.io import atomic
from anisodiff.io.atomic import locked, sync_folder
from anisodiff.io.checkpoint import alone
from tests.support.children import in_child

ROOT = Path(__file__).parents[2]

HOLDER = """
import sys, time
from pathlib import Path
from anisodiff.io.checkpoint import alone

with alone(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_writer(tmp_path):
    with alone(tmp_path / "run"):
        for _ in range(2):
            with pytest.raises(ValueError, match="run is in use by another run: wait for it, or choose another") as e:
                alone(tmp_path / "run").__enter__()
            assert "\n" not in str(e.value)
        with alone(tmp_path / "other"):
            pass
    assert list((tmp_path / "run").iterdir()) == []
    with alone(tmp_path / "run"):
        pass


def test_another_process_is_refused_until_the_first_is_killed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(ValueError, match="in use by another run"):
                alone(tmp_path).__enter__()
        finally:
            holder.kill()
    assert holder.returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").exists()  # left by the kill, and in nobody's way
    with alone(tmp_path):
        pass
    assert not (tmp_path / ".lock").exists()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_block_that_fails_frees_the_lock(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "a.lock") as free:
        assert free
        raise KeyboardInterrupt
    with locked(tmp_path / "a.lock") as free:
        assert free
        with locked(tmp_path / "a.lock") as again:
            assert not again

        def other() -> None:
            with locked(tmp_path / "a.lock") as mine:
                assert not mine

        assert in_child(other) == 0
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_a_lock(tmp_path):
    """The holder frees it after a moment; one that waits longer gets it, one that waits less does not."""
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "a.lock"):
            held.set()
            go.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    with locked(tmp_path / "a.lock", wait=0.1) as free:
        assert not free
    threading.Timer(0.2, go.set).start()
    with locked(tmp_path / "a.lock", wait=10) as free:
        assert free
        assert go.is_set()
    holder.join()


def test_many_processes_take_turns(tmp_path):
    """Each adds one to a number, read and written apart: an increment is lost if two ever hold the lock at once."""
    (tmp_path / "number").write_text("0")
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom anisodiff.io.atomic import locked\n"
        "number, done = Path(sys.argv[1]) / 'number', 0\n"
        "while done < 40:\n"
        "    with locked(number.with_name('lock')) as free:\n"
        "        if free:\n"
        "            value = int(number.read_text())\n            time.sleep(0.0005)\n"
        "            number.write_text(str(value + 1))\n            done += 1\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment) for _ in range(4)]
    assert [child.wait(60) for child in children] == [0] * 4
    assert (tmp_path / "number").read_text() == "160"


def test_where_nothing_can_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write below .*file.run \(Not a directory\): choose another folder"):
        alone(tmp_path / "file" / "run").__enter__()


def test_a_folder_that_cannot_be_opened_is_not_synced(tmp_path, monkeypatch):
    """As on Windows; any other error of the disk is passed on."""
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(atomic.os, "open", refuse)
    sync_folder(tmp_path)
