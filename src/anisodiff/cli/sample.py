"""``anisodiff sample``: generate images with a trained model."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anisodiff.cli import common
from anisodiff.notation import counted
from anisodiff.runtime.progress import no_progress

if TYPE_CHECKING:
    from anisodiff.generation import Generator, SamplingConfig, SamplingOutcome

SHOWN, FOLLOWED = 64, 4
"""Images in a grid, and samples whose trajectory is drawn."""


def sample(
    checkpoint: Path = common.CHECKPOINT,
    out: Path | None = common.output(None, "Write a folder, .zip, .npz or .png; default samples/."),
    n: int | None = typer.Option(None, "--n", "-n", "--count", help="Generate this many images; default 64."),
    seeds: str | None = typer.Option(None, "--seeds", help="Choose the seeds: 0-49999, or 3,5,10-19."),
    seed: int = typer.Option(0, "--seed", help="Set the first seed; image k has SEED + k."),
    steps: int = common.NFE,
    sampler: str = common.SAMPLER,
    prior: str = typer.Option("auto", "--prior", help="Choose auto, gaussian, simulate, conditional or heldout."),
    images: Path | None = typer.Option(
        None, "--images", metavar="PATH", help="Read the images that a prior starts from."
    ),
    classes: str | None = common.CLASS,
    guidance: float = common.GUIDANCE,
    interval: str | None = common.INTERVAL,
    batch: int | None = typer.Option(None, "--batch", help="Set images per batch; pixels may differ by one level."),
    grid: Path | None = typer.Option(None, "--grid", help=f"Write the first {SHOWN} images into one PNG."),
    strip: Path | None = typer.Option(None, "--strip", help=f"Draw {FOLLOWED} trajectories from noise into a PNG."),
    animation: Path | None = typer.Option(None, "--animation", help="Animate them: .gif, or .png for APNG."),
    compile: bool = typer.Option(False, "--compile/--no-compile", help="Compile a network of your own (CUDA)."),
    precision: str = typer.Option("auto", "--precision", help="Compute in bf16 or fp32; auto: bf16 on CUDA."),
    trust_code: bool = common.TRUST,
    latent: str | None = common.LATENT,
    as_json: bool = common.JSON,
    device: str = common.DEVICE,
) -> None:
    """Generate images. The job may be killed at any moment; run the same command again to make the missing images.

    Example: anisodiff sample run --out faces --n 64 --steps 50

    Samplers: exponential, ode, multistep, churn and euler; for ve and heat also ancestral, for ve also pc.
    Baselines have their own.

    Of a class, guided: anisodiff sample run --class cat --guidance 1.5

    For a benchmark: anisodiff sample run --out samples.npz --seeds 0-49999

    On several GPUs: torchrun --nproc-per-node 8 -m anisodiff sample run --seeds 0-49999, or accelerate launch -m …
    """
    from anisodiff.generation import SamplingConfig, load, write_samples
    from anisodiff.generation.job import check_out
    from anisodiff.runtime.devices import pick_device
    from anisodiff.runtime.distributed import Distributed

    if out is None:
        out, grid = Path("samples"), grid or Path("samples.png")
    check_out(out)
    _check_pictures(out, grid, strip, animation)
    seed_list, guided = _seeds(n, seeds, seed), common.guidance(guidance, interval)
    distributed = Distributed(pick_device(device))
    leads = distributed.leads  # only the first process prints; on standard error if standard output is JSON
    say: Callable[[str], None] = lambda line: typer.echo(line, err=as_json) if leads else None  # noqa: E731
    generator = load(
        checkpoint, distributed.device, images, compile=compile, precision=precision, trust_code=trust_code,
        latent=latent, say=say,
    )  # fmt: skip
    generator.check_condition(None, len(seed_list))
    if compile and distributed.device.type != "cuda":
        say(f"--compile has no effect on {distributed.device.type}")
    config = SamplingConfig(steps=steps, sampler=sampler, prior=prior, classes=classes, guidance=guided, batch=batch)
    reverse, start = generator.reverse_process(config), generator.named_prior(prior)
    common.check_prior_images(start, images)
    say(f"prior {start.name}: {start.description}")
    with common.progress("leakage of the prior") as tick:
        leakage = start.leakage(generator.device, tick) if leads else None
    if note := start.note(leakage):
        say(note)
    say(f"sampler {reverse.sampler.brief}: {reverse.nfe} NFE per image")
    if generator.classes:
        say(common.describe_classes(reverse, classes))
    shown = common.progress(f"{counted(len(seed_list), 'image')}, network evaluations")
    with common.kept("images", say), shown as tick:
        outcome = write_samples(
            generator, seed_list, out, config, leakage=leakage, distributed=distributed, say=say,
            progress=tick if leads else no_progress,
        )  # fmt: skip
    if leads:
        if grid is not None:
            _draw_grid(outcome, seed_list, grid)
        if strip is not None or animation is not None:
            _draw_paths(generator, seed_list[:FOLLOWED], config, strip, animation)
        pictures = [path for path in (grid, strip, animation) if path is not None]
        _report(outcome, [outcome.path, *pictures], note, as_json)


def _seeds(n: int | None, text: str | None, first: int) -> tuple[int, ...]:
    from anisodiff.generation import parse_seeds
    from anisodiff.generation.reverse import MOST_SEEDS

    if text is not None:
        if n is not None or first:
            raise ValueError("--seeds excludes --n and --seed: give one of them")
        return parse_seeds(text)
    count = 64 if n is None else n
    if not 1 <= count <= MOST_SEEDS or first < 0:
        raise ValueError(f"--n: got {count} samples from seed {first}, expected 1 to {MOST_SEEDS:,} from a seed ≥ 0")
    return tuple(range(first, first + count))


def _check_pictures(out: Path, grid: Path | None, strip: Path | None, animation: Path | None) -> None:
    common.check_suffix("--grid", grid, ".png")
    common.check_suffix("--strip", strip, ".png")
    common.check_suffix("--animation", animation, *common.ANIMATIONS)
    for name, path in (("--grid", grid), ("--strip", strip), ("--animation", animation)):
        if path is not None and out.resolve() in path.resolve().parents:
            raise ValueError(f"{name} {path} would lie among the samples and be read as one: write it outside {out}")
    if grid is not None and out.suffix.lower() == ".png":
        raise ValueError(f"--out {out} is a grid already: drop --grid, or write to a folder, .zip or .npz")
    common.check_distinct(out=out, grid=grid, strip=strip, animation=animation)


def _draw_grid(outcome: "SamplingOutcome", seeds: tuple[int, ...], path: Path) -> None:
    """Draw the first images, read back from what was written."""
    from anisodiff.generation.classes import ClassChoice
    from anisodiff.generation.figures import save_sample_grid
    from anisodiff.metrics.images import image_set, read_batches

    first = list(next(read_batches(image_set(outcome.path), SHOWN, limit=SHOWN)).permute(0, 2, 3, 1).numpy())
    save_sample_grid(first, seeds[: len(first)], ClassChoice.read(outcome.protocol), path)


def _draw_paths(
    generator: "Generator",
    seeds: tuple[int, ...],
    config: "SamplingConfig",
    strip: Path | None,
    animation: Path | None,
) -> None:
    """Sample a few seeds again, and draw every step."""
    from anisodiff.generation import SamplingStep
    from anisodiff.generation.figures import save_movie, save_strip

    seen: list[SamplingStep] = []
    generator.sample_seeds(
        seeds, config, batch=len(seeds),
        callback=lambda step: seen.append(step._replace(state=generator.decode_step(step).cpu())),
    )  # fmt: skip
    states = [step.state for step in seen]
    if strip is not None:
        save_strip(states, [step.t for step in seen], strip)
    if animation is not None:
        save_movie(states, animation)


def _report(outcome: "SamplingOutcome", written: list[Path], note: str | None, as_json: bool) -> None:
    rate = outcome.made / max(outcome.seconds, 1e-9)
    if as_json:
        facts = {
            **outcome.protocol, "path": str(outcome.path), "made": outcome.made, "spent": outcome.spent,
            "seconds": round(outcome.seconds, 3), "images_per_second": round(rate, 3),
            "written": [str(path) for path in written], "note": note,
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=2))
        return
    if outcome.made:
        typer.echo(
            f"{outcome.made} of {counted(outcome.count, 'image')} made: {outcome.spent} network evaluations, "
            f"{outcome.seconds:.1f} s, {rate:.3g} images/s"
        )
    common.wrote(*(written if outcome.made else written[1:]))
