"""A long training in pieces, on machines that keep nothing and are reached by small transfers.

    python benchmarks/flagship.py piece RUN --recipe cifar10-ve --set KEY=VALUE … --data CIFAR --train 420 \\
        --packs PACKS --out OUT --inception FILE          unpack, train, pack, sample, FID, grid
    python benchmarks/flagship.py take PACKS 0 OUT        copy the first parts of the newest pack: as many as fit
    python benchmarks/flagship.py pack RUN PACKS          the newest checkpoint of a run as parts
    python benchmarks/flagship.py unpack PACKS RUN        the newest complete pack below PACKS as a run's checkpoint

A pack is a checkpoint in a fifth of its size, enough to continue: EMA in half precision, weights as their difference
from it in 8 bits, of Adam's second moment the means of its rows and columns; the first moment begins at 0.
It consists of parts PACKS/NN/step-NNNNNNNN-NN.part of less than 16 MiB that name the pack they belong to and their
checksum: parts of several packs may lie below one folder, and the newest that is complete counts.

`piece` continues RUN, or else what is below PACKS, or else begins, with the weights of --from where given. It may be
killed at any time: the pack of the last interval is complete. The pack of its end is written before images are made.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import anisodiff
from anisodiff.cli.common import settings
from anisodiff.data import Dataset, open_dataset
from anisodiff.io import tensor_files as files
from anisodiff.io.atomic import replacing
from anisodiff.io.checkpoint import Checkpoint, Snapshot, Store, newest
from anisodiff.io.eight_bits import quantized, restored
from anisodiff.io.grids import save_grid
from anisodiff.io.images import to_bytes
from anisodiff.io.records import write_json
from anisodiff.metrics import evaluate, image_set, inception
from anisodiff.runtime.devices import pick_device
from anisodiff.training import Hooks, TrainConfig, read_log, train
from anisodiff.training.preview import fit_prior
from anisodiff.training.recipes import recipe

MIB = 2**20
PART, TAKEN = 31 * MIB // 2, 63 * MIB
"""Bytes of a part, and of the parts that `take` copies at a time."""
FOREVER = 2**50
WEIGHTS = ("half", "difference", "ema")
MOMENTS = ("eight", "factored", "anew")
ROOT, ROWS, COLUMNS, STEP = "exp_avg_sq_root", "rows", "columns", "step"


def half(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made = {name: x.half() if x.is_floating_point() else x for name, x in tensors.items()}
    for name, x in made.items():
        if not bool(torch.isfinite(x).all()):
            raise ValueError(f"{name} does not fit into half precision: largest value {tensors[name].abs().max():g}")
    return made


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": x for name, x in tensors.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}/"): x for name, x in tensors.items() if name.startswith(f"{prefix}/")}


def factored(v: Tensor) -> dict[str, Tensor]:
    """Means over rows and columns, v_ij ≈ r_i c_j / mean (Shazeer and Stern 2018); small tensors as they are."""
    if v.dim() < 2:
        return {ROWS: v}
    flat = v.flatten(1)
    return {ROWS: flat.mean(1), COLUMNS: flat.mean(0)}


def unfactored(found: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    if COLUMNS not in found:
        return found[ROWS]
    rows, columns = found[ROWS], found[COLUMNS]
    return (rows[:, None] * columns / rows.mean().clamp(min=1e-38)).view(shape)


def compact(saved: Checkpoint, weights: str, moments: str) -> dict[str, Tensor]:
    """The tensors of a pack."""
    model, network = saved.tensors("model"), "network."
    tables = {name: x for name, x in model.items() if not name.startswith(network)}
    ema = half({name: x for name, x in model.items() if name.startswith(network)})
    made = named("model", {**tables, **ema})
    raw = saved.tensors("state/weights")
    if weights == "half":
        made |= named("weights", half(raw))
    elif weights == "difference":
        made |= named("difference", quantized({name: x - ema[network + name].float() for name, x in raw.items()}))
    made |= named("counters", saved.tensors("state/counters"))
    if saved.has("prior"):
        made |= named("prior", saved.tensors("prior"))
    adam = saved.tensors("state/optimizer")
    for name in raw if moments != "anew" and f"{STEP}.{next(iter(raw))}" in adam else ():
        made[f"adam/{STEP}.{name}"], v = adam[f"{STEP}.{name}"], adam[f"exp_avg_sq.{name}"]
        if moments == "factored":
            made |= {f"adam/{part}.{name}": x for part, x in factored(v).items()}
        else:
            eight = quantized({f"exp_avg.{name}": adam[f"exp_avg.{name}"], f"{ROOT}.{name}": v.sqrt()})
            if eight[f"{ROOT}.{name}"].dtype == torch.int8:
                eight[f"{ROOT}.{name}"].clamp_(min=1)  # a moment of 0 would make a step of any size
            made |= named("adam", eight)
    return made


def expand(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """The model, and the state to continue with, from the tensors of a pack."""
    model = below("model", tensors)
    ema = {name.removeprefix("network."): x.float() for name, x in model.items() if name.startswith("network.")}
    model |= {f"network.{name}": x for name, x in ema.items()}
    raw = {name: x.float() for name, x in below("weights", tensors).items()}
    if difference := restored(below("difference", tensors)):
        raw = {name: ema[name] + x for name, x in difference.items()}
    packed, adam = restored(below("adam", tensors)), {}
    names = [name.removeprefix(f"{STEP}.") for name in packed if name.startswith(f"{STEP}.")]
    for name in names:
        shape = ema[name].shape
        there = {part: packed[f"{part}.{name}"] for part in (ROWS, COLUMNS) if f"{part}.{name}" in packed}
        v = unfactored(there, shape) if there else packed[f"{ROOT}.{name}"].square()
        m = packed.get(f"exp_avg.{name}", torch.zeros(shape))
        adam |= {f"{STEP}.{name}": packed[f"{STEP}.{name}"], f"exp_avg.{name}": m, f"exp_avg_sq.{name}": v}
    state = {"weights": raw or ema, "optimizer": adam, "counters": below("counters", tensors)}
    return model, state


@dataclass(frozen=True)
class Part:
    path: Path
    step: int
    number: int
    of: int
    sha256: str

    @classmethod
    def read(cls, path: Path) -> "Part | None":
        """A part whose contents are whole, or None."""
        with path.open("rb") as file:
            try:
                head = json.loads(file.readline(1000))
                part = cls(path, head["step"], head["number"], head["of"], head["sha256"])
            except (ValueError, KeyError, TypeError):
                return None
            return part if hashlib.file_digest(file, "sha256").hexdigest() == part.sha256 else None

    def bytes(self) -> bytes:
        return self.path.read_bytes().partition(b"\n")[2]


def pack(run: Path, packs: Path, weights: str, moments: str, size: int = PART) -> list[Path]:
    """Write the parts of a run's newest checkpoint; parts of older steps go once it is complete."""
    saved = newest(run)
    if saved is None:
        raise SystemExit(f"{run} has no checkpoint: train it first")
    if len(saved.meta["config"]["ema"]) > 1:
        raise SystemExit(f"{run} keeps {len(saved.meta['config']['ema'])} EMAs, expected one: --set ema=…")
    about = {"meta": saved.meta, "log": read_log(run)}
    text = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    packs.mkdir(parents=True, exist_ok=True)
    whole = packs / ".whole"
    whole.unlink(missing_ok=True)
    files.put_tensors(whole, {"about": text, **compact(saved, weights, moments)})
    made, total = [], -(-whole.stat().st_size // size)
    with whole.open("rb") as file:
        for number in range(total):
            block = file.read(size)
            head = {"step": saved.step, "number": number, "of": total, "sha256": hashlib.sha256(block).hexdigest()}
            path = packs / f"{number:02d}" / f"step-{saved.step:08d}-{number:02d}.part"
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_bytes(json.dumps(head).encode() + b"\n" + block)
            made.append(path)
    whole.unlink()
    for old in set(packs.glob("*/step-*.part")) - set(made):
        old.unlink()
    return made


def complete(packs: Path) -> list[Part]:
    """The parts of the newest complete pack below a folder, in order; none where there is none."""
    found = [part for path in sorted(packs.rglob("step-*.part")) if (part := Part.read(path)) is not None]
    for step in sorted({part.step for part in found}, reverse=True):
        parts = {part.number: part for part in found if part.step == step}
        if set(parts) == set(range(next(iter(parts.values())).of)):
            return [parts[number] for number in sorted(parts)]
    return []


def unpack(packs: Path, run: Path) -> int:
    """Write the newest complete pack as a checkpoint of the run; its step."""
    parts = complete(packs)
    if not parts:
        raise SystemExit(f"{packs} holds no complete pack")
    run.mkdir(parents=True, exist_ok=True)
    whole = run / ".unpacked"
    with whole.open("wb") as file:
        for part in parts:
            file.write(part.bytes())
    tensors = files.get_tensors(whole)
    about = json.loads(tensors.pop("about").numpy().tobytes())
    model, state = expand(tensors)
    meta, prior = about["meta"], below("prior", tensors)
    whole.unlink()
    (run / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in about["log"]))
    Store(run).save(Snapshot(step=meta["step"], meta=meta, model=model, state=state, prior=prior or None))
    return int(meta["step"])


