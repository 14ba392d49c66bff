"""``anisodiff sweep``: one method with many values of some fields."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anisodiff.cli import common, feature_network, study

if TYPE_CHECKING:
    from anisodiff.experiments import Budget


def sweep(
    name: str = typer.Argument("", metavar="RUN", help="Sweep over RECIPE[:KEY=VALUE;…], or a process."),
    grid: list[str] = typer.Option(
        [], "--grid", metavar="KEY=V1,V2", help="Try values KEY=V1,V2,… (or V1|V2); repeatable: all pairs."),
    data: Path = study.DATA,
    out: Path = common.output_folder(Path("sweep"), "Write the sweep to this folder."),
    budget: str = typer.Option(None, "--budget", help="Set the training time of each point."),
    images: int = study.IMAGES,
    halving: int = typer.Option(
        None, "--halving", help="Continue the best 1 in N with N times the budget."),
    min_budget: str = typer.Option(None, "--min-budget", help="Set the first round of --halving: 60s, 20000images."),
    metric: str | None = typer.Option(
        None, "--metric", help="Sort and halve by this metric; default: fid if it is there."),
    n: int | None = typer.Option(
        None, "--n", "--count", help="Measure N samples. Default: 5000 on CUDA, else 256."),
    steps: str = study.STEPS,
    prior: str = typer.Option("auto", "--prior", help="Choose the prior; the first of several decides."),
    seeds: str = study.SEEDS,
    overrides: list[str] = study.SET,
    reference: str = study.REFERENCE,
    network: str = feature_network.NETWORK,
    weights: Path = feature_network.WEIGHTS,
    given: str = feature_network.INPUT,
    tf32: bool = feature_network.TF32,
    download: bool = feature_network.DOWNLOAD,
    trust_code: bool = feature_network.TRUST,
    span: str = study.FOR,
    dry_run: bool = study.DRY,
    batch: int = study.BATCH,
    compile: bool = study.COMPILE,
    as_json: bool = common.JSON,
    device: str = common.DEVICE,
) -> None:  # fmt: skip
    """Train, sample and measure one method with many values, and write a sorted table and a plot.

    Run the same command again to resume.

    Example: anisodiff sweep cifar10-small --data cifar10 --grid 'process.diffusivity=geometric(0.1, 2),0' --budget 2min

    Halving: anisodiff sweep cifar10-ve-small --data cifar10 --grid level_mean=-1,-0.5,0 --grid lr=2e-4,4e-4,8e-4 --halving 3 --min-budget 60s

    The table again, from the results alone: anisodiff sweep --out sweep
    """  # noqa: E501
    from anisodiff import experiments

    if not name and dry_run:
        raise ValueError("--dry-run: name the run to sweep over, such as ve")
    held = experiments.read_study(out, "sweep") if not name else None
    by = held["fixed"].get("compared_by") if held else experiments.compared_by(network)
    metric = experiments.choose_metric(metric, by)
    if held is not None:
        page = experiments.write_sweep(out, held, held["fixed"]["rounds"], held["fixed"]["prior"], metric)
        study.print_result(page, [], as_json)
        return
    points = experiments.points(name, [experiments.parse_axis(text) for text in grid])
    runs = [one for one, _ in points]
    experiments.check_names(runs)
    count, note = study.count_of(n, "sweep", out, device, 5000)
    options = study.StudyOptions(
        data=data, out=out, n=count, note=note, steps=steps, prior=prior, seeds=seeds, overrides=overrides,
        reference=reference,
        network=feature_network.Choice(
            name=network, weights=weights, given=given, tf32=tf32, download=download, trust_code=trust_code),
        span=span, batch=batch, compile=compile, device=device,
    )  # fmt: skip
    settings = options.settings(budget=_length(budget, images, halving, min_budget))
    halved = None if halving is None else experiments.Halving(eta=halving, metric=metric)
    rounds = [tag for tag, _, _ in experiments.rungs(len(runs), settings.budget, halving)]
    fixed = {
        "rounds": rounds, "prior": settings.priors[0],
        "halving": None if halved is None else f"1 in {halved.eta} by {halved.metric}",
    }  # fmt: skip
    values = {one.name: point for one, point in points}
    with study.opened("sweep", runs, settings, options, fixed=fixed, points=values, dry=dry_run) as current:
        if dry_run:
            planned = experiments.sweep_rounds(current.study, runs, current.configs, out, halved)
            expected = study.forecast_of(current, planned, options)
        else:
            done = experiments.run_sweep(current.study, runs, current.configs, out, halved)
    if dry_run:
        study.print_forecast(expected, options, as_json)
        return
    held = experiments.read_study(out, "sweep")  # by now with the evaluation
    page = experiments.write_sweep(out, held, rounds, settings.priors[0], metric)
    study.print_result(page, [] if done else ["some points"], as_json)


def _length(budget: str | None, images: int | None, halving: int | None, least: str | None) -> "Budget":
    """The budget of every point, or of the first round."""
    from anisodiff.experiments import Budget

    given = [word for word in (budget, images, least) if word is not None]
    if halving is None and least is not None:
        raise ValueError("--min-budget belongs to --halving: say with --budget how long every point trains")
    if len(given) != 1:
        wanted = "--min-budget" if halving is not None else "--budget or --images"
        raise ValueError(f"say how long to train, once: {wanted}")
    if images is not None:
        return Budget(images=images)
    return Budget.parse(budget or least or "", "--min-budget" if least is not None else "--budget")
