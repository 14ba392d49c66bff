"""Training speed of recipes: images per second, what simulating the forward process costs, memory.

    python benchmarks/train.py cifar10-anisotropic cifar10-ve
    python benchmarks/train.py 'cifar10-anisotropic:network=lsun256;size=256;batch=64;recompute=true'

A recipe may carry changes, RECIPE:KEY=VALUE;KEY=VALUE… Images are random: nothing here depends on what they show.

A batch is prepared while the GPU is at work on the step before, so simulating is measured twice:
alone   its time in steps that draw in their turn, in percent of such a step
cost    how much longer a step takes than one that is given the same values again and again, in percent of the former
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import yaml
from torch import Tensor

import anisodiff
from anisodiff.noise import Randomness
from anisodiff.processes import Process, TrainingPair
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import Plan, TrainConfig
from anisodiff.training.model import assemble
from anisodiff.training.recipes import recipe
from anisodiff.training.setup import prepare_device
from anisodiff.training.step import Stepper


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

    def spans(self) -> list[float]:
        """Seconds between every first and second mark."""
        pairs = list(zip(self.marks[::2], self.marks[1::2]))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return [a.elapsed_time(b) / 1000 for a, b in pairs]
        return [b - a for a, b in pairs]


class Timed:
    """A process whose training pairs are timed."""

    def __init__(self, process: Process, clock: Clock) -> None:
        self.process, self.clock = process, clock

    def snap_to_grid(self, t: Tensor) -> Tensor:
        return self.process.snap_to_grid(t)

    def training_pair(self, x0: Tensor, t: Tensor, rng: Randomness) -> TrainingPair:
        self.clock.mark()
        pair = self.process.training_pair(x0, t, rng)
        self.clock.mark()
        return pair


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
    """Of a step that draws in its turn, spent in Process.training_pair."""
    cost: float
    """Of a step, what is saved where nothing is drawn."""
    cost_error: float | None
    """Standard error; None after a single round."""
    gib: float | None
    """Peak memory of the device."""
    waits: int | None
    """Times a step waited for the device; None where that cannot be seen."""


def parse(text: str) -> TrainConfig:
    name, _, rest = text.partition(":")
    changes = dict(item.split("=", 1) for item in rest.split(";") if item)
    return recipe(name).changed({key: yaml.safe_load(value) for key, value in changes.items()})


class Steps:
    """Numbered steps of one stepper with the same images, made in three ways."""

    def __init__(self, stepper: Stepper, images: Tensor) -> None:
        self.stepper, self.images, self.k = stepper, images, 0
        self.kept = stepper.prepare(0, images)

    def plain(self) -> None:
        """Drawn in its turn."""
        self.stepper.step(self.k, self.images)
        self.k += 1

    def ahead(self) -> None:
        """As a run does it: drawn beside the step before."""
        with self.stepper.ahead():
            prepared = self.stepper.prepare(self.k, self.images)
        self.stepper.step(self.k, prepared)
        self.k += 1

    def again(self) -> None:
        """Nothing drawn."""
        self.stepper.step(self.k, replace(self.kept, k=self.k))
        self.k += 1


def waits(step: Callable[[], None], device: torch.device) -> int | None:
    """How often a step makes the host wait for the device, by torch's own count."""
    import warnings

    if device.type != "cuda":
        return None
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def span(step: Callable[[], None], device: torch.device, count: int) -> float:
    """Seconds of a step, by ``count`` of them.

    On a GPU one more comes first that does not count: it finds an idle device, which a run never does.
    """
    if device.type == "cuda":
        step()
    clock = Clock(device)
    clock.mark()
    for _ in range(count):
        step()
    clock.mark()
    return clock.spans()[0] / count


def run(text: str, device: torch.device, seconds: float, calibration: int) -> Row:
    config = parse(text)
    plan = Plan.of(config, device)
    prepare_device(config, device)
    distributed = Distributed(device)
    images = torch.rand(config.batch, config.channels, *config.size, device=device, dtype=plan.dtype)
    measured = plan.statistics(torch.rand(calibration, *images.shape[1:], device=device))
    network, execution, model = assemble(plan, measured, distributed)
    clock = Clock(device)
    stepper = Stepper(replace(plan, process=Timed(plan.process, clock)), model, network, execution, distributed)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    warm = 5 if device.type == "cuda" else 1
    steps = Steps(stepper, images)
    for _ in range(warm):
        steps.ahead()
    waited = waits(steps.ahead, device)
    few = 3 if device.type == "cuda" else 1
    many = min(max(few, int(seconds / 6 / span(steps.ahead, device, few))), 20)
    in_turn, simulating, drawn, saved = [], [], [], []
    begin = time.perf_counter()
    while not drawn or time.perf_counter() - begin < seconds:  # by turns: a device that warms up slows all three
        clock.marks.clear()
        first = steps.k
        in_turn.append(span(steps.plain, device, many))
        simulating.append(sum(clock.spans()) / (steps.k - first))
        drawn.append(span(steps.ahead, device, many))
        saved.append(drawn[-1] - span(steps.again, device, many))
    step = statistics.mean(drawn)
    error = statistics.stdev(saved) / math.sqrt(len(saved)) / step if len(saved) > 1 else None
    return Row(
        recipe=text,
        size=f"{config.size[0]}×{config.size[1]}",
        parameters=sum(p.numel() for p in network.parameters()),
        batch=config.batch,
        precision=config.precision if device.type == "cuda" or config.precision != "bf16" else "fp32",
        compiled=config.compile and device.type == "cuda",
        rate=config.batch / step,
        share=sum(simulating) / sum(in_turn),
        cost=statistics.mean(saved) / step,
        cost_error=error,
        gib=torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        waits=waited,
    )


def table(rows: list[Row], where: str) -> str:
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {where}, torch {torch.__version__}, anisodiff {anisodiff.__version__}",
        "",
        "| recipe | size | parameters | batch | precision | images/s | simulating, alone | its cost | memory "
        "| waits a step |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        how = row.precision + (", compiled" if row.compiled else "")
        cost = f"{100 * row.cost:.1f}" + ("" if row.cost_error is None else f" ± {100 * row.cost_error:.1f}")
        memory = "" if row.gib is None else f"{row.gib:.1f} GiB"
        lines.append(
            f"| {row.recipe} | {row.size} | {row.parameters / 1e6:.1f} M | {row.batch} | {how} | {row.rate:,.1f} "
            f"| {100 * row.share:.1f} % | {cost} % | {memory} | {'' if row.waits is None else row.waits} |"
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
