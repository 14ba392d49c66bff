"""A job: the images of many seeds, written as they are made, continued where it stopped, shared among processes."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anisodiff.generation.generator import Generator
from anisodiff.generation.joining import JOINS
from anisodiff.generation.pictures import to_pixels
from anisodiff.generation.protocol import describe, differences, place_of, read_protocol, write_protocol
from anisodiff.generation.running import Step
from anisodiff.generation.seeds import check_seeds
from anisodiff.generation.starts import Leakage
from anisodiff.generation.store import Store
from anisodiff.io.checkpoint import alone
from anisodiff.io.tensor_files import Observe, unobserved
from anisodiff.runtime.distributed import Distributed

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a job has left behind."""

    path: Path
    count: int
    made: int
    """Images made by this call, by all processes; the others were already there."""
    nfe: int
    """Of the network, per image."""
    spent: int
    """Evaluations of this call, by all processes: a batch that was half written is made again as a whole."""
    seconds: float
    protocol: dict[str, Any]


def check_out(out: Path) -> None:
    """A folder, or a file of a kind that can be written."""
    kinds = ", ".join(JOINS)
    if out.suffix.lower() not in JOINS:
        if out.suffix[1:].isalpha() and not out.is_dir():  # a mistyped file; but run-0.5 may be a folder
            raise ValueError(f"--out: got {out}, expected a folder or a file ending in {kinds}")
    elif out.is_dir():
        raise ValueError(f"--out: {out} is a folder, but its name ends as a file's; choose another name")


def write_samples(
    generator: Generator,
    seeds: Sequence[int],
    out: str | Path,
    *,
    steps: int = 50,
    sampler: str = "auto",
    prior: str = "gaussian",
    batch: int | None = None,
    leakage: Leakage | None = None,
    distributed: Distributed | None = None,
    say: Say = lambda _: None,
    progress: Callable[[int, int], None] = lambda _, __: None,
    observe: Observe = unobserved,
) -> Outcome:
    """Write the images of ``seeds`` to ``out``: a folder of SEED.png, or one .zip, .npz or .png (a grid).

    The same call again makes what is missing; one that would give other images is refused. With several processes
    (``team``) each makes every W-th batch. ``progress`` is called with (done, total) evaluations of this process.
    """
    out, chosen = Path(out), tuple(sorted(set(check_seeds(seeds))))
    check_out(out)
    size = generator.batch if batch is None else batch
    if size < 1:
        raise ValueError(f"batch: got {size}, expected 1 or more")
    begun, distributed = time.perf_counter(), distributed or Distributed(generator.device)
    start, route = generator.start(prior), generator.route(sampler, steps)
    protocol = describe(generator, start, route, chosen, leakage)
    join = JOINS.get(out.suffix.lower())
    folder = out if join is None else out.with_name(f"{out.name}.parts")
    store = Store(folder, observe)

    def missing() -> list[int]:
        todo = store.begin(protocol, chosen)
        if not todo and join is None:
            say(f"all {len(chosen)} images are already in {out}: nothing to do")
        elif len(todo) < len(chosen):
            say(f"continuing: {len(chosen) - len(todo)} of {len(chosen)} images are already there")
        return todo

    def outcome(made: int, drawn: int) -> Outcome:
        return Outcome(
            path=out, count=len(chosen), made=made, nfe=route.nfe, spent=drawn * route.nfe,
            seconds=time.perf_counter() - begun, protocol=protocol,
        )  # fmt: skip

    distributed.agree(lambda: _refuse(store, out, protocol))
    if join is not None and distributed.agree(lambda: not folder.is_dir() and _finished(out, protocol)):
        say(f"{out} is already there, made in the same way: nothing to do")
        return outcome(0, 0)
    with alone(folder) if distributed.leads else nullcontext():
        todo: set[int] = distributed.agree(lambda: set(missing()))
        size = max(1, min(size, len(chosen)))
        # batches of all seeds, not of those left: rounding sees the batch, and a restart must give the same bytes
        batches = [chosen[first : first + size] for first in range(0, len(chosen), size)]
        parts = [batch for batch in batches if not todo.isdisjoint(batch)]
        drawn = sum(map(len, parts))  # by all processes
        parts = parts[distributed.rank :: distributed.world]
        total, done = sum(map(len, parts)) * route.nfe, 0

        def watch(step: Step) -> None:
            progress(done + len(step.seeds) * route.nfe * step.number // step.of, total)

        for part in parts:
            images = generator.sample_along(route, part, start.prior, batch=size, callback=watch)
            for seed, pixels in zip(part, to_pixels(images)):
                if seed in todo:
                    store.put(seed, pixels)
            done += len(part) * route.nfe
        distributed.total(torch.zeros(1, device=distributed.device))  # all have written
        if join is not None and distributed.leads:
            try:
                join(store, chosen, protocol, out)
                write_protocol(place_of(out), protocol)
            except ValueError as error:
                raise ValueError(f"{error}; all {len(chosen)} images are kept in {folder}") from None
            shutil.rmtree(folder, ignore_errors=True)
    return outcome(len(todo), drawn)


def _refuse(store: Store, out: Path, protocol: dict[str, Any]) -> None:
    """Nothing that is there may be mixed with other samples, or be overwritten; but a grid may be drawn anew."""
    store.check(protocol)
    if store.folder == out or not out.exists() or out.suffix.lower() == ".png" or store.folder.is_dir():
        return  # beside its parts a file is this job's own, joined but not yet tidied up
    held = read_protocol(out)
    if held is None:
        raise ValueError(f"{out} is already there, and nothing says how it was made: choose another --out")
    if different := differences(held, protocol):
        raise ValueError(f"{out} holds other samples: {'; '.join(different)}; choose another --out")
    if held["seeds"] != protocol["seeds"]:
        raise ValueError(f"{out} holds seeds {held['seeds']} and is finished: choose another --out for more")


def _finished(out: Path, protocol: dict[str, Any]) -> bool:
    """Whether ``out`` is there and what the job would make."""
    held = read_protocol(out) if out.exists() else None
    return held is not None and held["seeds"] == protocol["seeds"] and not differences(held, protocol)
