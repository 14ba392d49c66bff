"""``anisodiff sweep``: one method with many values of some fields."""

from pathlib import Path
from typing import Any

import typer

from anisodiff.cli import common, study
from anisodiff.runtime.progress import stages as bars


def sweep(
    name: str = typer.Argument("", metavar="RUN", help="Sweep over RECIPE[:KEY=VALUE;…], or a process."),
    grid: list[str] = typer.Option(
        [], "--grid", help="Try values KEY=V1,V2,… (or V1|V2); repeatable: all pairs."),
    data: Path = study.DATA,
    out: Path = typer.Option(Path("sweep"), "--out", "--output", "-o", help="Write the sweep to this folder."),
    budget: str = typer.Option(None, "--budget", help="Set the training time of each point."),
    images: int = study.IMAGES,
    halving: int = typer.Option(
        None, "--halving", help="Continue the best 1 in N with N times the budget."),
    min_budget: str = typer.Option(None, "--min-budget", help="Set the first round of --halving: 60s, 20000images."),
    metric: str = typer.Option("fid", "--metric", help="Sort the table and halve by this metric."),
    n: int = typer.Option(5000, "--n", "--count", help="Set the number of samples to measure."),
    steps: str = study.STEPS,
    prior: str = typer.Option("gaussian", "--prior", help="Choose the prior; the first of several decides."),
    seeds: str = study.SEEDS,
    overrides: list[str] = study.SET,
    reference: str = study.REFERENCE,
    network: str = study.NETWORK,
    weights: Path = study.WEIGHTS,
    given: str = study.INPUT,
    tf32: bool = study.TF32,
    span: str = study.FOR,
    batch: int = study.BATCH,
    compile: bool = study.COMPILE,
    as_json: bool = study.JSON,
    device: str = common.DEVICE,
) -> None:  # fmt: skip
    """Train, sample and measure one method with many values, and write a sorted table and a plot.

    The same command continues.

    Example: anisodiff sweep cifar10-anisotropic-small --data cifar10 --grid 'process.diffusivity=geometric(0.1, 2),0' --budget 2min

    Halving: anisodiff sweep cifar10-ve-small --data cifar10 --grid gamma=0,0.5,1 --grid lr=2e-4,4e-4,8e-4 --halving 3 --min-budget 60s

    The table again, from the results alone: anisodiff sweep --out sweep
    """  # noqa: E501
    from anisodiff.experiments import (
        Halving,
        StudySettings,
        check_metric,
        check_names,
        check_runs,
        configs,
        describe_runs,
        open_study,
        parse_axis,
        parse_steps,
        points,
        read_study,
        run_sweep,
        seed_runs,
        tags,
        write_sweep,
    )  # fmt: skip

    check_metric(metric)
    if not name:
        held = read_study(out, "sweep")
        page = write_sweep(out, held, held["fixed"]["rounds"], held["fixed"]["prior"], metric)
        study.tell_end(page, [], as_json)
        return
    chosen = points(name, [parse_axis(text) for text in grid])
    runs = [one for one, _ in chosen]
    check_names(runs)
    length = _length(budget, images, halving, min_budget)
    settings = StudySettings(
        budget=length, n=n, steps=parse_steps(steps), priors=tuple(part.strip() for part in prior.split(",")),
        seeds=study.whole_numbers(seeds, "--seeds"), batch=batch, compile=compile,
    )  # fmt: skip
    asked = study.Asked(
        data=data, out=out, overrides=overrides, reference=reference, network=network, weights=weights, given=given,
        tf32=tf32, span=span, device=device, as_json=as_json,
    )  # fmt: skip
    deadline = study.deadline_of(asked)
    dataset = study.open_data(runs, asked)
    found = configs(runs, dataset, common.settings(overrides))
    check_runs(runs, found, dataset)
    everyone = seed_runs(runs, found, settings, out)
    halved = None if halving is None else Halving(eta=halving, metric=metric)
    rounds = tags(len(runs), settings.budget, halved)
    described = describe_runs(everyone)
    values = {one.name: point for one, point in chosen}
    for entry in everyone:
        described[entry.place.name]["point"] = values[entry.run.name]
    fixed = {
        **settings.fixed(), "data": dataset.fingerprint[:16], "rounds": rounds, "prior": settings.priors[0],
        "halving": None if halved is None else f"1 in {halved.eta} by {halved.metric}",
    }  # fmt: skip

    def hold(more: dict[str, Any]) -> dict[str, Any]:
        return open_study(out, "sweep", {**fixed, **more}, described, command=study.command())

    hold({})
    with bars(common.console) as tell:
        runner = study.study_of(asked, settings, dataset, deadline, tell, hold)
        done = run_sweep(runner, runs, found, out, halved, study.say)
    held = read_study(out, "sweep")  # by now with the evaluation
    page = write_sweep(out, held, rounds, settings.priors[0], metric)
    if not as_json:
        typer.echo(page.read_text(encoding="utf-8").split("\n\n")[2])
    study.tell_end(page, [] if done else ["some points"], as_json)


def _length(budget: str | None, images: int | None, halving: int | None, least: str | None) -> Any:
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
