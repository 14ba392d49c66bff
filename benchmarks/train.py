"""Training speed of recipes: images per second, the share of a step spent simulating the forward process, memory.

    python benchmarks/train.py cifar10-anisotropic cifar10-ve
    python benchmarks/train.py 'cifar10-anisotropic:network=lsun256;size=256;batch=64;recompute=true'

A recipe may carry changes, RECIPE:KEY=VALUE;KEY=VALUE… Images are random: nothing here depends on what they show.
"""

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor

import anisodiff
from anisodiff.noise import Randomness
from anisodiff.objectives import Draw, Objective
from anisodiff.recipes import recipe
from anisodiff.train import Plan, TrainConfig
from anisodiff.train.setup import assemble, prepare_device
from anisodiff.train.step import Stepper
from anisodiff.train.team import Team


class Clock:
    """Seconds of a device, looked at only when asked: CUDA events, or the processor's clock."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.marks = device, []

    def mark(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def pairs(self) -> float:
        """Seconds between every first and second mark, summed."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return sum(a.elapsed_time(b) for a, b in zip(self.marks[::2], self.marks[1::2])) / 1000
        return sum(b - a for a, b in zip(self.marks[::2], self.marks[1::2]))


@dataclass(frozen=True)
class Timed(Objective):
    """An objective whose draws are timed."""

    inner: Objective
    clock: Clock

    @property
    def equation(self):
        return self.inner.equation

    @property
    def edges(self):
        return self.inner.edges

    @property
    def phases(self):
        return self.inner.phases

    @property
    def learns_drift(self):
        return self.inner.learns_drift

    def settle(self, t):
        return self.inner.settle(t)

    def draw(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        self.clock.mark()
        drawn = self.inner.draw(x0, t, source)
        self.clock.mark()
        return drawn

    def pairs(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        self.clock.mark()
        drawn = self.inner.pairs(x0, t, source)
        self.clock.mark()
        return drawn


@dataclass(frozen=True, kw_only=True)
class Row:
    recipe: str
    size: str
    parameters: int
    batch: int
    precision: str
    compiled: bool
    rate: float
    """Images per second."""
    share: float
    """Of a step, spent in objective.draw."""
    gib: float | None
    """Peak memory of the device."""
    waits: int | None
    """Times a step waited for the device; None where that cannot be seen."""


def parse(text: str) -> TrainConfig:
    name, _, rest = text.partition(":")
    changes = dict(item.split("=", 1) for item in rest.split(";") if item)
    return recipe(name).changed({key: yaml.safe_load(value) for key, value in changes.items()})


def waits(stepper: Stepper, k: int, images: Tensor) -> int | None:
    """How often step k makes the host wait for the device, by torch's own count."""
    import warnings

    if images.device.type != "cuda":
        return None
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stepper.step(k, images)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def run(text: str, device: torch.device, seconds: float, calibration: int) -> Row:
    config = parse(text)
    plan = Plan.of(config, device)
    prepare_device(config, device)
    team = Team(device)
    images = torch.rand(config.parents, config.channels, *config.size, device=device, dtype=plan.dtype)
    moments = plan.method.measure(torch.rand(calibration, *images.shape[1:], device=device), seed=0)
    network, model = assemble(plan, moments, team)
    clock = Clock(device)
    stepper = Stepper(config, Timed(plan.objective, clock), model, network, team)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    warm = 5 if device.type == "cuda" else 1
    for k in range(warm):
        stepper.step(k, images)
    waited = waits(stepper, warm, images)
    clock.marks.clear()
    k, whole = warm + 1, Clock(device)
    begin = time.perf_counter()
    whole.mark()
    while k == warm + 1 or time.perf_counter() - begin < seconds:
        for _ in range(5 if device.type == "cuda" else 1):
            stepper.step(k, images)
            k += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    whole.mark()
    total = whole.pairs()
    return Row(
        recipe=text,
        size=f"{config.size[0]}×{config.size[1]}",
        parameters=sum(p.numel() for p in network.parameters()),
        batch=config.batch,
        precision=config.precision if device.type == "cuda" or config.precision != "bf16" else "fp32",
        compiled=config.compile and device.type == "cuda",
        rate=(k - warm - 1) * config.batch / total,
        share=clock.pairs() / total,
        gib=torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        waits=waited,
    )


def table(rows: list[Row], where: str) -> str:
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {where}, torch {torch.__version__}, anisodiff {anisodiff.__version__}",
        "",
        "| recipe | size | parameters | batch | precision | images/s | simulating | memory | waits a step |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        how = row.precision + (", compiled" if row.compiled else "")
        memory = "" if row.gib is None else f"{row.gib:.1f} GiB"
        lines.append(
            f"| {row.recipe} | {row.size} | {row.parameters / 1e6:.1f} M | {row.batch} | {how} | {row.rate:,.1f} "
            f"| {100 * row.share:.1f} % | {memory} | {'' if row.waits is None else row.waits} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", help="RECIPE[:KEY=VALUE;…]")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--calibration", type=int, default=64, help="images the tables are measured on")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU"
    rows = [run(text, device, args.seconds, args.calibration) for text in args.recipes]
    print(table(rows, where))
    if args.json:
        args.json.write_text(json.dumps({"where": where, "rows": [asdict(row) for row in rows]}, indent=1))
    if args.markdown:
        args.markdown.write_text(table(rows, where))


if __name__ == "__main__":
    main()
