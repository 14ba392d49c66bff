"""Leaving in good order: Ctrl-C or SIGTERM ends the run after the step in progress, with a checkpoint."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from anisodiff.runtime.distributed import Distributed

_TOGETHER = 16  # steps between two questions among several processes: each costs a wait for the device


class Stop:
    """Whether the run was asked to end."""

    def __init__(self) -> None:
        self.asked = False

    def now(self, step: int, distributed: Distributed) -> bool:
        """After step number ``step``; the same answer in every process."""
        if distributed.world == 1:
            return self.asked
        if step % _TOGETHER:
            return False
        return bool(distributed.largest(torch.tensor(float(self.asked), device=distributed.device)).item())


@contextmanager
def on_signals() -> Iterator[Stop]:
    """While inside, the first SIGINT or SIGTERM asks; a second one does what it always did."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set handlers
        return
    old: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        signal.signal(number, old[number])

    for caught in (signal.SIGINT, signal.SIGTERM):
        old[caught] = signal.signal(caught, ask)
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
