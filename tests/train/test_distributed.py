"""Two processes at one global batch are one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

from anisodiff.train import find, read_log, train

from .conftest import everything, tiny

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
import torch
from anisodiff.data import open_dataset
from anisodiff.train import train
from tests.train.conftest import tiny

torch.set_num_threads(1)
data, run = sys.argv[1:]
for images in (20, 40):  # stopped and continued once
    train(tiny(precision="fp64", accumulation=2, images=images), open_dataset(data), run, tensorboard=False)
"""


def launch(dataset, run, script: Path) -> None:
    """`torchrun --nproc-per-node 2`, on the loopback."""
    script.write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, str(script), str(dataset.path), str(run)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_two_gloo_processes_equal_one(dataset, tmp_path):
    launch(dataset, tmp_path / "two", tmp_path / "script.py")
    train(tiny(precision="fp64", accumulation=2), dataset, tmp_path / "one", tensorboard=False)
    one, two = everything(tmp_path / "one"), everything(tmp_path / "two")
    assert one.keys() == two.keys()
    assert find(tmp_path / "two").step == 10
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-6, msg=name)
    logged = [[record["loss"] for record in read_log(tmp_path / run)[-2:]] for run in ("one", "two")]
    torch.testing.assert_close(torch.tensor(logged[0]), torch.tensor(logged[1]), rtol=1e-6, atol=1e-6)
