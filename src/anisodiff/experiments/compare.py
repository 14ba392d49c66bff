"""Train, sample and evaluate all runs of a study in the same way.

The files of `layout` show what is done: a study that was stopped anywhere continues from there.
"""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from anisodiff.experiments.edits import Paintings, file_of, make_edits, measure_edits
from anisodiff.experiments.layout import MADE, RESULT, TRAINED, read_json, save_arrays
from anisodiff.experiments.sampling import SHOWN, Chunks, Column, Failed, SampleWriter
from anisodiff.experiments.study import STAGES, SeededRun, Study, foreign_start
from anisodiff.experiments.training import given_training, train_under
from anisodiff.generation import load
from anisodiff.io.records import write_json
from anisodiff.metrics import Generation
from anisodiff.metrics.samples import classes_of
from anisodiff.training import Plan, newest
from anisodiff.training.setup import describe
from anisodiff.training.start import load_start


def run_study(study: Study, found: Sequence[SeededRun], stages: Sequence[str] = STAGES) -> bool:
    """All stages, one run after the other; False where the deadline ended it."""
    task, out = study.settings.task, found[0].place.out
    paintings = None if task is None else Paintings(task, out, study.dataset, study.progress)
    if "train" in stages:
        for entry in found:
            _check_start(study, entry)
    if "evaluate" in stages and missing(study, found):
        study.evaluator()  # report a missing reference or feature network now, not after hours of training
    if paintings is not None and "paint" in stages and not paintings.paint(study.deadline):
        return False
    for entry in found:
        if "train" in stages and not _train(study, entry):
            return False
        if ("sample" in stages or "evaluate" in stages) and not RunEvaluation(study, entry, paintings).run(stages):
            return False
    return True


def missing(study: Study, found: Sequence[SeededRun]) -> list[str]:
    """Results that are not there yet."""
    return [f"{entry.place.name}/{name}" for entry in found for name in RunEvaluation(study, entry, None).missing()]


def _check_start(study: Study, entry: SeededRun) -> None:
    """Whether the checkpoint that a training starts from exists and fits."""
    start, config, place = foreign_start(entry), entry.config, entry.place
    if (
        start is None
        or config is None
        or read_json(place.trained, TRAINED) is not None
        or newest(place.run) is not None
    ):
        return
    plan = Plan.of(config)
    try:
        load_start(start, plan, describe(plan, study.dataset))
    except ValueError as error:
        raise ValueError(f"run {entry.run.text!r}: {error}") from None


def _train(study: Study, entry: SeededRun) -> bool:
    place, config = entry.place, entry.config
    if config is None:
        if read_json(place.trained, TRAINED) is None:
            write_json(place.trained, given_training(Path(entry.run.base)))
        return True
    return train_under(config, place, study, start=entry.run.start)


