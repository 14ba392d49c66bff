"""``anisodiff compare``: several methods under equal conditions, and one page about them."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anisodiff import notation
from anisodiff.cli import common, feature_network, study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anisodiff.experiments import Budget, EditTask

BUDGET = "10min"


def compare(
    names: list[str] = typer.Argument(
        None, metavar="RUN", help="Compare RECIPE[:KEY=VALUE;…], processes, checkpoints."),
    data: Path = study.DATA,
    out: Path = common.output_folder(Path("compare"), "Write the study to this folder."),
    budget: str = typer.Option(None, "--budget", help=f"Set the training time of each run. Default: {BUDGET}."),
    images: int = study.IMAGES,
    n: int | None = typer.Option(
        None, "--n", "--count", help="Measure N samples. Default: 10000 on CUDA, else 256."),
    steps: str = study.STEPS,
    prior: str = study.PRIOR,
    seeds: str = study.SEEDS,
    track: int = typer.Option(0, "--track", metavar="N", min=0, help="Number of FID evaluations during training."),
    track_n: int = typer.Option(2500, "--track-n", min=2, help="Set the samples of each such evaluation."),
    overrides: list[str] = study.SET,
    own: bool = typer.Option(False, "--own", help="Keep each recipe's own network, batch, optimizer, EMA."),
    edit: list[str] = typer.Option([], "--edit", help="Also run SDEdit on pictures, a set of them, or data."),
    strokes: int = typer.Option(6, "--strokes", min=1, help="Paint these pictures in this many colors first."),
    strengths: str = typer.Option("0.3,0.45,0.6,0.75", "--strengths", help="Set the SDEdit strengths, in (0, 1)."),
    edit_n: int = typer.Option(500, "--edit-n", help="Edit at most this many pictures of a set."),
    reference: str = study.REFERENCE,
    network: str = feature_network.NETWORK,
    weights: Path = feature_network.WEIGHTS,
    given: str = feature_network.INPUT,
    tf32: bool = feature_network.TF32,
    download: bool = feature_network.DOWNLOAD,
    trust_code: bool = feature_network.TRUST,
    only: str = typer.Option(None, "--only", help="Work on these runs only, by name: a,b."),
    stage: str = typer.Option(None, "--stage", help="Only paint, train, sample, evaluate or page: a,b."),
    span: str = study.FOR,
    dry_run: bool = study.DRY,
    keep_weights: bool = typer.Option(False, "--keep-weights", help="Keep half-precision weights in the results."),
    batch: int = study.BATCH,
    compile: bool = study.COMPILE,
    as_json: bool = common.JSON,
    device: str = common.DEVICE,
) -> None:  # fmt: skip
    """Train, sample and measure several runs in the same way, and write one page.

    Run the same command again to resume.

    Example: anisodiff compare cifar10-ve-base cifar10-flow-matching-base --data cifar10 --budget 10min --out study

    One method twice: anisodiff compare ve "ve:times=uniform;name=uniform" run:sampler=ode --data photos --track 5

    Time and cost first: anisodiff compare … --dry-run

    Without Inception: anisodiff compare … --network none measures pixels: sliced Wasserstein, spectrum, edges

    In pieces: anisodiff compare … --only flat --stage train,sample,evaluate --for 9min, then --stage page
    """
    from anisodiff import experiments

    chosen = _listed(stage, experiments.STAGES, "--stage")
    if chosen == ("page",) and not names and not dry_run:
        study.print_result(experiments.write_page(out, experiments.read_study(out, "comparison")), [], as_json)
        return
    if network == "none" and (track or edit):
        raise ValueError("--track and --edit measure FID, which needs a feature network: got --network none")
    runs = [experiments.parse_run(name) for name in names or []]
    experiments.check_names(runs)
    wanted = _listed(only, [one.name for one in runs], "--only")
    count, note = study.count_of(n, "comparison", out, device, 10_000)
    options = study.StudyOptions(
        data=data, out=out, n=count, note=note, steps=steps, prior=prior, seeds=seeds, overrides=overrides,
        reference=reference,
        network=feature_network.Choice(
            name=network, weights=weights, given=given, tf32=tf32, download=download, trust_code=trust_code),
        span=span, batch=batch, compile=compile, device=device,
        measures="evaluate" in chosen,
    )  # fmt: skip
    settings = options.settings(
        budget=_budget(budget, images), track=track, track_n=min(track_n, count),
        task=_task(edit, strokes, strengths, edit_n), keep_weights=keep_weights,
    )  # fmt: skip
    with study.opened("comparison", runs, settings, options, own=own, dry=dry_run) as held:
        mine = [entry for entry in held.entries if entry.run.name in wanted]
        if dry_run:
            whole = experiments.Round(entries=mine, count=len(wanted), budget=settings.budget)
            expected = study.forecast_of(held, [whole], options)
        else:
            ended = experiments.run_study(held.study, mine, chosen)
    if dry_run:
        study.print_forecast(expected, options, as_json)
        return
    page = None
    if "page" in chosen and ended:  # read again: by now the evaluation is known
        page = experiments.write_page(out, experiments.read_study(out, "comparison"), [one.name for one in runs])
    study.print_result(page, experiments.missing(held.study, held.entries), as_json)


def _listed(text: str | None, known: "Sequence[str]", option: str) -> tuple[str, ...]:
    """The names of ``a,b``, or all that are known."""
    found = tuple(known) if text is None else tuple(part.strip() for part in text.split(","))
    for part in found:
        notation.check_choice(part, known, option)
    return found


def _task(edit: list[str], strokes: int, strengths: str, count: int) -> "EditTask | None":
    from anisodiff.experiments import EditTask

    if not edit:
        return None
    levels = tuple(dict.fromkeys(common.numbers("--strengths", strengths, "numbers like 0.4,0.6")))
    return EditTask(sources=tuple(edit), colors=strokes, strengths=levels, count=count)


def _budget(budget: str | None, images: int | None) -> "Budget":
    from anisodiff.experiments import Budget

    if budget is not None and images is not None:
        raise ValueError("--budget and --images both say how long to train; give one of them")
    return Budget(images=images) if images is not None else Budget.parse(budget or BUDGET, "--budget")
