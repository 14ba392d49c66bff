"""Progress with remaining time: bars on a terminal, lines every 20 s elsewhere.

    with progress(console, "sampling, NFE") as tick:     one stage: a `Progress`
        work(progress=tick)
    with stages(console) as tell:                        several stages: a `StageProgress`
        tell("training", done, total, "1,200 images/s, loss 0.31")

Every function that reports progress takes a `Progress`, called with (done, total).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from anisodiff.runtime.durations import about

if TYPE_CHECKING:  # rich is imported where a bar is drawn
    from rich.console import Console
    from rich.text import Text

Progress = Callable[[int, int | None], None]
"""(done, total); total is None where it is unknown."""
EVERY = 20.0
"""Seconds between two lines."""
_SHOWN = 4


class StageProgress(Protocol):
    """Progress of a named stage; ``note`` is shown beside it."""

    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None: ...


def no_progress(done: int, total: int | None) -> None:
    """The `Progress` that shows nothing."""


def no_stage_progress(stage: str, done: int, total: int | None, note: str = "") -> None:
    """The `StageProgress` that shows nothing."""


def lines(
    say: Callable[[str], None], every: float = EVERY, clock: Callable[[], float] = time.monotonic
) -> StageProgress:
    """At most one line every ``every`` seconds, with the remaining time of the stage."""
    begun: dict[str, tuple[float, int]] = {}
    before: dict[str, int] = {}
    last = clock()

    def tell(stage: str, done: int, total: int | None, note: str = "") -> None:
        nonlocal last
        now = clock()
        if done < before.get(stage, 0):  # the stage begins again, as grids of samples do
            del begun[stage]
        before[stage] = done
        start, first = begun.setdefault(stage, (now, done))
        if now - last < every or done == total:
            return
        last = now
        left = ""
        if total is not None and done > first:
            left = f"/{total}, about {about((now - start) / (done - first) * (total - done))} left"
        count = f": {done}{left}" if done or total else ""
        say(f"{stage}{count}{note and f', {note}'}")

    return tell


@contextmanager
def stages(console: "Console", *, shown: bool = True) -> Iterator[StageProgress]:
    """Several stages, one after the other or interleaved; bars disappear at the end."""
    if not shown or not console.is_terminal:
        yield lines(lambda line: console.print(line, highlight=False, soft_wrap=True) if shown else None)
        return
    import rich.progress as bars

    class Clock(bars.ProgressColumn):
        """The time left; of a stage of unknown length, the time since it began."""

        max_refresh = 0.5
        left, since = bars.TimeRemainingColumn(), bars.TimeElapsedColumn()

        def render(self, task: bars.Task) -> "Text":
            return self.since.render(task) if task.total is None else self.left.render(task).append(" left")

    display = bars.Progress(
        bars.TextColumn("{task.description}"), bars.BarColumn(20), bars.TextColumn("{task.fields[count]}"),
        bars.TextColumn("{task.fields[note]}"), Clock(), console=console, transient=True, speed_estimate_period=120,
    )  # fmt: skip
    tasks: dict[str, bars.TaskID] = {}
    reached: dict[str, tuple[int, int | None]] = {}
    with display:

        def tell(stage: str, done: int, total: int | None, note: str = "") -> None:
            if stage not in tasks:
                tasks[stage] = display.add_task(stage, total=total, note=note, count="")
            elif done < reached[stage][0]:  # it begins again
                display.reset(tasks[stage])
            reached[stage] = done, total
            over = [other for other, (at, end) in reached.items() if at == (end or 0) and other != stage]
            for old in (*over, *list(tasks)[:-_SHOWN]):  # an experiment has more stages than a terminal has lines
                display.update(tasks[old], visible=False)
            count = f"{done}/{'?' if total is None else total}" if done or total else ""
            display.update(tasks[stage], completed=done, total=total, count=count, note=note, visible=True)

        yield tell


@contextmanager
def progress(console: "Console", what: str, *, shown: bool = True) -> Iterator[Progress]:
    """One stage, named ``what``."""
    with stages(console, shown=shown) as tell:
        tell(what, 0, None)
        yield lambda done, total: tell(what, done, total)


@contextmanager
def bar(what: str, wanted: bool | None = None) -> Iterator[Progress]:
    """One stage on standard error, for calls from Python: on a terminal, unless ``wanted`` says otherwise."""
    if wanted is False:
        yield no_progress
        return
    from rich.console import Console

    console = Console(stderr=True, markup=False, emoji=False)
    with progress(console, what, shown=wanted or console.is_terminal) as tick:
        yield tick
