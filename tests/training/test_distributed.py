"""Two processes at one global batch are one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anisodiff.training import find, read_log, train
from tests.training.conftest import everything, tiny

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "torchrun": {"precision": "fp64", "accumulation": 2, "images": 40},
    "accelerate": {
        "process": "anisotropic",
        "precision": "fp64",
        "accumulation": 2,
        "batch": 8,
        "images": 32,
    },
}
SCRIPT = """
import sys
import torch
from anisodiff.data import open_dataset
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import train
from tests.training.conftest import tiny
from tests.training.test_distributed import SETTINGS

def watched(self, network, shard=Distributed.shard):
    made = shard(self, network)
    held, whole = (sum(x.numel() for x in found) for found in (
        [p.to_local() for p in made.parameters()], [*made.parameters()],
    ))
    assert held < 0.6 * whole, (held, whole)
    return made

Distributed.shard = watched
torch.set_num_threads(1)
launcher, data, run = sys.argv[1:]
changes = SETTINGS[launcher]
for part in (0.5, 1):  # stopped and continued once
    config = tiny(**{**changes, "images": int(part * changes["images"])})
    train(config, open_dataset(data), run, track=())
if launcher == "torchrun":
    config = tiny(**{**changes, "images": changes["images"] // 2, "shard": True})
    train(config, open_dataset(data), f"{run}-sharded", track=())
"""


def launch(launcher: str, dataset, run, script: Path) -> None:
    """Two processes that meet at a free port of the loopback: of torchrun on two nodes, of accelerate on one.

    To accelerate, `--cpu` means one: two have to be called GPUs.
    """
    script.write_text(SCRIPT, encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
    commands = {
        "torchrun": [["torch.distributed.run", *meeting, "--node-rank", str(node)] for node in range(2)],
        "accelerate": [[
            "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
            "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
        ]],
    }[launcher]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *words, str(script), launcher, str(dataset.path), str(run)],
            cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for words in commands
    ]  # fmt: skip
    for process in started:
        _, told = process.communicate(timeout=180)
        assert process.returncode == 0, told[-3000:]


@pytest.mark.parametrize("launcher", SETTINGS)
def test_two_gloo_processes_equal_one(dataset, tmp_path, launcher):
    launch(launcher, dataset, tmp_path / "two", tmp_path / "script.py")
    train(tiny(**SETTINGS[launcher]), dataset, tmp_path / "one", track=())
    one, two = everything(tmp_path / "one"), everything(tmp_path / "two")
    assert one.keys() == two.keys()
    assert find(tmp_path / "two").step == find(tmp_path / "one").step >= 4
    others = [two]
    if launcher == "torchrun":  # sharded in two processes, then continued by one
        train(tiny(**SETTINGS[launcher]), dataset, tmp_path / "two-sharded", track=())
        others.append(everything(tmp_path / "two-sharded"))
    for other in others:
        assert other.keys() == one.keys()
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-6, msg=name)
    logged = [[record["loss"] for record in read_log(tmp_path / run)[-2:]] for run in ("one", "two")]
    torch.testing.assert_close(torch.tensor(logged[0]), torch.tensor(logged[1]), rtol=1e-6, atol=1e-6)
