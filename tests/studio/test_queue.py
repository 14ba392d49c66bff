"""The fair queue: clients in turn, positions, cancelling in every phase, bounded events, work that fails."""

import asyncio
import threading
import time

import pytest
import torch

from anisodiff.studio.queue import MOST_OF_A_CLIENT, Busy, Cancelled, FairQueue


async def here() -> bool:
    return False


async def read(job):
    return [event async for event in job.events(here)]


@pytest.fixture
def queue():
    made = FairQueue("test")
    yield made
    made.close()


def kinds(events):
    return [event["kind"] for event in events if event["kind"] not in ("queued", "began")]


def test_clients_take_turns_and_are_told_their_place(queue):
    async def scene():
        gate, order = threading.Event(), []
        blocker = queue.submit("z", lambda job: gate.wait(10))
        await asyncio.sleep(0.05)
        jobs = [queue.submit(c, lambda job, name=f"{c}{k}": order.append(name)) for c, k in
                [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0)]]  # fmt: skip
        places = [job._told for job in jobs]
        gate.set()
        await asyncio.gather(read(blocker), *map(read, jobs))
        return order, places

    order, places = asyncio.run(scene())
    assert order == ["a0", "b0", "c0", "a1", "a2"]  # the first of each client, then the second
    assert places == [1, 4, 5, 2, 3]


def test_a_job_has_the_cores_of_its_queue():
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    queue = FairQueue("test", cores=1)

    async def scene():
        for _ in range(2):
            await read(queue.submit("a", lambda job: seen.append(torch.get_num_threads())))

    try:
        asyncio.run(scene())
        queue.close()
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_line_and_the_queue_are_bounded(queue):
    async def scene():
        gate = threading.Event()
        jobs = [queue.submit("z", lambda job: gate.wait(10))]
        await asyncio.sleep(0.05)
        jobs += [queue.submit("a", lambda job: None) for _ in range(MOST_OF_A_CLIENT)]
        with pytest.raises(Busy, match="4 requests open"):
            queue.submit("a", lambda job: None)
        queue.submit("b", lambda job: None).cancel()
        gate.set()
        await asyncio.gather(*map(read, jobs))

    asyncio.run(scene())


def test_a_job_that_waits_leaves_at_once_and_one_that_runs_at_its_next_step(queue):
    async def scene():
        ended, begun = threading.Event(), threading.Event()

        def endless(job):
            begun.set()
            try:
                while True:
                    job.emit({"kind": "step"})
                    time.sleep(0.001)
            except Cancelled:
                ended.set()
                raise

        running, waiting = queue.submit("a", endless), queue.submit("b", lambda job: pytest.fail("it ran"))
        await asyncio.to_thread(begun.wait, 5)
        waiting.cancel()
        assert queue.load == (1, 0)
        async for event in running.events(here):
            if event["kind"] == "step":
                break  # the reader leaves: as a closed tab does
        await asyncio.sleep(0)
        running.cancel()
        assert await asyncio.to_thread(ended.wait, 5)
        assert kinds(await read(queue.submit("c", lambda job: job.emit({"kind": "fine"})))) == ["fine", "done"]

    asyncio.run(scene())


def test_a_slow_reader_meets_the_newest_step_alone_and_all_results(queue):
    async def scene():
        def many(job):
            for k in range(1000):
                job.emit({"kind": "step", "k": k})
            job.emit({"kind": "image", "k": 0})
            job.emit({"kind": "image", "k": 1})

        job = queue.submit("a", many)
        await asyncio.sleep(0.3)
        assert len(job._pending) <= 6
        return await read(job)

    found = asyncio.run(scene())
    assert [e["k"] for e in found if e["kind"] == "step"] == [999]
    assert kinds(found)[-3:] == ["image", "image", "done"]


@pytest.mark.parametrize(
    ("error", "says"),
    [(ValueError("got 1,\nexpected 2"), "got 1, expected 2"), (MemoryError(), "not enough memory"),
     (KeyError("x"), "the studio failed")],
)  # fmt: skip
def test_what_goes_wrong_is_one_line_and_the_thread_goes_on(queue, error, says):
    async def scene():
        def wrong(job):
            raise error

        first = await read(queue.submit("a", wrong))
        return first, await read(queue.submit("a", lambda job: None))

    first, second = asyncio.run(scene())
    assert kinds(first) == ["error"]
    assert says in first[-1]["message"]
    assert "\n" not in first[-1]["message"]
    assert kinds(second) == ["done"]


def test_a_reader_that_is_gone_ends_the_work(queue):
    async def scene():
        gone = False

        async def left():
            return gone

        ended = threading.Event()

        def endless(job):
            try:
                while True:
                    job.check()
                    time.sleep(0.005)
            finally:
                ended.set()

        job = queue.submit("a", endless)
        reading = asyncio.create_task(asyncio.wait_for(anext_all(job, left), 5))
        await asyncio.sleep(0.1)
        gone = True
        await reading
        assert await asyncio.to_thread(ended.wait, 5)

    async def anext_all(job, left):
        async for _ in job.events(left):
            pass

    asyncio.run(scene())


def test_long_jobs_share_the_time_and_one_computes_at_once():
    queue = FairQueue("test", together=3)

    async def scene():
        busy, most, spent = 0, 0, {"a": 0, "b": 0}
        stop = threading.Event()

        def endless(job):
            nonlocal busy, most
            while not stop.is_set():
                busy += 1
                most = max(most, busy)
                time.sleep(0.02)
                busy -= 1
                spent[job.client] += 1
                job.check()

        jobs = [queue.submit(name, endless) for name in spent]
        await asyncio.sleep(0.7)
        begin = time.monotonic()
        short = await read(queue.submit("c", lambda job: job.emit({"kind": "fine"})))
        waited = time.monotonic() - begin
        stop.set()
        await asyncio.gather(*map(read, jobs))
        return most, spent, kinds(short), waited

    try:
        most, spent, short, waited = asyncio.run(scene())
    finally:
        queue.close()
    assert most == 1
    assert min(spent.values()) > 0
    assert short == ["fine", "done"]
    assert waited < 3  # two slices, not the end of the others


def test_a_job_that_waits_for_its_turn_can_be_cancelled():
    queue = FairQueue("test", together=2)

    async def scene():
        gate = threading.Event()
        first = queue.submit("a", lambda job: gate.wait(10))  # never gives way
        await asyncio.sleep(0.05)
        second = queue.submit("b", lambda job: pytest.fail("it ran"))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0.1)
        assert queue.load == (1, 0)
        gate.set()
        await read(first)

    try:
        asyncio.run(scene())
    finally:
        queue.close()
