"""SDEdit of all runs on the same paintings: distance to the painting against distance to real photographs.

    paintings = k-means strokes of photographs;  every run edits each of them at equal strengths s = σ/(σ + σ_d)

Equal times of two processes are not equally strong edits, so curves over strengths are compared: RMSE to the painting
against the Fréchet distance of the results to the photographs (the paper's measure).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data import Dataset
from anisodiff.editing import edit, strokes, t_of_strength
from anisodiff.editing.inputs import read_pictures
from anisodiff.experiments.budget import Deadline
from anisodiff.experiments.evaluator import Evaluator
from anisodiff.experiments.layout import Place, read_json, save_arrays, shown
from anisodiff.experiments.sampling import Chunks, Failed, SampleWriter
from anisodiff.generation.priors import open_pool
from anisodiff.io.arrays import read_pixels
from anisodiff.io.images import SUFFIXES, to_bytes
from anisodiff.io.records import differences, plain, write_json
from anisodiff.io.schema import anything
from anisodiff.metrics import ImageStatistics, image_set
from anisodiff.runtime.progress import StageProgress

SHOWN, _AT_A_TIME = 6, 16


@dataclass(frozen=True, kw_only=True)
class EditTask:
    """The pictures to edit, and the strengths."""

    sources: tuple[str, ...]
    """Pictures, or one set of them: a folder, a zip, a prepared dataset; ``data``: the training set."""
    colors: int = 6
    strengths: tuple[float, ...] = (0.3, 0.45, 0.6, 0.75)
    count: int = 500
    """Most pictures of a set, evenly spread."""

    def __post_init__(self) -> None:
        if self.colors < 1 or self.count < 2:
            raise ValueError(f"edit: got {self.colors} colors and {self.count} pictures, expected 1 and 2 at least")
        if not self.strengths or not all(0 < s < 1 for s in self.strengths):
            raise ValueError(f"strengths: got {list(self.strengths)}, expected numbers in (0, 1)")

    def check_sources(self) -> None:
        """Refuse pictures that are not there."""
        for source in self.sources if self.sources != ("data",) else ():
            if not Path(source).exists():
                raise ValueError(f"edit: {source} does not exist; expected pictures, a set of them, or the word data")

    def describe(self) -> dict[str, Any]:
        """The settings of the paintings; strengths may be added."""
        return {"sources": [Path(s).name for s in self.sources], "colors": self.colors, "count": self.count}


def file_of(strength: float) -> str:
    """The name of a column of edits."""
    return f"edit-{strength:g}"


class Paintings:
    """Photographs and their paintings, made once for all runs."""

    def __init__(self, task: EditTask, out: Path, dataset: Dataset, progress: StageProgress) -> None:
        self.task, self.out, self.dataset, self.progress = task, out, dataset, progress

    @cached_property
    def photos(self) -> Tensor:
        """[N, C, H, W] in [0, 1], two at least: sets are compared."""
        found = self._read()
        if len(found) < 2:
            raise ValueError("edit: got one picture, expected two or more: their distances are those of two sets")
        return found

    def _read(self) -> Tensor:
        shape, paths = (self.dataset.channels, self.dataset.size), [Path(source) for source in self.task.sources]
        cpu = torch.device("cpu")
        if self.task.sources == ("data",):
            return open_pool(self.dataset, *shape).some(self.task.count, cpu)
        self.task.check_sources()
        if all(path.suffix.lower() in SUFFIXES for path in paths):
            return torch.stack([picture.photo for picture in read_pictures(paths, *shape)])
        if len(paths) > 1:
            raise ValueError("edit: give several pictures, or one folder, zip or prepared dataset")
        return open_pool(paths[0], *shape).some(self.task.count, cpu)

    @cached_property
    def place(self) -> Path:
        """The file of the paintings: among the results, since it is small and k-means is slow."""
        return self.out / "results" / f"paintings-{self.code}.npz"

    @cached_property
    def code(self) -> str:
        """Which photographs, painted in how many colors."""
        colors = f"{self.task.colors} colors".encode()
        return hashlib.sha256(_bytes(self.photos).tobytes() + colors).hexdigest()[:16]

    def check(self, held: dict[str, Any] | None, where: Path) -> None:
        """Refuse edits of other pictures of the same names."""
        if held is not None and "failed" not in held and held.get("paintings") != self.code:
            raise ValueError(
                f"{where} is of other pictures than those of --edit: give these, or choose another --out"
            )

    def paint(self, deadline: Deadline) -> bool:
        """Paint the rest; False where the deadline came first."""
        done = list(self._painted())
        while len(done) < len(self.photos):
            if deadline.over():
                return False
            done += [_bytes(strokes(x, self.task.colors)) for x in self.photos[len(done) : len(done) + _AT_A_TIME]]
            save_arrays(self.place, compress=True, images=np.stack(done))
            self.progress("painting strokes", len(done), len(self.photos))
        return True

    def _painted(self) -> NDArray[np.uint8]:
        if not self.place.is_file():
            return np.empty((0,), dtype=np.uint8)
        return read_pixels(self.place)

    @cached_property
    def images(self) -> Tensor:
        """The paintings, [N, C, H, W] in [0, 1]."""
        assert self.paint(Deadline())
        return torch.from_numpy(self._painted()).float() / 255

    def statistics(self, evaluator: Evaluator) -> ImageStatistics:
        """Features of the photographs."""
        if not hasattr(self, "_statistics"):
            self._statistics = evaluator.statistics(image_set(to_bytes(self.photos), name="photographs"))
        return self._statistics

    def keep_shown(self) -> None:
        """The first photographs and paintings, for the page."""
        path = self.out / "results" / "edit.npz"
        if not path.is_file():
            save_arrays(
                path,
                photos=shown(_bytes(self.photos[:SHOWN]), SHOWN),
                paintings=shown(_bytes(self.images[:SHOWN]), SHOWN),
            )


def _bytes(images: Tensor) -> NDArray[np.uint8]:
    return to_bytes(images).numpy()


def make_edits(
    writer: SampleWriter, paintings: Paintings, place: Place, strength: float, sampler: str, steps: int
) -> bool:
    """Edit the paintings at one strength, painting k with the seed k; whether all are there."""
    chunks, generator, images = Chunks(place.work / file_of(strength)), writer.generator, paintings.images
    try:
        t = t_of_strength(generator.model, strength, t_min=generator.plan.config.t_min)
        nfe = generator.reverse_process(t=t, steps=steps, sampler=sampler).nfe
    except ValueError as error:
        raise Failed(str(error)) from None
    protocol = {
        "checkpoint": generator.origin.model, "strength": strength, "t": t, "steps": steps, "sampler": sampler,
        "nfe": nfe, "paintings": paintings.code,
    }  # fmt: skip
    held = read_json(chunks.folder / "protocol.json", anything)
    paintings.check(held, chunks.folder)
    if held is not None and (different := differences(held, plain(protocol))):
        raise ValueError(f"{chunks.folder} holds other edits: {'; '.join(different)}; delete it to start again")
    write_json(chunks.folder / "protocol.json", protocol)

    def make(rows: range) -> Tensor:
        return edit(
            generator, images[rows.start : rows.stop], seeds=rows, t=t, steps=steps, sampler=sampler,
            batch=writer.batch,
        )  # fmt: skip

    return writer.fill(chunks, len(images), make, f"edit {place.name} at {strength:g}")


def measure_edits(paintings: Paintings, place: Place, strength: float, evaluator: Evaluator) -> None:
    """Write the numbers of one strength, and its first results."""
    chunks, total = Chunks(place.work / file_of(strength)), len(paintings.images)
    results = torch.from_numpy(chunks.first(total).copy()).double() / 255
    found = evaluator.distances(
        chunks.image_set(f"{place.name} at {strength:g}", total), limit=total, against=paintings.statistics(evaluator)
    )
    to = {
        name: float((results - images.double()).square().mean().sqrt())
        for name, images in (("painting", paintings.images), ("photo", paintings.photos))
    }
    protocol = read_json(chunks.folder / "protocol.json", anything) or {}
    save_arrays(place.results / f"{file_of(strength)}.npz", images=chunks.first(SHOWN))
    write_json(
        place.results / f"{file_of(strength)}.json",
        {
            **found, **protocol, "rmse_painting": to["painting"], "rmse_photo": to["photo"],
            "seconds_per_image": chunks.seconds_per_image(),
        },
    )  # fmt: skip
