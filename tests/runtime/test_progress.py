"""Progress: lines elsewhere than on a terminal, bars there."""

import io
import time

from rich.console import Console

from anisodiff.runtime.durations import about
from anisodiff.runtime.progress import EVERY, lines, no_progress, progress, stages


def test_a_note_stands_beside_the_progress():
    now, said = [0.0], []
    tell = lines(said.append, clock=lambda: now[0])
    for now[0], done in ((0.0, 0), (EVERY - 1, 10), (EVERY, 100), (EVERY + 1, 105), (2 * EVERY, 200), (999.0, 400)):
        tell("training", done, 400, f"loss {done / 1000}")
    now[0] = 3000.0
    tell("compiling", 0, None)
    assert said.pop() == "compiling"
    assert said == ["training: 100/400, about 60 s left, loss 0.1", "training: 200/400, about 40 s left, loss 0.2"]


def test_bars_show_stage_count_and_note():
    screen = io.StringIO()
    with stages(Console(file=screen, force_terminal=True, width=120)) as tell:
        tell("reading", 3, None)
        tell("training", 1, 4, "loss 0.5")
    shown = screen.getvalue()
    for text in ("reading", "3/?", "training", "1/4", "loss 0.5"):
        assert text in shown


def test_nothing_is_shown_where_nothing_should_be():
    screen = io.StringIO()
    for terminal in (False, True):
        with progress(Console(file=screen, force_terminal=terminal), "work", shown=False) as tick:
            tick(1, 3)
            no_progress(1, None)
    assert screen.getvalue() == ""


def test_a_stage_that_is_over_makes_room_for_the_next():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with stages(console) as tell:
        tell("starting", 0, None)
        tell("training", 5, 10, "45 images/s, loss 0.3123")
        tell("sampling", 32, 32)
        tell("training", 6, 10, "45 images/s, loss 0.3123")
        time.sleep(0.3)  # bars are drawn ten times a second
        console.print("a line")  # draws them anew
        shown = screen.getvalue().split("a line")[-1]
        tell("sampling", 1, 32)  # begins again
    assert "6/10" in shown
    assert "45 images/s, loss 0.3123" in shown
    assert "starting" not in shown
    assert "sampling" not in shown


def test_a_stage_that_begins_again_is_timed_anew():
    now, said = [0.0], []
    tell = lines(said.append, clock=lambda: now[0])
    for now[0], done in ((0.0, 0), (1.0, 10), (1000.0, 0), (1000.0 + EVERY, 5)):
        tell("sampling", done, 10)
    assert said[-1] == f"sampling: 5/10, about {about(EVERY)} left"
