"""What a run loses when it continues from a pack (`flagship.py`) instead of its whole state.

    python benchmarks/resume_loss.py DATA --out OUT [--seeds 0 1] [--steps 600] [--more 200]

A small network is trained for --steps on the CPU, and then for --more from each kind of pack. Batches, times and
noise of a step do not depend on how the run was continued, so losses are compared step by step: each number is the
mean over some steps of (loss after a pack − loss without a stop). `EMA` is the same for the averaged weights at the
end, on draws that no training has seen. Writes resume-loss.json and resume-loss.md.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from anisodiff.data import Dataset, open_dataset
from anisodiff.io.checkpoint import Snapshot, Store, newest
from anisodiff.processes import TrainingPair
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import Hooks, Plan, TrainConfig, read_log, train
from anisodiff.training.model import load_model
from anisodiff.training.recipes import config_of
from anisodiff.training.step import Stepper
from flagship import compact, expand

KINDS = (
    ("half", "eight"), ("difference", "eight"), ("difference", "factored"), ("difference", "anew"),
    ("ema", "factored"), ("ema", "anew"),
)  # fmt: skip
"""How weights and moments are packed."""
WINDOWS = (1, 10, 50, 10**9)
HELD_OUT = 10**6
"""Batches from this number on are never trained on."""


def config(seed: int, options: argparse.Namespace, dataset: Dataset) -> TrainConfig:
    return config_of(
        "ve", network={"name": "tiny", "nf": options.width}, size=dataset.size, batch=options.batch, lr=options.lr,
        warm_up=options.batch * options.steps // 10, ema=("constant(0.995)",), calibration=512, seed=seed,
        images=options.batch * options.steps, log_every=options.batch, sample_every=0, checkpoint_every=0,
    )  # fmt: skip


def held_out(run: Path, dataset: Dataset, batches: int = 8) -> float:
    """The mean loss of the EMA on new draws."""
    trained = load_model(run)
    plan: Plan = trained.plan
    distributed = Distributed(torch.device("cpu"))
    stepper = Stepper(plan, trained.model, trained.model.network, None, distributed)  # type: ignore[arg-type]
    total = 0.0
    for k in range(HELD_OUT, HELD_OUT + batches):
        places = torch.arange(k * plan.config.batch, (k + 1) * plan.config.batch) % len(dataset)
        images = torch.from_numpy(dataset.images[places.numpy()].copy()).float() / 255
        ready = stepper.prepare(k, images)
        with torch.no_grad():
            t, _, *pair = ready.parts[0]
            total += float(trained.model.loss(TrainingPair(**dict(zip(stepper.pair_fields, pair))), t, None).mean())
    return total / batches


def losses(run: Path, first: int) -> list[float]:
    return [record["loss"] for record in read_log(run) if record["step"] > first]


def measure(seed: int, dataset: Dataset, options: argparse.Namespace) -> list[dict[str, Any]]:
    trunk, begin = options.out / f"trunk-{seed}", config(seed, options, dataset)
    hooks = Hooks()
    train(begin, dataset, trunk, hooks=hooks, track=())
    saved = newest(trunk)
    assert saved is not None
    longer = begin.changed({"images": options.batch * (options.steps + options.more)})
    whole = options.out / f"whole-{seed}"
    shutil.copytree(trunk, whole, dirs_exist_ok=True)
    train(longer, dataset, whole, hooks=hooks, track=())
    reference, ema = losses(whole, options.steps), held_out(whole, dataset)
    print(f"seed {seed}: {time.strftime('%H:%M:%S')}, loss {sum(reference) / len(reference):.4f}", flush=True)
    rows = []
    for weights, moments in KINDS:
        run = options.out / f"{weights}-{moments}-{seed}"
        packed = compact(saved, weights, moments)
        size = sum(x.numel() * x.element_size() for x in packed.values())
        model, state = expand(packed)
        shutil.rmtree(run, ignore_errors=True)
        Store(run).save(Snapshot(step=saved.step, meta=saved.meta, model=model, state=state))
        train(longer, dataset, run, hooks=hooks, track=())
        gaps = [b - a for a, b in zip(reference, losses(run, options.steps), strict=True)]
        edges = [min(n, len(gaps)) for n in WINDOWS]
        spans = {
            f"{first + 1}–{last}": sum(gaps[first:last]) / (last - first)
            for first, last in zip((0, *edges), edges)
            if last > first
        }
        row = {"seed": seed, "weights": weights, "moments": moments, "bytes": size, "gaps": spans}
        rows.append(row | {"ema": held_out(run, dataset) - ema, "loss": sum(reference) / len(reference)})
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    spans = list(rows[0]["gaps"])
    lines = [
        "| weights | moments | seed | " + " | ".join(f"steps {span}" for span in spans) + " | EMA at the end |",
        "|" + "---|" * (len(spans) + 4),
    ]
    for row in sorted(rows, key=lambda row: (row["weights"], row["moments"], row["seed"])):
        cells = [f"{100 * row['gaps'][span] / row['loss']:+.2f} %" for span in spans]
        cells += [f"{100 * row['ema'] / row['loss']:+.2f} %"]
        lines.append(f"| {row['weights']} | {row['moments']} | {row['seed']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a prepared dataset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--more", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    dataset = open_dataset(options.data)
    rows = [row for seed in options.seeds for row in measure(seed, dataset, options)]
    settings = {key: str(value) for key, value in vars(options).items() if key not in ("data", "out")}
    (options.out / "resume-loss.json").write_text(
        json.dumps({"torch": torch.__version__, "settings": settings, "rows": rows}, indent=1, ensure_ascii=False)
    )
    (options.out / "resume-loss.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
