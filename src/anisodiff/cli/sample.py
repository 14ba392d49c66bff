"""``anisodiff sample``: images from a checkpoint alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anisodiff.cli import common
from anisodiff.runtime.devices import pick_device

if TYPE_CHECKING:  # imported when it runs: --help stays quick
    from torch import Tensor

    from anisodiff.generation import Generator, SamplingOutcome

SHOWN, FOLLOWED = 64, 4
"""Images of a grid beside other output, and samples whose trajectory is drawn."""


def sample(
    checkpoint: Path = typer.Argument(
        ..., help="A run's folder (its newest checkpoint), a checkpoint's, or cifar10-tiny, which comes along."
    ),
    out: Path | None = typer.Option(
        None, "--out", "--output", "-o", help="A folder, or a .zip, .npz or .png (a grid). Without it: samples/."
    ),
    n: int | None = typer.Option(None, "--n", "-n", help="How many: seeds SEED, SEED+1, …; default 64."),
    seeds: str | None = typer.Option(None, "--seeds", help="Which, in place of --n: 0-49999, or 3,5,10-19."),
    seed: int = typer.Option(0, "--seed", help="The first seed of --n."),
    steps: int = typer.Option(50, "--steps", help="Evaluations of the network for each image."),
    sampler: str = typer.Option("auto", "--sampler", help="auto: the model's usual; exponential, ode, heun, …"),
    prior: str = typer.Option("gaussian", "--prior", help="gaussian, simulate, conditional, heldout."),
    images: Path | None = typer.Option(None, "--images", help="Images for a prior: prepared, a folder, a zip."),
    batch: int | None = typer.Option(None, "--batch", help="Images at a time; changes no image."),
    grid: Path | None = typer.Option(None, "--grid", help=f"Also a PNG with the first {SHOWN} images."),
    strip: Path | None = typer.Option(
        None, "--strip", help=f"Also a PNG: {FOLLOWED} samples on their way from noise."
    ),
    animation: Path | None = typer.Option(None, "--animation", help="The same as a .gif, or .png for APNG."),
    compile: bool = typer.Option(False, "--compile/--no-compile", help="Compile the network (CUDA): for thousands."),
    precision: str = typer.Option("auto", "--precision", help="Inside the network: bf16, fp32; auto: bf16 on CUDA."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON."),
    device: str = common.DEVICE,
) -> None:
    """Generate images. It may be killed at any moment; the same command again makes what is missing.

    Example: anisodiff sample run --out faces --n 64 --steps 50

    For a benchmark: anisodiff sample run --out samples.npz --seeds 0-49999

    On several GPUs: torchrun --nproc-per-node 8 -m anisodiff sample run --seeds 0-49999, or accelerate launch -m …
    """
    from anisodiff.generation import load, write_samples
    from anisodiff.generation.job import check_out
    from anisodiff.runtime.distributed import Distributed

    if out is None:
        out, grid = Path("samples"), grid or Path("samples.png")
    check_out(out)
    _check_pictures(out, grid, strip, animation)
    chosen = _seeds(n, seeds, seed)
    distributed = Distributed(pick_device(device))
    say = _speaker(distributed.leads, as_json)
    generator = load(checkpoint, distributed.device, images, compile=compile, precision=precision, say=say)
    if compile and distributed.device.type != "cuda":
        say(f"on a {distributed.device.type} without compile: the network runs as it is")
    route, start = generator.route(sampler, steps), generator.start(prior)
    if images is not None and start.pool is None:
        raise ValueError(
            f"prior {prior!r} is in the checkpoint and needs no image: leave --images away, "
            "or choose --prior simulate, conditional or heldout"
        )
    say(f"prior {start.name}: {start.description}")
    with common.progress("what the prior leaks") as bar:
        leakage = start.leakage(generator.device, bar) if distributed.leads else None
    if note := start.note(leakage):
        say(note)
    say(f"sampler {route.sampler}: {route.nfe} evaluations of the network for each image")
    try:
        with common.plain_warnings(), common.progress(f"{len(chosen)} images, network evaluations") as bar:
            outcome = write_samples(
                generator, chosen, out, steps=steps, sampler=sampler, prior=prior, batch=batch, leakage=leakage,
                distributed=distributed, say=say, progress=bar if distributed.leads else lambda _, __: None,
            )  # fmt: skip
    except KeyboardInterrupt:
        say("stopped: finished images are kept; the same command again makes the rest")
        raise
    if not distributed.leads:
        return
    written = [outcome.path]
    if grid is not None:
        _draw_grid(outcome, grid)
        written.append(grid)
    if strip is not None or animation is not None:
        written += _draw_paths(generator, chosen[:FOLLOWED], steps, sampler, prior, strip, animation)
    _tell(outcome, written, note, as_json)


def _seeds(n: int | None, text: str | None, first: int) -> tuple[int, ...]:
    from anisodiff.generation import parse_seeds
    from anisodiff.generation.reverse import MOST_SEEDS

    if text is not None:
        if n is not None or first:
            raise ValueError("--seeds says which samples: leave --n and --seed away")
        return parse_seeds(text)
    count = 64 if n is None else n
    if not 1 <= count <= MOST_SEEDS or first < 0:
        raise ValueError(f"--n: got {count} samples from seed {first}, expected 1 to {MOST_SEEDS:,} from a seed ≥ 0")
    return tuple(range(first, first + count))


def _check_pictures(out: Path, grid: Path | None, strip: Path | None, animation: Path | None) -> None:
    moving = (".gif", ".png", ".apng")
    pictures = (("--grid", grid, (".png",)), ("--strip", strip, (".png",)), ("--animation", animation, moving))
    for name, path, kinds in pictures:
        if path is not None and path.suffix.lower() not in kinds:
            raise ValueError(f"{name} must end in {' or '.join(kinds)}, got {path}")
        if path is not None and out.resolve() in path.resolve().parents:
            raise ValueError(f"{name} {path} would lie among the samples and be taken for one: put it beside {out}")
    if grid is not None and out.suffix.lower() == ".png":
        raise ValueError(f"--out {out} is a grid already: leave --grid away, or write to a folder, .zip or .npz")
    given = [path.resolve() for path in (out, grid, strip, animation) if path is not None]
    if len(set(given)) < len(given):
        raise ValueError("--out, --grid, --strip and --animation: two of them are the same file; give other names")


def _speaker(leads: bool, as_json: bool) -> Callable[[str], None]:
    """Lines of the first process; beside JSON they go to standard error."""
    return lambda line: typer.echo(line, err=as_json) if leads else None


def _draw_grid(outcome: "SamplingOutcome", path: Path) -> None:
    """The first images as they were written."""
    from anisodiff.generation.figures import save_grid
    from anisodiff.metrics.images import image_set, walk

    first = next(walk(image_set(outcome.path), SHOWN, limit=SHOWN))
    save_grid(list(first.permute(0, 2, 3, 1).numpy()), path)


def _draw_paths(
    generator: "Generator",
    seeds: tuple[int, ...],
    steps: int,
    sampler: str,
    prior: str,
    strip: Path | None,
    animation: Path | None,
) -> list[Path]:
    """Run a few seeds again and look at every step."""
    from anisodiff.generation.figures import save_movie, save_strip

    times: list[float] = []
    states: list[Tensor] = []

    def look(step: Any) -> None:
        times.append(step.t)
        states.append(step.state.cpu())

    generator.sample_seeds(seeds, steps=steps, sampler=sampler, prior=prior, batch=len(seeds), callback=look)
    if strip is not None:
        save_strip(states, times, strip)
    if animation is not None:
        save_movie(states, animation)
    return [path for path in (strip, animation) if path is not None]


def _tell(outcome: "SamplingOutcome", written: list[Path], note: str | None, as_json: bool) -> None:
    rate = outcome.made / max(outcome.seconds, 1e-9)
    if as_json:
        facts = {
            **outcome.protocol, "path": str(outcome.path), "made": outcome.made, "spent": outcome.spent,
            "seconds": round(outcome.seconds, 3),
            "images_per_second": round(rate, 3), "written": [str(path) for path in written], "note": note,
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=2))
        return
    if outcome.made:
        typer.echo(
            f"{outcome.made} of {outcome.count} images made: {outcome.spent} evaluations of the network, "
            f"{outcome.seconds:.1f} s, {rate:.3g} images/s"
        )
    for path in written if outcome.made else written[1:]:
        common.wrote(path)
