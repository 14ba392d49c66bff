"""FID, KID and PRDC of CIFAR-10 train against test with the published weights: values and timings.

    python benchmarks/metrics.py --cifar FOLDER --inception FILE [--tf32] [--device cuda] [--output out.json]
    python benchmarks/metrics.py --cifar FOLDER --inception HALF --single FILE|PART… --storage-only

FOLDER holds (at any depth) data_batch_1.png … data_batch_5.png and test_batch.png: 10000×1024 RGB, one image a row.
``--single`` names the same network stored in single precision where ``--inception`` names the half precision copy;
it may lie in pieces (``split -b 60M``), joined in memory. The difference between the two is then reported, with
``--storage-only`` that alone. The literature's FID of train against test is about 3.15.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from anisodiff.metrics import (
    FeatureNetwork,
    Settings,
    extrapolate,
    frechet_distance,
    gaussian_statistics,
    image_set,
    image_statistics,
    inception,
    kernel_distance,
    prdc,
)
from anisodiff.metrics.resize import tf1_bilinear
from anisodiff.metrics.weights import INCEPTION
from sheets import cifar

T = TypeVar("T")
PUBLISHED = INCEPTION


@dataclass
class Table:
    device: torch.device
    rows: list[dict[str, object]] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, note: str = "") -> None:
        self.rows.append({"name": name, "value": value, "unit": unit, "note": note})
        print(f"  {name}: {value:.6g} {unit} {note}", file=sys.stderr, flush=True)

    def timed(self, name: str, work: Callable[[], T], note: str = "") -> T:
        self.wait()
        start = time.perf_counter()
        result = work()
        self.wait()
        self.add(name, time.perf_counter() - start, "s", note)
        return result

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def markdown(self) -> str:
        lines = ["| quantity | value | note |", "|---|---|---|"]
        lines += [f"| {r['name']} | {r['value']:.6g} {r['unit']} | {r['note']} |" for r in self.rows]
        return "\n".join(lines)


def features(network: FeatureNetwork, images: Tensor, batch: int) -> Tensor:
    return torch.cat([network(part, pad_to=batch)[0] for part in images.split(batch)])


def warm_up(network: FeatureNetwork, images: Tensor, batch: int) -> None:
    """Kernels are searched for and the graph is compiled in the first batches; that is not what is timed."""
    if network.device.type == "cuda":
        features(network, images[:batch].repeat(4, 1, 1, 1), batch)


def fid(a: Tensor, b: Tensor) -> float:
    return frechet_distance(gaussian_statistics(a), gaussian_statistics(b))


def joined(parts: list[Path]) -> Path:
    """One file, or a file in memory made of several pieces in the order given."""
    if len(parts) == 1:
        return parts[0]
    handle = os.memfd_create("weights")  # lives as long as this process
    with os.fdopen(os.dup(handle), "wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    return Path(f"/proc/self/fd/{handle}")


def everything(
    table: Table, network: FeatureNetwork, train: Tensor, test: Tensor, batch: int
) -> tuple[Tensor, Tensor]:
    """Values and timings with one network; returns the features of both sets."""
    n, m, device = len(train), len(test), table.device
    generator = torch.Generator().manual_seed(0)
    x, y = both_features(table, network, train, test, batch)
    table.add("rate", n / float(str(table.rows[-2]["value"])), "images/s")
    batches = train.split(batch)
    table.timed(
        f"resizing of {n} images alone", lambda: [tf1_bilinear(b.to(device), 299, 299).sum() for b in batches][-1]
    )

    a, b = table.timed("Gaussian statistics of both", lambda: (gaussian_statistics(x), gaussian_statistics(y)))
    frechet_distance(a, b)
    table.timed("Fréchet distance from statistics", lambda: frechet_distance(a, b))
    line = table.timed("extrapolation of the test set's FID", lambda: extrapolate(y, a, generator=generator))
    table.add(
        "FID of infinitely many test images", line.limit, "", f"± {line.standard_error:.2g}, bias {line.bias:.3g}"
    )
    kid = table.timed("KID", lambda: kernel_distance(x, y, generator=generator))
    error = "none" if kid.standard_error is None else f"{kid.standard_error:.2g}"
    table.add("KID train against test", kid.value, "", f"± {error}, {kid.blocks} blocks of {kid.block}")

    some = x[torch.randperm(n, generator=generator)[:m].to(device)]
    prdc(some[:64], y[:64])
    found = table.timed(f"PRDC {len(some)} × {m}", lambda: prdc(some, y))
    for name in ("precision", "recall", "density", "coverage"):
        table.add(name, getattr(found, name), "", "k=5, test against as many training images")

    table.timed(
        f"all statistics of {m} images",
        lambda: image_statistics(image_set(test), network, settings=Settings(batch_size=batch)),
        "features, statistics, fingerprint, spectra, edges, projections",
    )
    return x, y


def both_features(
    table: Table, network: FeatureNetwork, train: Tensor, test: Tensor, batch: int, label: str = ""
) -> tuple[Tensor, Tensor]:
    warm_up(network, train, batch)
    x = table.timed(
        f"{label}features of {len(train)} training images", lambda: features(network, train, batch), network.precision
    )
    y = table.timed(f"{label}features of {len(test)} test images", lambda: features(network, test, batch))
    return x, y


def change(table: Table, label: str, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], base: float) -> None:
    """How much another computation of the same features changes FID."""
    changed = fid(*new)
    table.add(f"{label}: FID train against test", changed, "")
    table.add(f"{label}: change of that FID", changed - base, "", f"{base:.6f} → {changed:.6f}")
    table.add(f"{label}: FID between both features of the same {len(new[0])} images", fid(new[0], old[0]), "")
    scale = float(old[0].double().square().mean().sqrt())
    error = float((new[0] - old[0]).double().square().mean().sqrt())
    table.add(f"{label}: RMS feature difference", error / scale, "", "relative")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--inception", type=Path, required=True)
    parser.add_argument("--single", type=Path, nargs="+", help="one file, or its pieces in order")
    parser.add_argument("--storage-only", action="store_true", help="compare --inception with --single, no more")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--train", type=int, help="use only the first N training images")
    parser.add_argument("--test", type=int, help="use only the first N test images")
    parser.add_argument("--tf32", action="store_true", help="also time TF32")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(words)
    if args.storage_only and args.single is None:
        parser.error("--storage-only compares two files: give --single as well")

    device = torch.device(args.device)
    table = Table(device)

    def network_of(file: Path, *, tf32: bool = False) -> FeatureNetwork:
        say = lambda line: print(line, file=sys.stderr)  # noqa: E731
        return inception(file, device=device, tf32=tf32, published=PUBLISHED, say=say)

    networks = [("", network_of(args.inception))]  # a wrong file is noticed before any work
    if args.single is not None:
        networks.append(("single precision storage", network_of(joined(args.single))))
        if networks[0][1].precision == networks[1][1].precision:
            parser.error(f"both files hold {networks[0][1].precision}; there is nothing to compare")
    if args.tf32:
        networks.append(("TF32", network_of(args.inception, tf32=True)))
    network = networks[0][1]
    train = cifar(args.cifar, args.train)
    test = cifar(args.cifar, args.test, "test_batch.png")
    work = both_features if args.storage_only else everything
    old = work(table, network, train, test, args.batch)
    base = fid(*old)
    table.add("FID train against test", base, "", f"{len(train)} against {len(test)}")
    for label, other in networks[1:]:
        new = both_features(table, other, train, test, args.batch, f"{label}: ")
        change(table, label, old, new, base)

    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    about = {
        "date": date.today().isoformat(),
        "hardware": hardware,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "command": " ".join(["python", *(sys.argv if words is None else [sys.argv[0], *words])]),
        "network": network.name,
        "weights": network.weights,
        "resize": network.resize,
        "precision": network.precision,
    }
    print(table.markdown())
    print()
    print("; ".join(f"{key} {value}" for key, value in about.items()))
    if args.output is not None:
        args.output.write_text(json.dumps({**about, "rows": table.rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
