"""Cost of recipes: training, what simulating the forward process is of it, one loss, one generated image, memory.

    python benchmarks/train.py cifar10-anisotropic cifar10-ve
    python benchmarks/train.py 'cifar10-anisotropic:network=lsun256;size=256;batch=64;recompute=true'
    python benchmarks/train.py lsun256 lsun256-anisotropic-paper lsun256-ve lsun256-flow-matching --nfe 50 \\
        --for 500 --json cost-256.json --markdown cost-256.md
    python benchmarks/train.py cifar10-small cifar10-ve-small cifar10-flow-matching-small --nfe 50 \\
        --batches 16 64 256 1024 --sizes 32 64 128 256 512 --nfes 10 20 50 100 200 --seconds 2 --for 500 \\
        --json cost.json --figure cost.png

A recipe may carry changes, RECIPE:KEY=VALUE;KEY=VALUE… Images are random: nothing here depends on what they show.
With --batches and --sizes each recipe is measured at each of them, one changed at a time; a larger image has a
smaller batch, of as many pixels. Rows that are in the JSON file are not measured again: the same command continues.

A batch is prepared while the GPU is at work on the step before, so simulating is measured twice:
alone   its time in steps that draw in their turn, in percent of such a step
cost    how much longer a step takes than one that is given the same values again and again, in percent of the former

loss        seconds an image of one loss, simulation included, without a gradient (the paper's training cost)
generation  seconds an image with --nfe network evaluations, by the default sampler of the model
"""

import argparse
import gc
import json
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

import anisodiff
from anisodiff.generation import Generator
from anisodiff.generation.loaded_model import CheckpointOrigin
from anisodiff.io.records import write_json
from anisodiff.noise import Randomness
from anisodiff.processes import Process, TrainingPair
from anisodiff.runtime.cuda_graphs import Replay
from anisodiff.runtime.distributed import Distributed
from anisodiff.statistics import SpectralStatistics
from anisodiff.training import Plan, TrainConfig
from anisodiff.training.model import Trained, assemble
from anisodiff.training.preview import fit_prior
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
    loss: float
    """Seconds an image."""
    generation: dict[str, float] = field(default_factory=dict)
    """Seconds an image, by NFE."""
    generated: int = 0
    """Images at a time."""
    generation_gib: float | None = None
    said: str = ""
    """Why there is no generation."""


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


def loss_seconds(stepper: Stepper, images: Tensor, seconds: float) -> float:
    """Of one loss an image, drawn in its turn; on CUDA the network is replayed, as in training."""

    def loss(t: Tensor, dropout: Tensor, *pair: Tensor) -> Tensor:
        with torch.no_grad():
            given = TrainingPair(**dict(zip(stepper.pair_fields, pair, strict=True)))
            return stepper.model.loss(given, t, dropout)

    device, drawn = stepper.device, iter(range(2**40))
    ask = Replay(loss) if device.type == "cuda" else loss

    def once() -> None:
        for values in stepper.prepare(next(drawn), images).parts:
            ask(*values)

    once()
    rough = span(once, device, 1)
    return span(once, device, min(50, max(1, int(seconds / max(rough, 1e-6))))) / len(images)


def generated(
    config: TrainConfig, measured: SpectralStatistics, images: Tensor, nfes: list[int], count: int | None
) -> tuple[dict[str, float], int, float | None]:
    """Seconds an image by NFE, images at a time, and memory: `Generator.sample` with first weights."""
    plan, device = Plan.of(config), images.device
    model = plan.model(plan.build(device).eval(), measured)
    trained = Trained(plan=plan, model=model, prior=dict(fit_prior(plan.process, images)), meta={})
    made = Generator(trained, CheckpointOrigin(path="first weights", model="", prior=None), device=device)
    count, found = count or made.batch, {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # first weights make no images
        for nfe in nfes:
            if not found:
                made.sample(count, steps=nfe, batch=count)  # kernels are compiled, the network is recorded
            begin = time.perf_counter()
            made.sample(count, steps=nfe, batch=count)
            found[str(nfe)] = (time.perf_counter() - begin) / count
    gib = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return found, count, gib


def run(
    text: str, device: torch.device, seconds: float, calibration: int, nfes: list[int], count: int | None = None
) -> Row:
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
    gib = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    loss, made, said = loss_seconds(stepper, images, seconds / 2), ({}, 0, None), ""
    try:
        made = generated(config, measured, images[:64], nfes, count) if nfes else made
    except ValueError as refused:  # too few NFE for this process, for example
        said = str(refused)
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
        gib=gib,
        waits=waited,
        loss=loss,
        generation=made[0],
        generated=made[1],
        generation_gib=made[2],
        said=said,
    )


