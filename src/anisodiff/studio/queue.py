"""A fair queue of work: clients in turn, positions told while they wait, cancelled when nobody listens.

    queue = FairQueue("long", together=8)
    job = queue.submit(client, work)          work(job) runs in the queue's thread and calls job.emit(event)
    async for event in job.events(gone): …    the events; leaving the loop cancels the job

One job computes at a time. Of those that have begun, ``together`` at most, each computes for `SLICE` seconds and then
gives way to the next at its next `check`: a long one does not keep short ones waiting.

Events are plain mappings. Of a kind that may be replaced (`REPLACED`), at most one waits for a slow reader, so that
memory is bounded however slow it is.
"""

import asyncio
import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import torch

from anisodiff.io.archives import one_line

Event = dict[str, Any]
REPLACED = frozenset({"queued", "progress", "step"})
MOST_WAITING, MOST_OF_A_CLIENT = 256, 4
SLICE = 0.3
LOOK = 0.5
"""Seconds between two looks whether the reader is still there."""


class Cancelled(Exception):
    """Nobody waits for the work any more."""


class Busy(ValueError):
    """Too much work waits already."""


class Job:
    """One piece of work, with the events it has made and nobody has read."""

    def __init__(self, queue: "FairQueue", client: str, work: "Callable[[Job], None]") -> None:
        self.client, self._queue, self._work = client, queue, work
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._lock, self._pending = threading.Lock(), deque[Event]()
        self._gone = False
        self._told = -1

    @property
    def cancelled(self) -> bool:
        return self._gone

    def check(self) -> None:
        """Raise where the work is not wanted any more; let others compute where it is their turn."""
        if self._gone:
            raise Cancelled
        self._queue.give_way(self)

    def emit(self, event: Event) -> None:
        """Tell the reader; from the thread of the queue."""
        self.check()
        self._put(event)

    def progress(self, done: int, total: int | None) -> None:
        """A `Progress` for functions that report it."""
        self.emit({"kind": "progress", "done": done, "total": total})

    def _put(self, event: Event) -> None:
        with self._lock:
            if event["kind"] in REPLACED:
                self._pending = deque(old for old in self._pending if old["kind"] != event["kind"])
            self._pending.append(event)
        self._loop.call_soon_threadsafe(self._changed.set)

    def place(self, position: int) -> None:
        """Tell how many jobs run before this one, where that changed."""
        if position != self._told:
            self._told = position
            self._put({"kind": "queued", "position": position})

    def run(self) -> None:
        """Do the work; whatever goes wrong is an event of one line, and the thread goes on."""
        try:
            self._put({"kind": "began"})
            self._queue.take_turn(self)
            self._work(self)
            self.emit({"kind": "done"})
        except Cancelled:
            pass
        except (ValueError, OSError) as error:
            self._put({"kind": "error", "message": " ".join(str(error).split()) or type(error).__name__})
        except MemoryError:
            self._put({"kind": "error", "message": "not enough memory; choose a smaller size or fewer images"})
        except Exception as error:  # a defect of ours must not end the server
            self._put({"kind": "error", "message": f"the studio failed: {one_line(error)}"})
        finally:
            self._queue.leave_turn(self)

    def cancel(self) -> None:
        """Leave the queue, or end at the next `check`."""
        self._gone = True
        self._queue.forget(self)

    async def events(self, gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[Event]:
        """Events as they come, the last one done or error; ends where the reader is ``gone``."""
        try:
            while True:
                with self._lock:
                    found, self._pending = list(self._pending), deque()
                    self._changed.clear()
                for event in found:
                    yield event
                    if event["kind"] in ("done", "error"):
                        return
                if await gone():
                    return
                if not found:
                    try:
                        await asyncio.wait_for(self._changed.wait(), LOOK)
                    except TimeoutError:
                        continue
        finally:
            self.cancel()


class FairQueue:
    """Jobs of many clients, taken from each in turn; ``together`` of them share the time.

    ``cores``: threads of torch in the whole process while a job computes; None: as many as there are.
    """

    def __init__(self, name: str, together: int = 1, cores: int | None = None) -> None:
        self._cores, self._usual = cores, torch.get_num_threads()
        self._ready = threading.Condition()
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._running: list[Job] = []
        self._turns: deque[Job] = deque()
        """Jobs that have begun, in the order of their turns; the first computes."""
        self._since = 0.0
        self._open = True
        self._threads = [
            threading.Thread(target=self._serve, name=f"studio-{name}-{k}", daemon=True) for k in range(together)
        ]
        for thread in self._threads:
            thread.start()

    def take_turn(self, job: Job) -> None:
        """Wait until the job may compute."""
        with self._ready:
            self._turns.append(job)
            self._wait_turn(job)

    def give_way(self, job: Job) -> None:
        """Let the others compute, where the job has had its time."""
        if len(self._turns) < 2 or time.monotonic() - self._since < SLICE:
            return
        with self._ready:
            self._turns.rotate(-1)
            self._ready.notify_all()
            self._wait_turn(job)

    def leave_turn(self, job: Job) -> None:
        """The job has ended."""
        with self._ready:
            if job in self._turns:
                self._turns.remove(job)
            self._ready.notify_all()

    def _wait_turn(self, job: Job) -> None:
        self._ready.wait_for(lambda: job.cancelled or self._turns[0] is job)
        self._since = time.monotonic()
        if job.cancelled:
            raise Cancelled

    def submit(self, client: str, work: Callable[[Job], None]) -> Job:
        """Put work in the line of a client; refused where the line or the queue is full."""
        job = Job(self, client, work)
        with self._ready:
            if sum(map(len, self._waiting.values())) >= MOST_WAITING:
                raise Busy("the queue is full; try again in a minute")
            own = len(self._waiting.get(client, ())) + sum(other.client == client for other in self._running)
            if own >= MOST_OF_A_CLIENT:
                raise Busy(f"this page has {own} requests open already; wait for one, or cancel it")
            self._waiting.setdefault(client, deque()).append(job)
            self._tell()
            self._ready.notify_all()
        return job

    def forget(self, job: Job) -> None:
        """Take a job out of its line, if it still waits there; wake it where it waits for its turn."""
        with self._ready:
            self._ready.notify_all()
            line = self._waiting.get(job.client)
            if line is not None and job in line:
                line.remove(job)
                if not line:
                    del self._waiting[job.client]
                self._tell()

    def close(self) -> None:
        """Cancel everything; the thread ends after the step it is in."""
        with self._ready:
            self._open = False
            left = [job for line in self._waiting.values() for job in line]
            running = list(self._running)
            self._ready.notify_all()
        for job in (*left, *running):
            job.cancel()
        for thread in self._threads:
            thread.join(timeout=5)

    @property
    def load(self) -> tuple[int, int]:
        """How many jobs run, and how many wait."""
        with self._ready:
            return len(self._running), sum(map(len, self._waiting.values()))

    def _order(self) -> list[Job]:
        """In the order they will run: the first of every client, then the second of each, …"""
        rounds = itertools.zip_longest(*self._waiting.values())
        return [job for around in rounds for job in around if job is not None]

    def _tell(self) -> None:
        ahead = len(self._running)
        for number, job in enumerate(self._order()):
            job.place(number + ahead)

    def _next(self) -> Job | None:
        with self._ready:
            self._ready.wait_for(lambda: not self._open or bool(self._waiting))
            if not self._open:
                return None
            client, line = next(iter(self._waiting.items()))
            job = line.popleft()
            self._running.append(job)
            del self._waiting[client]
            if line:  # behind all others
                self._waiting[client] = line
            self._tell()
            return job

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            if self._cores is not None:
                torch.set_num_threads(self._cores)
            job.run()
            if self._cores is not None:
                torch.set_num_threads(self._usual)
            with self._ready:
                self._running.remove(job)
                self._tell()
