"""Several trainings at once on one device for an equal time, then FID: what `train --data` gives in minutes.

    python benchmarks/equal_time.py --data faces.zip --holdout 10% --seconds 840 --out results \\
        --runs anisotropic-gentle ve anisotropic 'anisotropic-gentle;process.drift_anisotropy=0.025' \\
        --inception inception.pt

A run is PROCESS[;KEY=VALUE…], as on the command line of `train` with --set. For each --data and each of --seeds all
runs start together and are stopped together, each with its share of the device. Then each model is sampled and
measured against its training images and its held-out ones, or against --heldout. Writes table.md and for each run its
grid, report and log. What has a report is not trained again: the same command continues, with --for as many groups of
runs as fit into so many seconds.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

METRICS = ("fid", "fid_heldout", "kid", "kid_heldout", "precision", "recall", "edges")


@dataclass(frozen=True)
class Run:
    data: Path
    text: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "anisodiff", *map(str, words)]


def start(run: Run, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Begin the training; what it prints goes to a file."""
    process, *settings = run.text.split(";")
    words = ["train", process, "--data", run.data, "-o", run.folder, *(f"--set={key}" for key in settings)]
    words += [f"--seed={run.seed}", *(f"--set={key}" for key in options.set)]
    words += ["--holdout", options.holdout] if options.holdout else []
    with (options.out / f"{run.name}.txt").open("wb") as said:
        return subprocess.Popen(command(*words), stdout=said, stderr=subprocess.STDOUT)


def stop(trainings: dict[Run, subprocess.Popen[bytes]], out: Path) -> None:
    """All at once; each writes its last checkpoint."""
    for training in trainings.values():
        if training.poll() is None:
            training.send_signal(signal.SIGINT)
    for run, training in trainings.items():
        if training.wait(timeout=120) not in (0, 130):  # 130: interrupted
            raise SystemExit(f"{run.name}: {(out / f'{run.name}.txt').read_text().strip().splitlines()[-1]}")


def measure(run: Run, options: argparse.Namespace) -> None:
    """Sample and evaluate; the report is written last."""
    samples, report = options.out / f"{run.name}.npz", options.out / f"{run.name}-unread.json"
    made = command(
        "sample", run.folder, "--n", options.n, "--steps", options.steps, "--batch", max(1, options.n // 10),
        "--out", samples, "--grid", options.out / f"{run.name}.png",
    )  # fmt: skip
    heldout = options.heldout or run.folder / "heldout"
    against = ["--reference", run.folder / "data", *(["--heldout", heldout] if Path(heldout).exists() else [])]
    network = ["--inception", options.inception, "--tf32"] if options.inception else ["--network", "none"]
    for words in (made, command("evaluate", samples, *against, *network, "--json", report)):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        with (options.out / f"{run.name}.txt").open("a") as said:
            said.write(done.stdout + done.stderr)
        if done.returncode:
            raise SystemExit(f"{run.name}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    samples.unlink()
    records = (run.folder / "log.jsonl").read_text().splitlines()
    (options.out / f"{run.name}-log.jsonl").write_text("\n".join(records) + "\n")
    report.rename(options.out / f"{run.name}.json")


def numbers(run: Run, out: Path) -> dict[str, float] | None:
    """Those of METRICS, and how much was seen; None where the run was not measured."""
    report = out / f"{run.name}.json"
    if not report.is_file():
        return None
    records = (out / f"{run.name}-log.jsonl").read_text().splitlines()
    found = {value["name"]: value["value"] for value in json.loads(report.read_text())["values"]}
    return {key: found[key] for key in METRICS if key in found} | {"images": json.loads(records[-1])["images"]}


def table(found: dict[Run, dict[str, float]]) -> str:
    keys = list(dict.fromkeys(key for values in found.values() for key in values))
    lines = ["| data | run | seed | " + " | ".join(keys) + " |", "|" + "---|" * (len(keys) + 3)]
    for run, values in found.items():
        cells = (f"{values[key]:,.5g}" if key in values else "–" for key in keys)
        lines.append(f"| {run.data.name} | `{run.text}` | {run.seed} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--runs", nargs="+", default=["anisotropic-gentle", "ve", "anisotropic"])
    parser.add_argument("--set", nargs="*", default=[], help="settings of all runs")
    parser.add_argument("--holdout", help="as of train")
    parser.add_argument("--heldout", type=Path, help="held-out images of a set that is not cut")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of a group, from the start of its commands")
    parser.add_argument("--for", dest="for_", type=float, default=math.inf, help="seconds of this command")
    parser.add_argument("--measuring", type=float, default=150.0, help="seconds that a group takes after training")
    parser.add_argument("--n", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=50, help="NFE")
    parser.add_argument("--inception", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    runs = [
        Run(data, text, seed, options.out / "runs" / f"{data.stem}-{k}-{text.partition(';')[0]}-{seed}")
        for seed, data, (k, text) in product(options.seeds, options.data, enumerate(options.runs))
    ]
    began = time.perf_counter()
    for seed, data in product(options.seeds, options.data):
        group = [run for run in runs if (run.seed, run.data) == (seed, data)]
        if all(numbers(run, options.out) is not None for run in group):
            continue
        needed = options.seconds + options.measuring
        if time.perf_counter() - began + needed > options.for_:
            print(f"{data.name}, seed {seed}: no {needed:.0f} s left; the same command continues", flush=True)
            break
        together(group, options)
    found = {run: values for run in runs if (values := numbers(run, options.out)) is not None}
    if found:
        (options.out / "table.md").write_text(table(found) + "\n")
        print(table(found))


def together(runs: list[Run], options: argparse.Namespace) -> None:
    """Train for an equal time, then measure."""
    for run in runs:  # of a command that was killed: it would have had more time
        shutil.rmtree(run.folder, ignore_errors=True)
    begin, trainings = time.perf_counter(), {run: start(run, options) for run in runs}
    while time.perf_counter() - begin < options.seconds and any(t.poll() is None for t in trainings.values()):
        time.sleep(0.2)
    stop(trainings, options.out)
    print(f"{runs[0].data.name}, seed {runs[0].seed}: stopped after {time.perf_counter() - begin:.0f} s", flush=True)
    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(lambda run: measure(run, options), runs))


if __name__ == "__main__":
    main()