def table(rows: list[Row], where: str) -> str:
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {where}, torch {torch.__version__}, anisodiff {anisodiff.__version__}",
        "",
        "| recipe | size | parameters | batch | precision | images/s | simulating, alone | its cost | memory "
        "| waits a step | loss, s an image | generation, s an image: NFE | memory |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        how = row.precision + (", compiled" if row.compiled else "")
        cost = f"{100 * row.cost:.1f}" + ("" if row.cost_error is None else f" ± {100 * row.cost_error:.1f}")
        memory, more = ("" if x is None else f"{x:.1f} GiB" for x in (row.gib, row.generation_gib))
        made = ", ".join(f"{seconds:.3g}: {nfe}" for nfe, seconds in row.generation.items())
        lines.append(
            f"| {row.recipe} | {row.size} | {row.parameters / 1e6:.1f} M | {row.batch} | {how} | {row.rate:,.1f} "
            f"| {100 * row.share:.1f}% | {cost}% | {memory} | {'' if row.waits is None else row.waits} "
            f"| {row.loss:.3g} | {made or row.said} | {more} |"
        )
    return "\n".join(lines) + "\n"


def points(options: argparse.Namespace) -> Iterator[tuple[str, list[int]]]:
    """Recipes with their changes, and the NFE to measure: one of batch, size and NFE changed at a time."""
    for text in options.recipes:
        base, joined = parse(text), text if ":" in text else f"{text}:"
        yield text, sorted({*([options.nfe] if options.nfe else []), *options.nfes})
        for batch in options.batches:
            if batch != base.batch:
                yield f"{joined};batch={batch}", [options.nfe] if options.nfe else []
        for size in options.sizes:
            if size != base.size[0]:
                batch = max(1, base.batch * base.size[0] ** 2 // size**2)
                yield f"{joined};size={size};batch={batch}", [options.nfe] if options.nfe else []


def figure(rows: list[Row], options: argparse.Namespace, where: str) -> None:
    """Cost an image against batch, image size and NFE, on logarithmic axes, with the straight line of proportion."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(11, 3.6), layout="constrained")
    panels = canvas.subplots(1, 3)
    for text in options.recipes:
        base = parse(text)
        name, own = text.partition(":")[0], [row for row in rows if row.recipe.split(":")[0] == text.split(":")[0]]
        side = f"{base.size[0]}×{base.size[1]}"
        at_batch = sorted((row.batch, 1 / row.rate) for row in own if row.size == side)
        pixels = [
            (int(row.size.split("×")[0]) ** 2, row) for row in own if row.batch == base.batch or row.size != side
        ]
        at_size = sorted((count, 1 / row.rate) for count, row in pixels)
        first = next((row for row in own if row.size == side and row.batch == base.batch), None)
        at_nfe = [(int(nfe), seconds) for nfe, seconds in (first.generation if first else {}).items()]
        for panel, found in zip(panels, (at_batch, at_size, at_nfe)):
            if found:
                (line,) = panel.plot(*zip(*found), "o-", label=name, markersize=4)
                if panel is not panels[0]:  # in proportion to pixels, or to evaluations, from the last point
                    x, y = found[-1]
                    panel.plot([found[0][0], x], [y * found[0][0] / x, y], ":", color=line.get_color())
    for panel, (x, y) in zip(
        panels,
        (("batch", "training, s an image"), ("pixels", "training, s an image"), ("NFE", "generation, s an image")),
    ):
        panel.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=7)
    canvas.suptitle(where, fontsize=8)
    canvas.savefig(options.figure, dpi=160)


def measured_rows(options: argparse.Namespace, device: torch.device, where: str) -> list[Row]:
    """All rows, those of the JSON file first; it is written after each."""
    begin, known = time.perf_counter(), {}
    if options.json and options.json.is_file():
        held = json.loads(options.json.read_text())
        if held["where"] != where:
            raise SystemExit(f"{options.json} was measured on {held['where']}, this is {where}: choose another file")
        known = {row["recipe"]: Row(**row) for row in held["rows"]}
    for text, nfes in points(options):
        if text in known:
            continue
        if time.perf_counter() - begin > options.for_:
            print(f"time is up before {text}: the same command continues")
            break
        try:
            known[text] = run(text, device, options.seconds, options.calibration, nfes, options.count)
        except torch.OutOfMemoryError:
            print(f"{text}: not enough memory", flush=True)
        gc.collect()  # recordings hold memory that the next one needs
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if options.json:
            facts = {"where": where, "torch": torch.__version__, "anisodiff": anisodiff.__version__}
            write_json(options.json, {**facts, "rows": [asdict(row) for row in known.values()]})
    return list(known.values())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", help="RECIPE[:KEY=VALUE;…]")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument(
        "--for", dest="for_", type=float, default=math.inf, help="seconds after which no row is begun"
    )
    parser.add_argument("--calibration", type=int, default=64, help="images the tables are measured on")
    parser.add_argument("--nfe", type=int, default=0, help="of generation; 0: none is measured")
    parser.add_argument("--count", type=int, help="images generated at a time; default: that of the model")
    for name, what in (("batches", "batch"), ("sizes", "side"), ("nfes", "NFE")):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=[], help=f"measure at each {what}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU"
    rows: list[Any] = measured_rows(args, device, where)
    print(table(rows, where))
    if args.markdown:
        args.markdown.write_text(table(rows, where))
    if args.figure:
        figure(rows, args, f"{where}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