def take(packs: Path, first: int, out: Path, most: int = TAKEN) -> int:
    """Copy parts of the newest complete pack from number ``first`` on, as many as fit; the next number."""
    parts, taken = complete(packs), 0
    out.mkdir(parents=True, exist_ok=True)
    for part in parts[first:]:
        size = part.path.stat().st_size
        if taken and taken + size > most:
            break
        target = out / f"{part.number:02d}"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(part.path, target)
        taken, first = taken + size, first + 1
    total = len(parts)
    print(f"parts up to {first} of {total}" + (f", next: {first}" if first < total else ": all taken"))
    return first


class Packer:
    """Packs in a process of its own whenever the run has a new checkpoint: training goes on meanwhile."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.last, self.work = self.steps(), None

    def steps(self) -> list[str]:
        return sorted(path.name for path in (self.options.run / "checkpoints").glob("step-*"))

    def look(self) -> None:
        if (self.work is None or self.work.poll() is not None) and (found := self.steps()) != self.last:
            words = ["pack", self.options.run, self.options.packs, "--weights", self.options.weights]
            words += ["--moments", self.options.moments]
            self.last, self.work = found, subprocess.Popen([sys.executable, __file__, *map(str, words)])

    def wait(self) -> None:
        if self.work is not None:
            self.work.wait()


def configured(options: argparse.Namespace, dataset: Dataset) -> TrainConfig:
    """The recipe with the changes; one EMA, no grids, and no end but that of the piece."""
    chosen = recipe(options.recipe).changed({"size": list(dataset.size), "images": FOREVER, "sample_every": 0})
    return chosen.changed({"ema": list(chosen.ema[:1]), **settings(options.set)})


def measured(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """FID of the run's EMA, with what else is measured; writes the report and a grid."""
    model = anisodiff.load(options.run, device)
    begin = time.perf_counter()
    made = to_bytes(model.sample(options.n, steps=options.steps, batch=options.batch).as_subclass(Tensor))
    seconds = time.perf_counter() - begin
    images = int(model.meta["images"])
    name = f"{model.plan.config.process['preset']}-{images:010d}"
    save_grid(made[:64].float() / 255, options.out / f"{name}.png")
    network = None if options.inception is None else inception(options.inception, device=device, tf32=True)
    report = evaluate(image_set(made, name="samples"), options.data, network=network)
    values = {value.name: value.value for value in report.values if isinstance(value.value, float)}
    facts = {"images": images, "n": options.n, "steps": options.steps, "sampling_seconds": seconds, **values}
    write_json(options.out / f"{name}.json", {"facts": facts, "log": read_log(options.run)})
    return facts


