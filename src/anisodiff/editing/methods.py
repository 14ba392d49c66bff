"""Several checkpoints on the same pictures: each with its own size, its own times, and its place in one figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.editing.figure import comparison_figure
from anisodiff.editing.inputs import Picture, painted, read_mask, read_pictures
from anisodiff.editing.job import EditConfig
from anisodiff.editing.records import place, read_png
from anisodiff.editing.strength import strength_of_t, time_of
from anisodiff.editing.sweep import Sweep, psnr, sweep
from anisodiff.generation import Generator, load
from anisodiff.io.figures import caption

SHOWN_CANDIDATES, SHOWN_PICTURES = 4, 8


@dataclass(frozen=True, kw_only=True)
class Painter:
    """How photographs become strokes; the same strokes for every seed of an edit."""

    colors: int | None = None
    """None: they are taken as they are."""
    smooth: int = 0
    position: float = 0.0

    @property
    def words(self) -> str | None:
        """For people, and for a protocol."""
        if self.colors is None:
            return None
        return f"k-means, {self.colors} colors, position {self.position:g}, smooth {self.smooth}"

    def __call__(self, picture: Picture, mask: Tensor | None) -> Picture:
        """The picture to start from; outside a mask the photograph stays."""
        if self.colors is None:
            return picture
        return painted(picture, self.colors, seed=0, position=self.position, smooth=self.smooth, mask=mask)


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """A checkpoint with the pictures as it sees them."""

    label: str
    """The process, with the checkpoint's path."""
    short: str
    generator: Generator
    pictures: tuple[Picture, ...]
    mask: Tensor | None
    notes: tuple[str, ...]

    def times(self, asked: tuple[str, tuple[float, ...]]) -> tuple[float, ...]:
        """The times meant by ("t" or "strength", numbers), to six digits, as in the names of files."""
        name, numbers = asked
        T = self.generator.process.T
        try:
            found = [time_of(self.generator, x if name == "t" else None, None if name == "t" else x) for x in numbers]
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from None
        return tuple(dict.fromkeys(min(T, float(f"{t:g}")) for t in found))

    def line(self, config: EditConfig) -> str:
        """What will be done, in words."""
        route = self.generator.route(config.sampler, config.steps, config.times[0])
        places = ", ".join(f"t = {t:g} (strength {strength_of_t(self.generator.model, t):.2f})" for t in config.times)
        way = "back from" if config.restore else "forth to" if config.repeats == 1 else f"{config.repeats} times to"
        return f"{self.label}: {way} {places}; {route.sampler}, {route.nfe} evaluations for each way back"

    def sweep(
        self,
        seeds: Sequence[int],
        most: int,
        *,
        steps: int,
        sampler: str,
        repeats: int,
        progress: Callable[[int, int], None],
    ) -> Sweep:
        """Over strengths, on the first ``most`` pictures."""
        starts = torch.stack([picture.start for picture in self.pictures[:most]])
        return sweep(
            self.generator, starts, seeds=seeds, steps=steps, sampler=sampler, repeats=repeats, mask=self.mask,
            progress=progress,
        )  # fmt: skip

    def measured(self, config: EditConfig, out: Path) -> list[dict[str, Any]]:
        """Every result with its distance to what it started from."""
        found = []
        for t in config.times:
            for picture in self.pictures:
                for seed in config.seeds:
                    path = place(out, picture.name, t, seed)
                    error = float((read_png(path) - picture.start).double().square().mean().sqrt())
                    found.append(
                        {"file": str(path), "picture": picture.name, "t": t, "seed": seed, "rmse": error,
                         "psnr": psnr(error)}
                    )  # fmt: skip
        return found


def open_method(
    checkpoint: Path,
    images: Sequence[Path],
    mask: Path | None,
    painter: Painter,
    device: torch.device,
    say: Callable[[str], None] | None,
) -> Method:
    """Load a checkpoint and read the pictures for it; ``say`` gets a line for everything that was changed."""
    tell = say or (lambda _: None)
    generator = load(checkpoint, device, say=tell)
    read = read_pictures(images, generator.channels, generator.size)
    free, doubts = (None, ()) if mask is None else read_mask(mask, read, generator.size)
    pictures = tuple(painter(picture, free) for picture in read)
    notes = [*(line for picture in pictures for line in picture.notes), *doubts]
    for line in notes:
        tell(line)
    short = str(generator.plan.config.process["preset"])
    return Method(
        label=f"{short} ({checkpoint})", short=short, generator=generator, pictures=pictures, mask=free,
        notes=tuple(notes),
    )  # fmt: skip


def compared(
    methods: Sequence[Method],
    configs: Sequence[EditConfig],
    out: Path,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> Any:
    """The figure: input, strokes, results of every method at every time; the first method's as they were written."""
    first, config = methods[0], configs[0]
    rows: list[list[Tensor]] = [[picture.photo] for picture in first.pictures[:SHOWN_PICTURES]]
    titles, told = ["input"], list[str]()
    if config.strokes is not None:
        titles.append("strokes")
        rows = [[*row, picture.start] for row, picture in zip(rows, first.pictures)]
    total = sum(len(c.times) for c in configs[1:]) * len(rows)
    done = 0
    for number, (method, plan) in enumerate(zip(methods, configs)):
        same = [m.short for m in methods].count(method.short) > 1
        name = f"{method.short} ({number + 1})" if same else method.short
        seeds = plan.seeds[:SHOWN_CANDIDATES]
        for t in plan.times:
            strength = strength_of_t(method.generator.model, t)
            titles += [f"{name}, seed {seed}\nt = {t:.3g}, s = {strength:.2f}" for seed in seeds]
            for row, picture in zip(rows, method.pictures):
                if number == 0:
                    row += [read_png(place(out, picture.name, t, seed)) for seed in seeds]
                    continue
                starts = picture.start.expand(len(seeds), *picture.start.shape)
                row += list(plan.apply(method.generator, starts, t, seeds, method.mask))
                done += 1
                progress(done, total)
        told.append(f"{name}: {caption(method.generator.process)}")
    often = "once" if config.repeats == 1 else f"{config.repeats} times"
    how = "restored" if config.restore else f"SDEdit, {often} forth and back"
    strokes = "" if config.strokes is None else f", strokes by {config.strokes}"
    told.insert(
        0,
        f"{how}{strokes}; sampler {config.sampler}, {config.steps} evaluations; s: strength, equal information lost",
    )
    return comparison_figure(rows, titles, told)
