"""Damage what the command line reads, give it random words, kill it: it must answer in one line, soon, with little.

    python benchmarks/attack_soak.py --files 10000 --lines 10000 --kills 200 [--for 600] [--seed 0] [--first 0]

files   a good file of every format is made, changed at random (bytes, cuts, types, keys, sizes, special files), and
        given to a command that reads it
lines   random verbs, options and values
kills   train, sample, compare, edit and data prepare are killed at a random moment of their work and given again: the
        results must be those of an undisturbed command, byte by byte

Counted are tracebacks, hangs (10 s without output before a refusal, not counting the time for which others had the
processor; or 300 s), memory (more than 1 GB above the idle process), and what a refusal has left behind. Trial k of a
part is a function of the seed and k alone: `--first` continues, and one trial is repeated with `--first K --files 1`.
Each trial has a process of its own. Linux only.
"""

import argparse
import gc
import hashlib
import importlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anisodiff.cli import main as command_line
from attack_files import STUDIED, TARGETS, damage, make_world, words_of

SECONDS, MEMORY = 10.0, 1 << 30
LONG = 300.0
IDLE = mmap.mmap(-1, 8)  # shared with the children: memory of one when it begins


@dataclass
class Outcome:
    """How a command ended: its exit code, or ``traceback``, ``hang`` or ``killed``."""

    code: int | str
    said: str
    grown: int
    """Bytes of memory above the idle process."""
    work: float
    """Seconds of the processor."""


def run(
    words: list[str],
    folder: Path,
    kill_after: float | None = None,
    most: float = SECONDS,
    modules: Path | None = None,
) -> Outcome:
    """The command in a child of this process, in ``folder``; killed after so many seconds of work.

    ``modules``: a file for the names of all modules that were imported at its end.
    """
    log = folder.parent / f"{folder.name}.log"
    child = os.fork()
    if not child:
        _as_child(words, folder, log, modules)
    begin, code, work, length, silent = time.monotonic(), None, 0.0, 0, 0.0
    while code is None:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            grown = usage.ru_maxrss * 1024 - struct.unpack("q", IDLE[:])[0]
            code = os.waitstatus_to_exitcode(status)
            code = "hang" if code != 0 and silent > most else code  # a command that succeeds was at work
            work = usage.ru_utime + usage.ru_stime
            break
        work, kept_waiting = _work(child)
        if log.exists() and log.stat().st_size > length:
            begin, length = time.monotonic() - kept_waiting, log.stat().st_size
        now = time.monotonic() - begin - kept_waiting
        silent = max(silent, now)
        if kill_after is not None and work > kill_after:
            grown, code = 0, "killed"
        elif max(now, work) > LONG:
            grown, code = 0, "hang"
        else:
            time.sleep(0.002)
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    said = log.read_text(errors="replace") if log.exists() else ""  # killed before it opened it
    log.unlink(missing_ok=True)
    return Outcome("traceback" if code == 1 or "Traceback" in said else code, said, grown, work)


def _work(child: int) -> tuple[float, float]:
    """Seconds for which a child had a processor, and for which it waited until others left one."""
    spent = time.clock_gettime((~child << 3) | 2)  # Linux's clock of the processor time of another process
    return spent, int(Path(f"/proc/{child}/schedstat").read_text().split()[1]) / 1e9