def piece(options: argparse.Namespace) -> None:
    """Continue or begin, train, pack, measure."""
    began = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    device, dataset = pick_device(options.device), open_dataset(options.data)
    if newest(options.run) is None and complete(options.packs):
        print(f"unpacked step {unpack(options.packs, options.run)}: {time.perf_counter() - began:.0f} s", flush=True)
    packer = Packer(options)

    def on_log(record: dict[str, Any]) -> None:
        packer.look()
        print(f"{time.perf_counter() - began:.0f} s: {record['images']} images, loss {record['loss']:.4f}, "
              f"{record['images_per_second']:.0f} images/s", flush=True)  # fmt: skip

    hooks = Hooks(
        say=lambda line: print(line, flush=True), on_log=on_log, fit_prior=fit_prior, began=began,
        stop=lambda: time.perf_counter() - began > options.train,
    )  # fmt: skip
    config = configured(options, dataset)
    outcome = train(config, dataset, options.run, device=device, start=options.start, hooks=hooks, track=())
    packer.wait()
    parts = pack(options.run, options.packs, options.weights, options.moments)
    size = sum(path.stat().st_size for path in parts) / MIB
    print(f"{time.perf_counter() - began:.0f} s: packed {outcome.images} images, {len(parts)} parts, {size:.0f} MiB",
          flush=True)  # fmt: skip
    if options.n:
        print(json.dumps(measured(options, device)), f"{time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    stored = argparse.ArgumentParser(add_help=False)
    stored.add_argument("--weights", choices=WEIGHTS, default="difference", help="how the weights are stored")
    stored.add_argument("--moments", choices=MOMENTS, default="factored", help="how Adam's moments are stored")
    one = verbs.add_parser("piece", parents=[stored])
    one.add_argument("run", type=Path)
    one.add_argument("--recipe", default="cifar10-ve")
    one.add_argument("--set", action="append", default=[], help="as of train")
    one.add_argument("--data", type=Path, required=True, help="a prepared dataset")
    one.add_argument("--from", dest="start", type=Path, help="the run whose EMA a new run starts from")
    one.add_argument("--train", type=float, required=True, help="seconds, from the start of the command")
    one.add_argument("--packs", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--n", type=int, default=10_000, help="samples; 0: none")
    one.add_argument("--steps", type=int, default=50, help="NFE")
    one.add_argument("--batch", type=int, help="of sampling")
    one.add_argument("--inception", type=Path)
    one.add_argument("--device", default="auto")
    cut = verbs.add_parser("pack", parents=[stored])
    cut.add_argument("run", type=Path)
    cut.add_argument("packs", type=Path)
    joined = verbs.add_parser("unpack")
    joined.add_argument("packs", type=Path)
    joined.add_argument("run", type=Path)
    some = verbs.add_parser("take")
    some.add_argument("packs", type=Path)
    some.add_argument("first", type=int)
    some.add_argument("out", type=Path)
    options = parser.parse_args()
    if options.verb == "piece":
        piece(options)
    elif options.verb == "pack":
        print(f"{len(pack(options.run, options.packs, options.weights, options.moments))} parts")
    elif options.verb == "unpack":
        print(f"unpacked step {unpack(options.packs, options.run)}")
    else:
        take(options.packs, options.first, options.out)


if __name__ == "__main__":
    main()
