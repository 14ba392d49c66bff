"""Inverse problems as a job: pictures × seeds, each result written when it is made, resumable (`editing.results`).

OUT/solved/NAME-SEED.png     results;  OUT/mean/NAME.png, their mean over the seeds, where there are several
OUT/measured/NAME.png        what was measured, cut to [0, 1];  OUT/plain, OUT/wiener: the baselines
OUT/input/NAME.png           the true pictures, where the measurement was made from them
OUT/solve.json               the record: everything that fixes the pixels
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.editing.inputs import Picture, in_brief, read_mask, read_pictures
from anisodiff.editing.results import Job, Task, batch_size, read_result, save_image, save_means
from anisodiff.editing.solving import degrade, read_method, solve, wiener
from anisodiff.generation import Generator, SamplingConfig, SamplingOutcome
from anisodiff.generation.protocol import conditions_of
from anisodiff.generation.reverse import Callback, ReverseProcess, check_seeds
from anisodiff.inverse import LinearOperator, Method, check_model, check_noise, read_operator
from anisodiff.io import records
from anisodiff.io.picture_folder import PictureFolder
from anisodiff.io.schema import anything, fields, table
from anisodiff.metrics.paired import PairedMetric
from anisodiff.runtime.progress import Progress, no_progress

NAME = "solve.json"
RECORD = records.RecordKind("anisodiff solutions", 1, shape=fields(pictures=table(anything)))
SHOWN_CANDIDATES, SHOWN_PICTURES = 4, 8


@dataclass(frozen=True, kw_only=True)
class SolveConfig:
    """How every picture is solved."""

    noise: float
    seeds: tuple[int, ...]
    method: str = "pigdm"
    sampling: SamplingConfig = SamplingConfig()
    """Its classes: None is the null label."""
    degrade: bool = False
    """The pictures are true ones, and are measured here; else they are measurements."""

    def __post_init__(self) -> None:
        check_noise(self.noise)
        check_seeds(self.seeds)
        read_method(self.method)

    @property
    def how(self) -> Method:
        return read_method(self.method)

    def reverse_process(self, generator: Generator) -> ReverseProcess:
        """From T on."""
        return generator.reverse_process(self.sampling.unlabeled())


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A checkpoint, an operator, and pictures: measurements or true ones."""

    generator: Generator
    operator: LinearOperator
    config: SolveConfig
    pictures: tuple[Picture, ...]

    @cached_property
    def measured(self) -> Tensor:
        """y, [pictures, …]."""
        images = torch.stack([picture.photo for picture in self.pictures])
        if self.config.degrade:
            return degrade(self.operator, images, self.config.noise)
        return self.operator.restrict(images)

    def baselines(self) -> dict[str, Tensor]:
        """The operator's baseline and the Wiener filter, [pictures, C, H, W] each."""
        best = wiener(self.generator, self.measured, self.operator, self.config.noise)
        return {"plain": self.operator.plain(self.measured).clamp(0, 1), "wiener": best}

    def line(self) -> str:
        """What will be done."""
        reverse = self.config.reverse_process(self.generator)
        how = f"{self.config.how}; {reverse.sampler.brief}, {reverse.nfe} NFE"
        mask = getattr(self.operator, "mask", None)
        hole = "" if mask is None else f" (mask: {int(mask.sum())} of {mask.numel()} pixels)"
        return f"{self.operator}{hole}, noise {self.config.noise:g}: {how}"

    def paths(self, out: Path, name: str) -> list[Path]:
        """The results of a picture, one for every seed."""
        return [out / "solved" / f"{name}-{seed:04d}.png" for seed in self.config.seeds]

    def write(
        self,
        out: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        progress: Progress = no_progress,
    ) -> SamplingOutcome:
        """Every picture with every seed, into a folder; ``progress`` counts NFE."""
        config, generator = self.config, self.generator
        reverse = config.reverse_process(generator)
        tasks = [
            Task(path=path, picture=k, seed=seed, t=generator.process.T, cost=reverse.nfe)
            for k, picture in enumerate(self.pictures)
            for path, seed in zip(self.paths(out, picture.name), config.seeds)
        ]

        def make(part: Sequence[Task], callback: Callback) -> Tensor:
            return solve(
                generator, self.measured[[task.picture for task in part]], self.operator, config.sampling,
                noise=config.noise, seeds=[task.seed for task in part], method=config.how, callback=callback,
            )  # fmt: skip

        def before(folder: PictureFolder) -> None:
            written = {"measured": self.measured.clamp(0, 1), **self.baselines()}
            if config.degrade:
                written["input"] = torch.stack([picture.photo for picture in self.pictures])
            for name, images in written.items():
                for picture, image in zip(self.pictures, images):
                    save_image(folder, out / name / f"{picture.name}.png", image)

        def after(folder: PictureFolder) -> None:
            if len(config.seeds) > 1:
                for picture in self.pictures:
                    save_means(folder, self.paths(out, picture.name), out / "mean" / f"{picture.name}.png")

        job = Job(
            out=out, kind=RECORD, name=NAME, record=self._describe(), may_grow=("pictures",), tasks=tasks,
            batch=batch_size(reverse, config.sampling, max(1, generator.batch // 4)),
        )  # fmt: skip
        return job.write(make, before=before, after=after, say=say, progress=progress)

    def _describe(self) -> dict[str, Any]:
        """Everything that fixes the pixels; only plain values."""
        config, generator, mask = self.config, self.generator, getattr(self.operator, "mask", None)
        reverse = config.reverse_process(generator)
        return RECORD.new(
            {
                "checkpoint": generator.origin.model,
                "process": generator.process.identity(),
                "t_min": generator.plan.config.t_min,
                "size": generator.size,
                "operator": str(self.operator),
                "mask": None if mask is None else hashlib.sha256(mask.cpu().numpy().tobytes()).hexdigest(),
                "noise": config.noise,
                "method": str(config.how),
                "degrade": config.degrade,
                "sampler": str(reverse.sampler),
                "steps": config.sampling.steps,
                **conditions_of(reverse, 1),
                "pictures": {picture.name: picture.fingerprint for picture in self.pictures},
            }
        )

    def scores(self, out: Path, metrics: Mapping[str, PairedMetric]) -> dict[str, dict[str, float]]:
        """Every estimate with its metrics against the true pictures, means over pictures and candidates."""
        truth = torch.stack([picture.photo for picture in self.pictures])
        groups = [[read_result(path) for path in self.paths(out, picture.name)] for picture in self.pictures]
        made = torch.stack([torch.stack(group) for group in groups])
        estimates = self.baselines()
        if len(self.config.seeds) > 1:
            estimates[f"mean of {len(self.config.seeds)}"] = made.mean(1)
        each = {name: {key: metric(x, truth) for key, metric in metrics.items()} for name, x in estimates.items()}
        rows = truth.repeat_interleave(len(self.config.seeds), 0)
        each["solved"] = {key: metric(made.flatten(0, 1), rows) for key, metric in metrics.items()}
        return {name: {key: float(v.mean()) for key, v in values.items()} for name, values in each.items()}


def open_problem(
    generator: Generator, images: Sequence[Path], operator: str, mask: Path | None, config: SolveConfig,
    say: Callable[[str], None],
) -> Problem:  # fmt: skip
    """Read the pictures in the shape that operator and checkpoint need; ``say`` gets a line for every change."""
    check_model(generator.model)
    generator.check_condition(None, 1)
    config.reverse_process(generator)
    whole = (generator.channels, *generator.size)
    doubts: tuple[str, ...] = ()
    if mask is None:
        linear = read_operator(operator)
        shape = linear.measured(whole)
        channels, height, width = whole if config.degrade else shape
        what = f"{height}×{width}, the input of {linear} for this model of {whole[1]}×{whole[2]}"
        what = "" if (height, width) == generator.size else f"{what}; with --degrade a true image is degraded first"
        pictures = read_pictures(images, channels, (height, width), what)
    else:
        pictures = read_pictures(images, generator.channels, generator.size)
        free, doubts = read_mask(mask, pictures, generator.size)
        linear = read_operator(operator, free)
    for line in in_brief((*(line for picture in pictures for line in picture.notes), *doubts)):
        say(line)
    return Problem(generator=generator, operator=linear, config=config, pictures=tuple(pictures))


def problem_figure(problem: Problem, out: Path) -> Any:
    """A row for every picture: the truth where it is known, the measurement, the baselines, the first results."""
    from anisodiff.editing.figures import comparison_figure

    titles = ["measured", "plain", "Wiener"]
    folders = ["measured", "plain", "wiener"]
    if problem.config.degrade:
        titles, folders = ["true", *titles], ["input", *folders]
    seeds = problem.config.seeds[:SHOWN_CANDIDATES]
    titles += [f"seed {seed}" for seed in seeds]
    rows = [
        [read_result(out / folder / f"{picture.name}.png") for folder in folders]
        + [read_result(path) for path in problem.paths(out, picture.name)[: len(seeds)]]
        for picture in problem.pictures[:SHOWN_PICTURES]
    ]
    return comparison_figure(rows, titles, [problem.line()])
