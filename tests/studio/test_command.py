"""`anisodiff studio` from the command line, and a few people at once in the server that it starts."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from tests.support.children import interruptible

ROOT = Path(__file__).parents[2]


def test_mistakes_are_one_line(refused, tmp_path):
    refused("studio", "nosuch", says="no such folder: nosuch")
    refused("studio", "--results", "nosuch", says="no such folder: nosuch")
    refused("studio", "--host", "no.such.host.invalid", "--no-browser", says="expected an address of this machine")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused("studio", "--no-browser", "--port", taken.getsockname()[1], says="choose another --port")


def test_a_missing_extra_is_one_line_with_its_command(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    refused("studio", says="pip install 'anisodiff[studio]'")


def test_it_serves_and_ctrl_c_ends_it_in_the_middle_of_an_answer(tmp_path):
    words = [sys.executable, "-m", "anisodiff", "studio", "--no-browser", "--port", "0", "--device", "cpu"]
    with interruptible():
        child = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    address = child.stdout.readline().split()[-1]
    assert address.startswith("http://127.0.0.1:")
    assert child.stdout.readline().startswith(f"runs: {tmp_path.resolve()}")
    with httpx.Client(transport=httpx.HTTPTransport(retries=5), headers={"X-Client": "from-a-test"}) as client:
        body = {"model": "cifar10-tiny", "n": 16, "steps": 200}
        with client.stream("POST", f"{address}api/generate", json=body, timeout=60) as answer:
            assert next(answer.iter_lines())
            child.send_signal(signal.SIGINT)
            said = child.communicate(timeout=60)[0]
    assert child.returncode == 130
    assert "Traceback" not in said


def test_a_few_people_at_once():
    script = ROOT / "benchmarks" / "studio_load.py"
    words = [sys.executable, str(script), "--clients", "6", "--seconds", "3"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
