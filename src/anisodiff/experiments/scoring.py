"""Samples and numbers of one contender: columns of the table, points over training time, edits."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import anisodiff
from anisodiff.experiments.contender import Contender
from anisodiff.experiments.edits import Studio, file_of, make_edits, measure_edits
from anisodiff.experiments.layout import Place, read_json, save_json
from anisodiff.experiments.sampling import SHOWN, Chunks, Column, Failed, Maker
from anisodiff.io.atomic import replacing
from anisodiff.metrics import Generation
from anisodiff.training import newest

if TYPE_CHECKING:
    from anisodiff.experiments.compare import Study, Terms


class Scorer:
    """One contender; its model is loaded when first needed."""

    def __init__(
        self, terms: "Terms", contender: Contender, place: Place, study: "Study", studio: Studio | None
    ) -> None:
        self.terms, self.one, self.place, self.study, self.studio = terms, contender, place, study, studio
        self.n = contender.n or terms.n
        priors, steps = contender.priors or terms.priors, contender.steps or terms.steps
        self.columns = [Column(prior=prior, steps=count) for prior in priors for count in steps]
        self.main = Column(prior=priors[0], steps=max(steps))
        owns = place.name == place.run_name  # contenders that share a run share its curve
        # one that begins with given weights is also measured before any training
        first = terms.track if contender.checkpoint else 1 if contender.start is None else 0
        if first == 0 and self._has_no_start():
            first = 1
        self.points = range(first, terms.track + 1) if terms.track and owns else range(0)
        self.strengths = () if terms.task is None else terms.task.strengths
        self._maker: Maker | None = None

    def _has_no_start(self) -> bool:
        """A training that has ended without keeping what it began with, as older versions did."""
        kept = newest(self.place.track(0)) is not None or (self.place.trained.parent / "track-0.json").is_file()
        return read_json(self.place.trained) is not None and not kept

    def run(self, stages: Sequence[str]) -> bool:
        """All pieces of the stages that can be done; False where the deadline came first."""
        trained = read_json(self.place.trained)
        if trained is None:  # of a run that is under way the points that it has passed
            passed = [number for number in self.points if newest(self.place.track(number)) is not None]
            return all(self._point(number, stages) for number in passed)
        if "failed" in trained:
            return True
        pieces = [partial(self._column, column) for column in self.columns]
        pieces += [partial(self._point, number) for number in self.points]
        pieces += [partial(self._edit, strength) for strength in self.strengths]
        return all(piece(stages) for piece in pieces)

    def missing(self) -> list[str]:
        """Results that are not there yet."""
        trained = read_json(self.place.trained)
        if trained is None:
            return ["train"]
        if "failed" in trained:
            return []
        names = [column.name for column in self.columns] + [f"track-{number}" for number in self.points]
        names += [file_of(strength) for strength in self.strengths]
        return [name for name in names if not self._result(name).is_file()]

    def _result(self, name: str) -> Path:
        return self.place.results / f"{name}.json"

    def maker(self, checkpoint: str | Path | None = None) -> Maker:
        """The contender's own model, kept; or one of its checkpoints."""
        if checkpoint is None and self._maker is not None:
            return self._maker
        path = checkpoint or self._weights()
        generator = anisodiff.load(path, self.study.device, self.study.dataset, compile=self.terms.compile)
        made = Maker(generator, self.terms.batch)
        if checkpoint is None:
            self._maker = made
        return made

    def _weights(self) -> str | Path:
        if self.one.checkpoint:
            return self.one.base
        for path in (self.place.weights, self.place.run):
            if newest(path) is not None:
                return path
        raise ValueError(
            f"{self.place.run_name} is trained, but its weights are gone: bring back {self.place.run}, or remove "
            f"{self.place.trained} to train it again"
        )

    def _guarded(self, name: str, work: Callable[[], bool]) -> bool:
        """A contender that cannot do it gets a line in the table in place of a number."""
        try:
            return work()
        except Failed as error:
            self.study.say(f"{self.place.name}, {name}: {error}")
            save_json(self._result(name), {"failed": str(error)})
            return True

    def _column(self, column: Column, stages: Sequence[str]) -> bool:
        if self._result(column.name).is_file():
            return True
        return self._guarded(column.name, partial(self._make_column, column, stages))

    def _make_column(self, column: Column, stages: Sequence[str]) -> bool:
        folder, study = self.place.work / column.name, self.study
        chunks = Chunks(folder)
        if "sample" in stages:
            protocol = self.maker().column(
                folder, column, self.one.sampler, self.n, study.deadline, study.say,
                lambda done: study.tell(f"sample {self.place.name} {column.name}", done, self.n),
            )  # fmt: skip
            if protocol is None:
                return False
            save_json(folder / "made.json", protocol)
        protocol = read_json(folder / "made.json")
        if "evaluate" not in stages or protocol is None:
            return True
        if study.deadline.over():
            return False
        generation = Generation(
            nfe=protocol["nfe"],
            prior=column.prior,
            seed=protocol["seed"],
        )
        report = study.yardstick().report(chunks.image_set(self.place.name, self.n), generation, limit=self.n)
        self._keep_sheet(column.name, chunks)
        save_json(self._result(column.name), {"report": report, "sampling": protocol})
        return True

    def _keep_sheet(self, name: str, chunks: Chunks) -> None:
        with replacing(self.place.results / f"{name}.npz") as temporary:
            np.savez(temporary, images=chunks.first(SHOWN))

    def _point(self, number: int, stages: Sequence[str]) -> bool:
        name = f"track-{number}"
        if self._result(name).is_file():
            return True
        return self._guarded(name, partial(self._make_point, number, name, stages))

    def _make_point(self, number: int, name: str, stages: Sequence[str]) -> bool:
        """FID after a part of the budget; the last point takes the first samples of the main column."""
        terms, study = self.terms, self.study
        n, last = min(terms.track_n, self.n), number == terms.track
        folder = self.place.work / (self.main.name if last else name)
        if last and (why := (read_json(self._result(self.main.name)) or {}).get("failed")):
            raise Failed(why)
        saved = None if last else newest(self.place.track(number))
        if saved is None and not last:
            if not self.place.run.is_dir():
                return True  # they lie on another machine
            if number == 0:
                raise Failed("the weights that the run began with were not kept")
            raise Failed(f"no weights were kept after part {number} of {terms.track}: the run was too short")
        if "sample" in stages and saved is not None:
            made = self.maker(saved.path).column(
                folder, self.main, self.one.sampler, n, study.deadline, study.say,
                lambda done: study.tell(f"sample {self.place.name} {name}", done, n),
            )  # fmt: skip
            if made is None:
                return False
        if "evaluate" not in stages or not _complete(folder, n):
            return True
        if study.deadline.over():
            return False
        if last:
            about = read_json(self.place.trained) or {}
            images, seconds = about["images"], about["seconds"]
        else:
            assert saved is not None
            images, seconds = saved.meta["images"], saved.meta["training_seconds"]
        found = study.yardstick().distances(Chunks(folder).image_set(f"{self.place.name} {name}", n), limit=n)
        save_json(self._result(name), {**found, "images": images, "seconds": seconds, "column": self.main.name})
        if not last:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(self.place.track(number), ignore_errors=True)
        return True

    def _edit(self, strength: float, stages: Sequence[str]) -> bool:
        assert self.studio is not None
        if self._result(file_of(strength)).is_file():
            self.studio.check(read_json(self._result(file_of(strength))), self._result(file_of(strength)))
            return True
        return self._guarded(file_of(strength), partial(self._make_edit, self.studio, strength, stages))

    def _make_edit(self, studio: Studio, strength: float, stages: Sequence[str]) -> bool:
        deadline = self.study.deadline
        if not studio.paint(deadline):
            return False
        studio.keep_shown()
        if "sample" in stages and not make_edits(
            self.maker(), studio, self.place, strength, self.one.sampler, self.main.steps, deadline
        ):
            return False
        if "evaluate" not in stages or not _complete(self.place.work / file_of(strength), len(studio.paintings)):
            return True
        if deadline.over():
            return False
        measure_edits(studio, self.place, strength, self.study.yardstick())
        return True


def _complete(folder: Path, n: int) -> bool:
    """Whether all samples are there."""
    return next(Chunks(folder).missing(n, n), None) is None


def read_results(place: Place) -> dict[str, Any]:
    """Everything that is known of a contender: train.json and its columns, by the names of the files."""
    found = {path.stem: read_json(path) for path in sorted(place.results.glob("*.json"))}
    return {**found, "train": read_json(place.trained)}
