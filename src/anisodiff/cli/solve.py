"""``anisodiff solve``: inpainting, super-resolution, deblurring and colorization with a trained model."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anisodiff.cli import common
from anisodiff.cli.feature_network import allowed
from anisodiff.cli.tables import show_table

if TYPE_CHECKING:
    import torch

    from anisodiff.metrics import LPIPS


def solve(
    checkpoint: Path = common.CHECKPOINT,
    images: list[Path] = typer.Argument(..., metavar="IMAGE", help="Read images, or folders of images."),
    operator: str = typer.Option(..., "--operator", help="Name the operator, as super-resolution(factor=4)."),
    noise: float = typer.Option(0.02, "--noise", help="Set the standard deviation of the noise, images in [0, 1]."),
    degrade: bool = typer.Option(False, "--degrade", help="Degrade true images first, and measure PSNR."),
    mask: Path | None = typer.Option(None, "--mask", help="Inpaint where this image is white."),
    method: str = typer.Option("pigdm", "--method", help="Choose how the model is guided: pigdm or dps."),
    candidates: int = typer.Option(1, "--candidates", "-n", help="Make this many results per image."),
    steps: int = common.NFE,
    sampler: str = common.SAMPLER,
    classes: str | None = common.CLASS,
    guidance: float = common.GUIDANCE,
    interval: str | None = common.INTERVAL,
    seed: int = common.SEED,
    out: Path = common.output_folder(Path("solved"), "Write the results into this folder."),
    figure: Path | None = typer.Option(None, "--figure", help="Draw inputs and results: .png, .pdf or .svg."),
    lpips: Path | None = typer.Option(None, "--lpips", help="Read LPIPS's weights from this file."),
    download: bool = typer.Option(False, "--download", help="Download LPIPS's weights if they are not here."),
    trust_code: bool = common.TRUST,
    as_json: bool = common.JSON,
    device: str = common.DEVICE,
) -> None:
    """Solve a linear inverse problem y = A x + noise.

    Run the same command again to make what is missing.

    Example: anisodiff solve run small.png --operator 'super-resolution(factor=4)' --candidates 4

    Fill a hole: anisodiff solve run photo.png --operator inpainting --mask hole.png

    Try it on true images: anisodiff solve run photos --degrade --operator 'deblurring(width=1.5)'
    """
    from anisodiff.editing.problems import NAME, RECORD, SolveConfig, open_problem, problem_figure
    from anisodiff.generation import SamplingConfig, load
    from anisodiff.io.figures import FIGURES, save_figure
    from anisodiff.metrics.paired import paired_metrics
    from anisodiff.runtime.devices import pick_device

    common.check_candidates(candidates)
    if not degrade and (lpips is not None or download):
        raise ValueError("--lpips and --download need --degrade: there is nothing to compare a result with")
    RECORD.check_folder(out, NAME)
    common.check_suffix("--figure", figure, *FIGURES)
    common.check_distinct(out=out, figure=figure)
    guided = common.guidance(guidance, interval)
    sampling = SamplingConfig(steps=steps, sampler=sampler, classes=classes, guidance=guided)
    config = SolveConfig(
        noise=noise, seeds=tuple(range(seed, seed + candidates)), method=method, sampling=sampling, degrade=degrade
    )
    say = partial(typer.echo, err=as_json)
    where = pick_device(device)
    problem = open_problem(
        load(checkpoint, where, trust_code=trust_code, say=say), images, operator, mask, config, say
    )
    metrics = paired_metrics(_lpips(lpips, download, where, problem.generator.size, say)) if degrade else {}
    say(problem.line())
    with common.kept("results", say), common.progress("network evaluations") as tick:
        done = problem.write(out, say=say, progress=tick)
    if figure is not None:
        save_figure(problem_figure(problem, out), figure)
    scores = problem.scores(out, metrics) if metrics else {}
    written = [path for path in (out, figure) if path is not None]
    if as_json:
        facts = {
            **done.protocol, "path": str(out), "scores": scores, "count": done.count, "made": done.made,
            "nfe": done.spent, "seconds": round(done.seconds, 3), "written": [str(path) for path in written],
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{done.made} of {done.count} results made: {done.spent} network evaluations, {done.seconds:.1f} s")
    if scores:
        _show(scores, len(problem.pictures), len(config.seeds))
    common.wrote(*written)


def _lpips(
    file: Path | None, download: bool, device: "torch.device", size: tuple[int, int], say: Callable[[str], None]
) -> "LPIPS | None":
    """LPIPS where its weights are at hand or may be fetched; else a line says what is left out."""
    from anisodiff.metrics.lpips import LPIPS, PUBLISHED, STACKS
    from anisodiff.metrics.weights import WeightsNotFound

    if min(size) < (least := STACKS["alex"].smallest):
        say(f"left out: lpips, which needs images of at least {least}×{least}")
        return None
    online = allowed(PUBLISHED["alex"], file, download)
    try:
        return LPIPS(file, device=device, download=online, say=say)
    except WeightsNotFound:
        if download:
            raise
        say("left out: lpips, which needs its weights; give them with --lpips FILE or --download")
        return None


def _show(scores: Mapping[str, Mapping[str, float]], pictures: int, candidates: int) -> None:
    units = {"psnr": "PSNR (dB)", "lpips": "LPIPS"}
    names = list(next(iter(scores.values())))
    digits = {"psnr": 2, "lpips": 4}
    table = [["", *(units[name] for name in names)]]
    table += [
        [estimate, *(f"{values[name]:.{digits[name]}f}" for name in names)] for estimate, values in scores.items()
    ]
    notes = [f"means over {pictures} images"] * (pictures > 1)
    notes += [f"solved: mean over {candidates} candidates per image"] * (candidates > 1)
    show_table(table, table, notes)