class RunEvaluation:
    """Samples and numbers of one run: columns of the table, FID during training, edits."""

    def __init__(self, study: Study, entry: SeededRun, paintings: Paintings | None) -> None:
        self.study, self.settings, self.one, self.place = study, study.settings, entry.run, entry.place
        self.paintings, settings, one = paintings, study.settings, entry.run
        self.n = one.n or settings.n
        priors, steps = entry.priors(settings), one.steps or settings.steps
        self.main = Column(prior=priors[0], steps=max(steps))
        columns = [Column(prior=prior, steps=count) for prior in priors for count in steps]
        owns = self.place.name == self.place.training  # runs that share a training share its curve
        # one that starts from given weights is also measured before any training
        first = settings.track if one.checkpoint else 1 if one.start is None else 0
        self.points = range(first, settings.track + 1) if settings.track and owns else range(0)
        self.strengths = () if settings.task is None else settings.task.strengths
        self.work: dict[str, Callable[[Sequence[str]], bool]] = {
            **{column.name: partial(self._column, column) for column in columns},
            **{f"track-{number}": partial(self._point, number) for number in self.points},
            **{file_of(strength): partial(self._edit, strength) for strength in self.strengths},
        }
        """Result → what makes it, given the stages; False where the deadline came first."""
        self._writer: SampleWriter | None = None  # loaded when first needed

    def run(self, stages: Sequence[str]) -> bool:
        """All that the stages allow; False where the deadline came first."""
        trained = read_json(self.place.trained, TRAINED)
        names = list(self.work)
        if trained is None:  # of a training under way the weights it has kept
            names = [f"track-{number}" for number in self.points if newest(self.place.track(number)) is not None]
        elif "failed" in trained:
            return True
        elif self.paintings is not None:
            for path in (self._result(file_of(strength)) for strength in self.strengths):
                self.paintings.check(read_json(path, RESULT), path)
        return all(self._guarded(name, stages) for name in names)

    def missing(self) -> list[str]:
        trained = read_json(self.place.trained, TRAINED)
        if trained is None:
            return ["train"]
        return [] if "failed" in trained else [name for name in self.work if not self._result(name).is_file()]

    def _result(self, name: str) -> Path:
        return self.place.results / f"{name}.json"

    def writer(self, checkpoint: str | Path | None = None) -> SampleWriter:
        """The run's own model, kept; or one of its checkpoints."""
        if checkpoint is None and self._writer is not None:
            return self._writer
        path, study = checkpoint or self._weights(), self.study
        generator = load(path, study.device, study.dataset, compile=self.settings.compile)
        made = SampleWriter(generator, self.settings.batch, study.deadline, study.progress, study.say)
        if checkpoint is None:
            self._writer = made
        return made

    def _weights(self) -> str | Path:
        if self.one.checkpoint:
            return self.one.base
        for path in (self.place.weights, self.place.run):
            if newest(path) is not None:
                return path
        raise ValueError(
            f"{self.place.training} is trained, but its weights are gone: bring back {self.place.run}, or remove "
            f"{self.place.trained} to train it again"
        )

    def _guarded(self, name: str, stages: Sequence[str]) -> bool:
        """Do what has no result yet; a run that cannot gets a line in the table in place of a number."""
        if self._result(name).is_file():
            return True
        try:
            return self.work[name](stages)
        except Failed as error:
            self.study.say(f"{self.place.name}, {name}: {error}")
            write_json(self._result(name), {"failed": str(error)})
            return True

    def _column(self, column: Column, stages: Sequence[str]) -> bool:
        folder, study = self.place.work / column.name, self.study
        chunks = Chunks(folder)
        if "sample" in stages:
            stage = f"sample {self.place.name} {column.name}"
            protocol = self.writer().column(folder, column, self.one.sampler, self.n, stage)
            if protocol is None:
                return False
            write_json(folder / "made.json", protocol)
        protocol = read_json(folder / "made.json", MADE)
        if "evaluate" not in stages or protocol is None:
            return True
        if study.deadline.over():
            return False
        generation = Generation(
            nfe=protocol["nfe"], prior=column.prior, seed=protocol["seed"], classes=classes_of(protocol)
        )
        report = study.evaluator().report(chunks.image_set(self.place.name, self.n), generation, limit=self.n)
        save_arrays(self.place.results / f"{column.name}.npz", images=chunks.first(SHOWN))
        write_json(self._result(column.name), {"report": report, "sampling": protocol})
        return True

    def _point(self, number: int, stages: Sequence[str]) -> bool:
        """FID after a part of the budget; the last one takes the first samples of the main column."""
        settings, study, name = self.settings, self.study, f"track-{number}"
        n, last = min(settings.track_n, self.n), number == settings.track
        folder = self.place.work / (self.main.name if last else name)
        if last and (why := (read_json(self._result(self.main.name), RESULT) or {}).get("failed")):
            raise Failed(why)
        saved = None if last else newest(self.place.track(number))
        if saved is None and not last:
            if not self.place.run.is_dir():
                return True  # they lie on another machine
            if number == 0:
                raise Failed("the weights that the training began with were not kept")
            raise Failed(f"no weights were kept after part {number} of {settings.track}: the run was too short")
        if "sample" in stages and saved is not None:
            stage = f"sample {self.place.name} {name}"
            if self.writer(saved.path).column(folder, self.main, self.one.sampler, n, stage) is None:
                return False
        if "evaluate" not in stages or not _complete(folder, n):
            return True
        if study.deadline.over():
            return False
        if last:
            about = read_json(self.place.trained, TRAINED) or {}
            images, steps, seconds = about["images"], about.get("steps"), about.get("seconds")
        else:
            assert saved is not None
            images, steps, seconds = saved.meta["images"], saved.step, saved.meta["training_seconds"]
        found = study.evaluator().distances(Chunks(folder).image_set(f"{self.place.name} {name}", n), limit=n)
        facts = {"images": images, "steps": steps, "seconds": seconds, "column": self.main.name}
        write_json(self._result(name), {**found, **facts})
        if not last:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(self.place.track(number), ignore_errors=True)
        return True

    def _edit(self, strength: float, stages: Sequence[str]) -> bool:
        paintings, deadline = self.paintings, self.study.deadline
        assert paintings is not None
        if not paintings.paint(deadline):
            return False
        paintings.keep_shown()
        if "sample" in stages and not make_edits(
            self.writer(), paintings, self.place, strength, self.one.sampler, self.main.steps
        ):
            return False
        if "evaluate" not in stages or not _complete(self.place.work / file_of(strength), len(paintings.images)):
            return True
        if deadline.over():
            return False
        measure_edits(paintings, self.place, strength, self.study.evaluator())
        return True


def _complete(folder: Path, n: int) -> bool:
    """Whether all samples are there."""
    return next(Chunks(folder).missing(n, n), None) is None
