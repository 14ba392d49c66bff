"""A checkpoint with the pictures to edit, in its own size: several can edit the same pictures and be compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.editing.inputs import Painter, Picture, in_brief, read_mask, read_pictures
from anisodiff.editing.job import EditConfig, result_path
from anisodiff.editing.results import read_result
from anisodiff.editing.sdedit import cartoon_time
from anisodiff.editing.strength import report, time_of
from anisodiff.editing.sweep import Sweep, psnr, sweep
from anisodiff.generation import Generator, SamplingConfig, load
from anisodiff.runtime.progress import Progress


@dataclass(frozen=True, kw_only=True, eq=False)
class Editor:
    """A checkpoint with the pictures in its size."""

    label: str
    """The process, with the checkpoint's path."""
    short: str
    generator: Generator
    pictures: tuple[Picture, ...]
    mask: Tensor | None
    notes: tuple[str, ...]

    def times(self, asked: tuple[str, tuple[float, ...]]) -> tuple[float, ...]:
        """The times given by ("t" or "strength", numbers), to six digits, as in the names of files."""
        name, numbers = asked
        T = self.generator.process.T
        try:
            times = [time_of(self.generator, x if name == "t" else None, None if name == "t" else x) for x in numbers]
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from None
        return tuple(dict.fromkeys(min(T, float(f"{t:g}")) for t in times))

    def cartoon_times(self, asked: tuple[str, tuple[float, ...]] | None) -> tuple[float, ...]:
        """The times at which a cartoon lies on the path: the end of the smoothing, or those given after it."""
        later = (None,) if asked is None else self.times(asked)
        try:
            times = [cartoon_time(self.generator, t) for t in later]
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from None
        return tuple(dict.fromkeys(float(f"{t:g}") for t in times))

    def line(self, config: EditConfig) -> str:
        """What will be done."""
        reverse = self.generator.reverse_process(config.sampling, config.times[0])
        places = ", ".join(report(self.generator.model, t) for t in config.times)
        what = "restore from" if config.restore else "cartoon at" if config.cartoon else "edit at"
        repeats = "" if config.repeats == 1 else f", {config.repeats} times"
        return f"{self.label}: {what} {places}{repeats}; {reverse.sampler.brief}, {reverse.nfe} NFE"

    def sweep(
        self, seeds: Sequence[int], most: int, config: SamplingConfig, *, repeats: int, progress: Progress
    ) -> Sweep:
        """Over strengths, on the first ``most`` pictures."""
        starts = torch.stack([picture.start for picture in self.pictures[:most]])
        return sweep(self.generator, starts, config, seeds=seeds, repeats=repeats, mask=self.mask, progress=progress)

    def measured(self, config: EditConfig, out: Path) -> list[dict[str, Any]]:
        """Every result with its distance to what it started from."""
        rows = []
        for t, picture, seed in product(config.times, self.pictures, config.seeds):
            path = result_path(out, picture.name, t, seed)
            error = float((read_result(path) - picture.start).double().square().mean().sqrt())
            place = {"file": str(path), "picture": picture.name, "t": t, "seed": seed}
            rows.append({**place, "rmse": error, "psnr": psnr(error)})
        return rows


def open_editor(
    checkpoint: Path, images: Sequence[Path], mask: Path | None, painter: Painter, device: torch.device,
    say: Callable[[str], None] | None, *, trust_code: bool = False, latent: str | None = None,
) -> Editor:  # fmt: skip
    """Load a checkpoint and read the pictures for it; ``say`` gets a line for every change to them.

    ``trust_code``, ``latent``: as for `load`.
    """
    tell = say or (lambda _: None)
    generator = load(checkpoint, device, trust_code=trust_code, latent=latent, say=tell)
    read = read_pictures(images, generator.channels, generator.size)
    free, doubts = (None, ()) if mask is None else read_mask(mask, read, generator.size)
    pictures = tuple(painter(picture, free) for picture in read)
    notes = [*(line for picture in pictures for line in picture.notes), *doubts]
    for line in in_brief(notes):
        tell(line)
    short = str(generator.plan.config.process["preset"])
    return Editor(
        label=f"{short} ({checkpoint})", short=short, generator=generator, pictures=pictures, mask=free,
        notes=tuple(notes),
    )  # fmt: skip
