"""Progress of work in several stages, each with its remaining time: bars on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from anisodiff.runtime.durations import about

Tell = Callable[[str, int, int | None], None]
_SHOWN = 4


def lines(say: Callable[[str], None], every: float = 20.0, clock: Callable[[], float] = time.monotonic) -> Tell:
    """A line a stage at most every so many seconds, with what is left of the stage."""
    begun: dict[str, tuple[float, int]] = {}
    last = clock()

    def tell(stage: str, done: int, total: int | None) -> None:
        nonlocal last
        now = clock()
        start, first = begun.setdefault(stage, (now, done))
        if now - last < every or done == total:
            return
        last = now
        left = ""
        if total is not None and done > first:
            left = f"/{total}, about {about((now - start) / (done - first) * (total - done))} left"
        say(f"{stage}: {done}{left}")

    return tell


def bar_on(console: Console) -> Progress:
    """A bar for every task, with what is done of it and its remaining time; gone afterwards."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(), console=console, transient=True,
    )  # fmt: skip


@contextmanager
def stages(console: Console, *, shown: bool = True) -> Iterator[Tell]:
    """The function to call with (stage, done, total)."""
    if not shown:
        yield lambda stage, done, total: None
        return
    if not console.is_terminal:
        yield lines(lambda line: console.print(line, highlight=False, soft_wrap=True))
        return
    bar = bar_on(console)
    tasks: dict[str, TaskID] = {}
    with bar:

        def tell(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
                for old in list(tasks)[:-_SHOWN]:  # a study has more stages than a terminal lines
                    bar.update(tasks[old], visible=False)
            bar.update(tasks[stage], completed=done, total=total, visible=True)

        yield tell
