"""What a restart costs: a run continued from its whole state against one that begins anew from its averaged weights.

    python benchmarks/restart.py --data PREPARED --output DIR --before 1500 --after 1500

Trains once to the end; from the checkpoint in the middle (a) joins the exported pieces of the whole state and goes
on, (b) begins a new run with the averaged weights alone and a fresh Adam, warm-up included.
Prints the mean training loss of both in windows after the restart, and whether (a) is the undisturbed run.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from anisodiff.training.pieces import export, join

from anisodiff.data import open_dataset
from anisodiff.io.checkpoint import newest
from anisodiff.training import TrainConfig, read_log, train

NETWORK = {"size": "small", "nf": 32, "multipliers": [1, 1], "blocks": 1, "dropout": 0.0}


def losses(run: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in read_log(run)}


def weights(run: Path) -> dict[str, torch.Tensor]:
    saved = newest(run)
    assert saved is not None
    return {name: value for name, value in saved.tensors("model").items() if name.startswith("network.")}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a prepared dataset")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--before", type=int, default=1500, help="steps before the restart")
    parser.add_argument("--after", type=int, default=1500, help="steps after it")
    parser.add_argument("--every", type=int, default=100, help="steps between two lines of the log")
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args(arguments)
    dataset = open_dataset(options.data)
    batch, whole = options.batch, options.before + options.after
    config = TrainConfig(
        process={"preset": "anisotropic", "diffusivity": "geometric(0.1, 2)", "step": "exponential(windows=1)"},
        network=NETWORK, size=dataset.size, channels=dataset.channels, batch=batch, lr=4e-4, warm_up=50 * batch,
        ema=("constant(0.995)",), images=whole * batch, calibration=256, log_every=options.every * batch,
        checkpoint_every=0, sample_every=0,
    )  # fmt: skip
    train(config, dataset, options.output / "undisturbed", tensorboard=False)
    train(replace(config, images=options.before * batch), dataset, options.output / "half", tensorboard=False)
    pieces = options.output / "pieces"
    export(options.output / "half", pieces, 15.0)
    join(pieces, options.output / "joined")
    train(config, dataset, options.output / "joined", tensorboard=False)
    fresh = replace(config, images=options.after * batch)
    train(fresh, dataset, options.output / "fresh", start=options.output / "half", tensorboard=False)
    first, second = weights(options.output / "undisturbed"), weights(options.output / "joined")
    equal = all(torch.equal(value, second[name]) for name, value in first.items())
    steady, anew = losses(options.output / "undisturbed"), losses(options.output / "fresh")
    rows = [
        {"after": step, "continued": steady[options.before + step], "anew": anew[step]}
        for step in sorted(anew)
        if options.before + step in steady
    ]
    print(f"joined equals undisturbed, bit by bit: {equal}")
    print("| steps after | continued | anew from the averages | difference |\n|---|---|---|---|")
    for row in rows:
        change = row["anew"] / row["continued"] - 1
        print(f"| {row['after']} | {row['continued']:.4f} | {row['anew']:.4f} | {100 * change:+.1f} % |")
    (options.output / "restart.json").write_text(json.dumps({"equal": equal, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