def _as_child(words: list[str], folder: Path, log: Path, modules: Path | None) -> None:
    code = 1
    try:
        IDLE[:] = struct.pack("q", int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
        os.chdir(folder)
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(stream, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        sys.argv = ["anisodiff", *words]
        command_line.run()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if modules is not None:
            modules.write_text("\n".join(sys.modules))
        os._exit(code)


def learn(world: Path) -> None:
    """Run every command once and import here what it has imported: its children need not do it again."""
    scratch = world.parent / "scratch"
    for line in dict.fromkeys([line for _, line in TARGETS.values()] + ["diagnose --qqq", "data show data"]):
        shutil.copytree(world, scratch, symlinks=True)
        modules = world.parent / "modules"
        run(words_of(line), scratch, most=LONG, modules=modules)
        for name in modules.read_text().splitlines():
            with suppress(Exception):
                importlib.import_module(name)
        _remove(scratch)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of this process


def contents(folder: Path) -> dict[str, str]:
    """Every file with the sha256 of its bytes, and every folder; caches and logs apart."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] == "cache" or path.name == ".lock":
            continue
        regular = path.is_file() and not path.is_symlink()
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if regular else "no file"
    return found


Words = list[str]


@dataclass
class Count:
    """What a part found."""

    trials: int = 0
    reached: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    found: list[dict[str, Any]] = field(default_factory=list)
    largest: int = 0
    heaviest: str = ""
    """The trial that took the most memory."""


def left_behind(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """New files and folders but for caches; a file that was there may not change either."""
    return [name for name in after if name not in before or before[name] != after[name]]


def try_file(world: Path, scratch: Path, rng: random.Random) -> tuple[str, Words, Outcome, list[str]]:
    target = rng.choice(list(TARGETS))
    place, line = TARGETS[target]
    words = words_of(line)
    shutil.copytree(world, scratch, symlinks=True)
    (chosen,) = scratch.glob(place)
    done = damage(chosen, rng)
    before = contents(scratch)
    ended = run(words, scratch)
    return f"{target}, {done}", words, ended, left_behind(before, contents(scratch))


VERBS = words_of("train sample edit solve evaluate compare sweep forward diagnose data demo no-verb")
OPTIONS = words_of("""
    --data -o --out --set --n --steps --seed --seeds --images --sampler --prior --size --process --config --device
    --grid --json --metrics --network --inception --holdout --from --resume --dry-run --batch --strength
    --strengths --edit --stage --only --budget --for --reference --heldout --compare --halving --mask --figure
    --operator --noise --degrade --lpips --no-such-option --help
""")
VALUES = words_of("""
    0 -1 1 2 nan inf 1e400 1e-9 true x x= = a=b lr=0 eps=0 process.T=nan network.blocks=1000000 size=0 size=[8,8]
    batch=0 [[[ { é [bold] run data photos photos.zip photos/0.png images.npz made report.json study process.yaml
    /dev/null /dev/zero / . .. nowhere out out.zip out.png a/b/c cpu cuda:7 ve heat 10% 200% 0-3 3-0 0-99999999999
    9min -5s fid none exponential ode simulate
""")
VALUES += ["", " ", "9" * 40, "a" * 3000, "\udcff.png"]


def try_line(world: Path, scratch: Path, rng: random.Random) -> tuple[str, Words, Outcome, list[str]]:
    words = [rng.choice(VERBS)]
    if rng.random() < 0.6:
        words.append(rng.choice(("run", "ve", "photos", "prepare", "show", "made", rng.choice(VALUES))))
    for _ in range(rng.randrange(5)):
        words.append(rng.choice(OPTIONS))
        if rng.random() < 0.85:
            words.append(rng.choice(VALUES))
    if words[0] in ("train", "compare", "sweep", "demo") and "--dry-run" not in words:  # no work of minutes
        words += ["--dry-run"] if words[0] != "demo" else ["--no-such-option"]
    words = [word for word in words if "\0" not in word]
    shutil.copytree(world, scratch, symlinks=True)
    before = contents(scratch)
    ended = run(words, scratch)
    return words[0], words, ended, left_behind(before, contents(scratch))


KILLED = {
    "train": "train ve --data data -o out --images 160 --set checkpoint_every=16 SMALL --device cpu",
    "sample": "sample run --n 24 --steps 4 -o out.zip --batch 4 --device cpu",
    "edit": "edit run photos/0.png photos/1.png --steps 4 -o out --device cpu",
    "prepare": "data prepare photos -o out --size 8",
    "compare": f"compare ve heat --images 16 -o out SMALL {STUDIED}",
}
TIMES = ("log.jsonl", "tfevents", ".lock", "page", "train.json", "made.json", ".npz", "gaussian-2.json")
"""Files that hold measured times or dates; their presence is compared, not their bytes."""


def settled(folder: Path) -> dict[str, str]:
    out = {name: code for name, code in contents(folder).items() if name.split("/")[0].startswith(("out", ".out"))}
    return {
        name.split("/tensorboard/")[0]: "" if any(word in name for word in TIMES) else code
        for name, code in out.items()
    }  # fmt: skip


class Kills:
    """The undisturbed results and the work for them, made when first needed."""

    def __init__(self) -> None:
        self.calm: dict[str, tuple[dict[str, str], float]] = {}

    def __call__(self, world: Path, scratch: Path, rng: random.Random) -> tuple[str, Words, Outcome, list[str]]:
        verb = rng.choice(list(KILLED))
        words = words_of(KILLED[verb])
        if verb not in self.calm:
            shutil.copytree(world, scratch, symlinks=True)
            work = run(words, scratch, most=LONG).work
            self.calm[verb] = settled(scratch), work
            shutil.rmtree(scratch)
        shutil.copytree(world, scratch, symlinks=True)
        expected, work = self.calm[verb]
        moments = [rng.uniform(0.0, work) for _ in range(rng.choice((1, 1, 2, 3)))]
        killed = [run(words, scratch, kill_after=moment, most=LONG).code for moment in moments].count("killed")
        ended = run(words, scratch, most=LONG)
        got = settled(scratch)
        wrong = [name for name in {*got, *expected} if got.get(name) != expected.get(name)]
        return f"{verb}, killed {killed} times", words, ended, sorted(wrong)


Trial = Callable[[Path, Path, random.Random], tuple[str, Words, Outcome, list[str]]]


def trials(
    part: str,
    attempt: Trial,
    world: Path,
    numbers: Iterator[int],
    seed: int,
    until: float,
    say: Callable[[str], None],
) -> Count:
    """Try until the numbers or the time end."""
    count = Count()
    for number in numbers:
        if time.monotonic() > until:
            break
        scratch = world.parent / "scratch"
        what, words, ended, left = attempt(world, scratch, random.Random(f"{seed} {part} {number}"))
        _remove(scratch)
        count.trials, count.reached = count.trials + 1, number + 1
        count.ends[str(ended.code)] += 1
        count.kinds[what] += 1
        if ended.grown > count.largest:
            count.largest, count.heaviest = ended.grown, f"{number}: {what}"
        wrong = [str(ended.code)] if ended.code in ("traceback", "hang") else []
        wrong += ["memory"] * (ended.grown > MEMORY)
        refused = ended.code == 2 and "last good: " not in ended.said  # a training that fails has written
        wrong += ["left behind"] * bool(left and (refused or part == "kills"))
        wrong += [f"exit {ended.code}"] * (part == "kills" and ended.code != 0)
        if wrong:
            last = (ended.said.strip().splitlines() or [""])[-1]
            count.found.append(
                {"trial": number, "what": what, "wrong": wrong, "words": words, "said": last[:300], "left": left[:5]}
            )
            say(f"{part} {number}: {', '.join(wrong)}: {what}: {last[:160]} {left[:3]}")
    return count


def _remove(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("files", 200), ("lines", 200), ("kills", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--for", type=float, dest="span", help="seconds for each part")
    parser.add_argument("--json", type=Path, help="write counts and findings here")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder) / "world"
        world.mkdir()
        make_world(world, lambda words, folder: run(words, folder, most=LONG))
        learn(world)
        parts: list[tuple[str, Trial]] = [("files", try_file), ("lines", try_line), ("kills", Kills())]
        counts = {}
        for part, attempt in parts:
            numbers = iter(range(args.first, args.first + getattr(args, part)))
            until = time.monotonic() + (args.span or 1e9)
            counts[part] = trials(
                part, attempt, world, numbers, args.seed, until, lambda line: print(line, flush=True)
            )
    result = {
        part: {
            "trials": found.trials, "next": found.reached, "exit codes": dict(found.ends),
            "largest memory": found.largest, "of trial": found.heaviest,
            **{name: sum(name in one["wrong"] for one in found.found)
               for name in ("traceback", "hang", "memory", "left behind")},
            "kinds": dict(sorted(found.kinds.items())), "findings": found.found,
        }
        for part, found in counts.items()
    }  # fmt: skip
    if args.json is not None:
        args.json.write_text(json.dumps({"seed": args.seed, **result}, indent=1))
    for part, found in result.items():
        print(part, {key: value for key, value in found.items() if key not in ("kinds", "findings")})
    return int(any(found["findings"] for found in result.values()))


if __name__ == "__main__":
    sys.exit(main())
