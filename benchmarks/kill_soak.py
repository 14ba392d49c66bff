"""Kill a training run again and again, at random moments and in the middle of writing, and look at what is left.

    python benchmarks/kill_soak.py --kills 50

Every second kill comes from outside at a random time; the others hit one of the effects on the disk of writing a
checkpoint (create, write, sync, rename, prune), each in its turn. After every kill each checkpoint must be whole;
every restart must continue; at the end of each round all files of the last checkpoint must equal those of a run that
nobody disturbed.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from anisodiff.data import Dataset, prepare
from anisodiff.io.checkpoint import folder_of
from anisodiff.training import Hooks, TrainConfig, read, train

NETWORK = {"name": "small", "nf": 8, "multipliers": [1, 1], "blocks": 1, "dropout": 0.1}


def tiny_dataset(folder: Path) -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 1, 8, 8), dtype=np.uint8)
    np.save(folder / "raw.npy", pixels)
    return prepare(folder / "raw.npy", folder / "data", size=8, channels=1).dataset


def tiny_config(steps: int) -> TrainConfig:
    return TrainConfig(
        process="heat", network=NETWORK, size=8, channels=1, batch=4, images=4 * steps, warm_up=20, calibration=16,
        log_every=20, checkpoint_every=12, ema=("constant(0.9)", "power(0.1)"),
    )  # fmt: skip


def child(config: TrainConfig, dataset: Dataset, run: Path, fatal: int | None) -> int:
    """Start a run in a process of its own, which dies at effect number ``fatal`` on the disk, if given."""
    pid = os.fork()
    if pid:
        return pid
    effects = 0

    def observe(_: str) -> None:
        nonlocal effects
        if effects == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        effects += 1

    try:
        train(config, dataset, run, hooks=Hooks(observe=observe), track=())
        os._exit(0)
    except BaseException as error:
        print(f"a run failed: {error!r}", file=sys.stderr)
        os._exit(1)


def wait(pid: int, seconds: float | None) -> str:
    """Wait, or kill after so many seconds: 'killed', 'finished' or 'failed'."""
    if seconds is not None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return "finished" if status == 0 else "failed"
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return "finished" if status == 0 else "failed"


def contents(run: Path) -> dict[str, str]:
    """Checksums of the files of the last checkpoint."""
    last = sorted(folder_of(run).glob("step-*"))[-1]
    return json.loads((last / "manifest.json").read_text())["files"]


def soak(folder: Path, kills: int, steps: int, seed: int) -> dict:
    dataset, config, chance = tiny_dataset(folder), tiny_config(steps), random.Random(seed)
    begin = time.monotonic()
    if wait(child(config, dataset, folder / "calm", None), None) != "finished":
        raise SystemExit("the undisturbed run failed")
    length = time.monotonic() - begin
    expected, effect = contents(folder / "calm"), 0
    result = {"kills": 0, "while_writing": 0, "at_random": 0, "restarts": 0, "damaged": 0, "failed": 0}
    result |= {"rounds": 0, "equal": 0}
    while result["kills"] < kills or result["rounds"] == 0:
        run = folder / f"run-{result['rounds']}"
        while True:
            enough = result["kills"] >= kills
            writing = not enough and result["kills"] % 2 == 1
            pid = child(config, dataset, run, effect % 40 if writing else None)
            ended = wait(pid, None if enough or writing else chance.uniform(0, length))
            result["restarts"] += 1
            for step in folder_of(run).glob("step-*"):
                try:
                    read(step)
                except ValueError:
                    result["damaged"] += 1
            if ended != "killed":
                break
            effect += 7 if writing else 0  # 7 and 40 share no factor: all effects come in turn
            result["kills"] += 1
            result["while_writing" if writing else "at_random"] += 1
        result["failed"] += ended == "failed"
        result["rounds"] += 1
        result["equal"] += ended == "finished" and contents(run) == expected
    return result | {"ok": result["equal"] == result["rounds"] and not result["damaged"] and not result["failed"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)  # before the first fork: a pool of threads does not survive it
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), args.kills, args.steps, args.seed)
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"{result['kills']} kills ({result['at_random']} at random moments, {result['while_writing']} while "
            f"writing), {result['restarts']} starts, {result['rounds']} rounds: {result['damaged']} damaged "
            f"checkpoints, {result['failed']} failed starts, {result['equal']} of {result['rounds']} final states "
            "equal to the undisturbed run's, bit by bit"
        )
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
