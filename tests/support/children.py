"""Work in a process of its own, which may be killed."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accelerate.state import AcceleratorState


def in_child(work: Callable[[], object]) -> int:
    """Run in a forked process; returns what waitpid says: 0 only if the work ended well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def together(work: Callable[[int], object], count: int = 2) -> None:
    """``work(rank)`` in forked processes with the environment that torchrun gives; all must end well.

    Forked, they need not import torch again.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}

    def begin(rank: int) -> None:
        AcceleratorState._reset_state(True)  # a tracker of an earlier test may have set it up for one process
        os.environ |= address | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
        os.environ |= {"WORLD_SIZE": f"{count}", "LOCAL_WORLD_SIZE": f"{count}"}
        work(rank)

    processes = [multiprocessing.get_context("fork").Process(target=begin, args=(rank,)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * count


@contextmanager
def interruptible() -> Iterator[None]:
    """What is started here ends at Ctrl-C, also where pytest runs in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
