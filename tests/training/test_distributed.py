"""Two processes at one global batch are one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anisodiff.runtime.distributed import Distributed
from anisodiff.training import find, read_log, train
from tests.support.children import together
from tests.training.conftest import WINDOWS, everything, tiny

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "torchrun": {"precision": "fp64", "accumulation": 2, "images": 40},
    "accelerate": {
        "process": WINDOWS,
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
from tests.training.test_distributed import in_two_parts

torch.set_num_threads(1)
in_two_parts("accelerate", open_dataset(sys.argv[1]), sys.argv[2])
"""


def in_two_parts(launcher: str, dataset, run) -> None:
    """Stopped and continued once."""
    changes = SETTINGS[launcher]
    for part in (0.5, 1):
        train(tiny(**{**changes, "images": int(part * changes["images"])}), dataset, run, track=())


def sharded(dataset, run) -> None:
    """Half a training with weights in shards: each process holds a part of them."""
    shard = Distributed.shard

    def watched(self, network):
        made = shard(self, network)
        held, whole = (
            sum(x.numel() for x in found)
            for found in ([p.to_local() for p in made.parameters()], [*made.parameters()])
        )
        assert held < 0.6 * whole, (held, whole)
        return made

    Distributed.shard = watched
    changes = SETTINGS["torchrun"]
    train(tiny(**{**changes, "images": changes["images"] // 2, "shard": True}), dataset, run, track=())


def on_two_nodes(dataset, run) -> None:
    """With the environment of torchrun, one process a node. (accelerate starts its two by torchrun itself.)"""

    def work(_: int) -> None:
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        in_two_parts("torchrun", dataset, run)
        sharded(dataset, f"{run}-sharded")

    import torch.distributed.fsdp  # noqa: F401  once, not in both

    together(work)


def by_accelerate(dataset, run, script: Path) -> None:
    """To accelerate, `--cpu` means one process: two have to be called GPUs."""
    script.write_text(SCRIPT, encoding="utf-8")
    words = [
        "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *words, str(script), str(dataset.path), str(run)], cwd=ROOT, timeout=180, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("launcher", SETTINGS)
def test_two_gloo_processes_equal_one(dataset, tmp_path, launcher):
    if launcher == "torchrun":
        on_two_nodes(dataset, tmp_path / "two")
    else:
        by_accelerate(dataset, tmp_path / "two", tmp_path / "script.py")
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
