"""``anisodiff compare``: several methods under one roof, and one page about them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anisodiff import notation
from anisodiff.cli import common, study
from anisodiff.runtime.progress import stages as bars
from anisodiff.training.recipes import SUMMARY

if TYPE_CHECKING:
    from anisodiff.experiments import Contender, Task, Terms

BUDGET = "10min"


def compare(
    names: list[str] = typer.Argument(
        None, metavar="RECIPE…", help=f"RECIPE[:KEY=VALUE;…], a process, or a checkpoint. Recipes: {SUMMARY}."),
    data: Path = study.DATA,
    out: Path = typer.Option(Path("compare"), "--out", "--output", "-o", help="Folder of the study."),
    budget: str = typer.Option(None, "--budget", help=f"Training time of each; compiling is free. Default {BUDGET}."),
    images: int = study.IMAGES,
    n: int = study.N,
    steps: str = study.STEPS,
    prior: str = study.PRIOR,
    seeds: str = study.SEEDS,
    track: int = typer.Option(0, "--track", min=0, help="So many points of FID over training time."),
    track_n: int = typer.Option(2500, "--track-n", min=2, help="Samples of each such point."),
    overrides: list[str] = study.SET,
    own: bool = typer.Option(False, "--own", help="Recipes keep their own network, batch, optimizer and averages."),
    edit: list[str] = typer.Option([], "--edit", help="Also SDEdit of pictures, a set of them, or the word data."),
    strokes: int = typer.Option(6, "--strokes", help="Colors that these are painted in first."),
    strengths: str = typer.Option("0.3,0.45,0.6,0.75", "--strengths", help="How strongly they are edited."),
    edit_n: int = typer.Option(500, "--edit-n", help="At most so many pictures of a set."),
    reference: str = study.REFERENCE,
    network: str = study.NETWORK,
    weights: Path = study.WEIGHTS,
    given: str = study.INPUT,
    tf32: bool = study.TF32,
    only: str = typer.Option(None, "--only", help="Work on these contenders alone, by their names: a,b."),
    stage: str = typer.Option(None, "--stage", help="Only paint, train, sample, evaluate or page; several: a,b."),
    span: str = study.FOR,
    keep_weights: bool = typer.Option(False, "--keep-weights", help="Weights in half precision among the results."),
    batch: int = study.BATCH,
    compile: bool = study.COMPILE,
    as_json: bool = study.JSON,
    device: str = common.DEVICE,
) -> None:  # fmt: skip
    """Train, sample and measure several methods in the same way, and write one page. The same command continues.

    Example: anisodiff compare cifar10-ve-base cifar10-flow-matching-base --data cifar10 --budget 10min --out study

    One method twice: anisodiff compare ve "ve:gamma=0;name=flat" run:sampler=ode --data photos --track 5

    In pieces: anisodiff compare … --only flat --stage train,sample,evaluate --for 9min, and at last --stage page
    """
    from anisodiff.experiments import check_names, open_study, parse_contender, read_study, write_page

    chosen = _stages(stage)
    if chosen == ("page",) and not names:
        study.tell_end(write_page(out, read_study(out, "comparison")), [], as_json)
        return
    contenders = [parse_contender(name) for name in names or []]
    check_names(contenders)
    wanted = _only(only, contenders)
    task = _task(edit, strokes, strengths, edit_n)
    terms = _terms(budget, images, n, steps, prior, seeds, track, track_n, task, batch, keep_weights, compile)
    asked = study.Asked(
        data=data, out=out, overrides=overrides, reference=reference, network=network, weights=weights, given=given,
        tf32=tf32, span=span, device=device, as_json=as_json,
    )  # fmt: skip
    deadline = study.deadline_of(asked)
    fixed = {**terms.fixed(), "reference": None}

    from anisodiff.experiments import check, configs, describe, entries

    dataset = study.open_data(contenders, asked)
    found = configs(contenders, dataset, common.settings(overrides), own=own)
    check(contenders, found, dataset)
    everyone = entries(contenders, found, terms, out)
    described = describe(everyone)
    fixed["data"] = dataset.fingerprint[:16]

    def hold(more: dict[str, Any]) -> dict[str, Any]:
        return open_study(out, "comparison", {**fixed, **more}, described, command=study.command())

    hold({})
    with bars(common.console) as tell:
        runner = study.study_of(asked, terms, dataset, deadline, tell, hold)
        ended = runner.run([e for e in everyone if e.contender.name in wanted], chosen)
    shown = [one.name for one in contenders]
    # read again: by now the measure is known
    page = write_page(out, read_study(out, "comparison"), shown) if "page" in chosen and ended else None
    study.tell_end(page, runner.missing(everyone), as_json)


def _stages(text: str | None) -> tuple[str, ...]:
    from anisodiff.experiments import STAGES

    found = STAGES if text is None else tuple(part.strip() for part in text.split(","))
    for part in found:
        if part not in STAGES:
            raise ValueError(f"unknown --stage {part!r}; {notation.nearest(part, STAGES)}")
    return found


def _only(text: str | None, contenders: "list[Contender]") -> list[str]:
    known = [one.name for one in contenders]
    found = known if text is None else [part.strip() for part in text.split(",")]
    for name in found:
        if name not in known:
            raise ValueError(f"--only: no contender {name!r}; {notation.nearest(name, known)}")
    return found


def _task(edit: list[str], strokes: int, strengths: str, count: int) -> "Task | None":
    from anisodiff.experiments import Task

    if not edit:
        return None
    try:
        levels = tuple(dict.fromkeys(float(part) for part in strengths.split(",")))
    except ValueError:
        raise ValueError(f"--strengths: got {strengths!r}, expected numbers such as 0.4,0.6") from None
    return Task(sources=tuple(edit), colors=strokes, strengths=levels, count=count)


def _terms(
    budget: str | None, images: int | None, n: int, steps: str, prior: str, seeds: str, track: int, track_n: int,
    task: "Task | None", batch: int | None, keep_weights: bool, compile: bool,
) -> "Terms":  # fmt: skip
    from anisodiff.experiments import Budget, Terms, parse_steps

    if budget is not None and images is not None:
        raise ValueError("--budget and --images both say how long to train; give one of them")
    length = Budget(images=images) if images is not None else Budget.parse(budget or BUDGET, "--budget")
    return Terms(
        budget=length, n=n, steps=parse_steps(steps), priors=tuple(part.strip() for part in prior.split(",")),
        seeds=study.whole_numbers(seeds, "--seeds"), track=track, track_n=min(track_n, n), task=task, batch=batch,
        keep_weights=keep_weights, compile=compile,
    )  # fmt: skip
