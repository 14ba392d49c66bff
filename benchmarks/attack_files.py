"""A good specimen of every file that the command line reads, a command that reads it, and ways to damage it."""

import gzip
import hashlib
import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

SETTINGS = ("network.nf=4", "network.blocks=1", "batch=4", "calibration=16", "warm_up=0", "sample_every=0")
SMALL = [word for item in SETTINGS for word in ("--set", item)]
STEP = "run/checkpoints/step-*"
GO_ON = "train -o run --images 24 --device cpu"


def words_of(line: str) -> list[str]:
    return [word for part in line.split() for word in (SMALL if part == "SMALL" else [part])]


def make_world(folder: Path, run: Callable[[list[str], Path], Any]) -> None:
    """One good specimen of everything that is read, made by the commands themselves; ``run`` runs one."""
    rng = np.random.default_rng(0)
    for name, count in (("photos", 12), ("others", 6)):
        (folder / name).mkdir()
        for number in range(count):
            pixels = np.kron(rng.integers(0, 256, (4, 4, 3), np.uint8), np.ones((2, 2, 1), np.uint8))
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    np.save(folder / "images.npy", rng.integers(0, 256, (6, 8, 8, 3), np.uint8))
    np.savez(folder / "images.npz", images=rng.integers(0, 256, (6, 8, 8, 3), np.uint8), labels=np.arange(6))
    shutil.make_archive(str(folder / "photos"), "zip", folder / "photos")
    shutil.make_archive(str(folder / "photos"), "gztar", folder / "photos")
    (folder / "process.yaml").write_text("preset: heat\nT: 1.0\n")
    batch = {b"data": rng.integers(0, 256, (4, 3072), np.uint8), b"labels": [0, 1, 2, 3]}
    (folder / "cifar").mkdir()
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        (folder / "cifar" / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "idx").mkdir()
    with gzip.open(folder / "idx" / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, 4, 28, 28) + rng.bytes(4 * 28 * 28))
    with gzip.open(folder / "idx" / "train-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">II", 0x801, 4) + bytes(4))
    torch.save({"model": {"a": torch.ones(3)}, "ema": [torch.ones(3)], "step": 1}, folder / "song.pth")
    (folder / "network.pt").write_bytes(b"")
    torch.jit.script(torch.nn.Linear(3, 3)).save(folder / "network.pt")
    source = "def means(x):\n    return x.float().flatten(2).sort().values[..., ::8].flatten(1)\n"
    (folder / "colors.py").write_text(source)
    for line in (
        "data prepare photos -o data --size 8",
        "train ve --data data -o run --images 16 SMALL --device cpu",
        "sample run --n 4 --steps 2 -o made --device cpu",
        "sample run --n 4 --steps 2 -o made.zip --device cpu",
        "edit run photos/0.png --steps 2 -o edits --device cpu",
        "solve run photos/0.png --operator deblurring --steps 2 -o solved --device cpu",
        "evaluate made -r data --network none --json report.json --device cpu",
        f"autoencoder train --data data -o ae {CODER}",
        "data prepare photos -o data --size 8 --latent ae --device cpu",
        "autoencoder reconstruct ae --data data -o decoded --device cpu",
        f"compare ve -o study --images 8 SMALL {STUDIED}",
    ):
        if (ended := run(words_of(line), folder)).code != 0:
            raise SystemExit(f"cannot make the specimens: {line}: {ended.said}")
    for place, _ in TARGETS.values():
        if len(list(folder.glob(place))) != 1:
            raise SystemExit(f"there is no {place} among the specimens")


CODER = "--images 8 --set width=8 --set factor=2 --set batch=4 --device cpu"
DECODE = "autoencoder reconstruct ae --data data -o out --device cpu"
MEASURE = "-r data --network none --json out --device cpu"
FEW = "--n 1 --steps 1 -o out --device cpu"
STUDIED = "--data data --n 12 --steps 2 --network colors:means --device cpu"
TARGETS: dict[str, tuple[str, str]] = {
    "picture": ("photos/0.png", "data prepare photos -o out --size 8"),
    "photo": ("photos/0.png", "forward photos/0.png -o out.png --size 8"),
    "edited": ("photos/0.png", "edit run photos/0.png --steps 1 -o out --device cpu"),
    "zip": ("photos.zip", "data prepare photos.zip -o out --size 8"),
    "tar": ("photos.tar.gz", "data prepare photos.tar.gz -o out"),
    "npy": ("images.npy", "data prepare images.npy -o out"),
    "npz": ("images.npz", f"evaluate images.npz {MEASURE}"),
    "dataset": ("data/meta.json", "data show data"),
    "dataset in train": ("data/meta.json", "train ve --data data -o out --dry-run --device cpu"),
    "dataset images": ("data/images.npy", "train ve --data data -o out --images 4 SMALL --device cpu"),
    "process": ("process.yaml", "forward --config process.yaml -o out.png --size 8"),
    "run config": ("run/config.yaml", "train --config run/config.yaml -o out --dry-run --device cpu"),
    "run": ("run/config.yaml", "evaluate run --n 2 --steps 1 --network none --json out --device cpu"),
    "checkpoint config": (f"{STEP}/config.json", f"sample run {FEW}"),
    "checkpoint of --from": (
        f"{STEP}/config.json", "train ve --from run --data data -o out --images 4 SMALL --device cpu"),
    "checkpoint continued": (f"{STEP}/config.json", GO_ON),
    "config continued": ("run/config.yaml", GO_ON),
    "log continued": ("run/log.jsonl", GO_ON),
    "optimizer": (f"{STEP}/state/optimizer.safetensors", GO_ON),
    "verified": ("data/verified.json", GO_ON),
    "shared": (f"{STEP}/config.json", "share run -o out"),
    "process of a run": (f"{STEP}/config.json", "forward --config run -o out.png"),
    "manifest": (f"{STEP}/manifest.json", f"sample run {FEW}"),
    "weights": (f"{STEP}/model.safetensors", f"sample run {FEW}"),
    "prior": (f"{STEP}/prior.safetensors", f"sample run {FEW}"),
    "log": ("run/log.jsonl", f"compare run:name=a -o out {STUDIED}"),
    "protocol": ("made/protocol.json", f"evaluate made {MEASURE}"),
    "protocol in sample": ("made/protocol.json", "sample run --n 5 --steps 2 -o made --device cpu"),
    "samples": ("made.zip", f"evaluate made.zip {MEASURE}"),
    "edits": ("edits/edit.json", "edit run photos/1.png --steps 2 -o edits --device cpu"),
    "solutions": (
        "solved/solve.json", "solve run photos/1.png --operator deblurring --steps 2 -o solved --device cpu"),
    "report": ("report.json", "evaluate --compare report.json --compare report.json"),
    "study": ("study/results/study.json", "compare --stage page -o study"),
    "study continued": ("study/results/study.json", f"compare ve -o study --images 8 SMALL {STUDIED}"),
    "training": ("study/results/ve/train.json", "compare --stage page -o study"),
    "column": ("study/results/ve/gaussian-2.json", "compare --stage page -o study"),
    "column images": ("study/results/ve/gaussian-2.npz", "compare --stage page -o study"),
    "statistics": ("cache/anisodiff/statistics/*.npz",
                   "evaluate made -r data --network colors:means --metrics fid --json out --device cpu"),
    "autoencoder": ("ae/config.json", DECODE),
    "autoencoder weights": ("ae/diffusion_pytorch_model.safetensors", DECODE),
    "autoencoder state": (f"{STEP.replace('run', 'ae')}/config.json", f"autoencoder train --data data -o ae {CODER}"),
    "latents": ("data/latents/*/meta.json", DECODE),
    "latents array": ("data/latents/*/latents.npy", DECODE),
    "pickle": ("cifar/data_batch_1", "data prepare cifar10 cifar -o out"),
    "idx": ("idx/train-images-idx3-ubyte.gz", "data prepare fashion-mnist idx -o out"),
    "published weights": (
        "song.pth", "train ve --from song.pth --set network=cifar10 --set size=32 --data photos -o out --images 4"),
    "TorchScript": ("network.pt", f"evaluate made {MEASURE.replace('none', 'network.pt')} --trust-code"),
    "inception": ("images.npz", "evaluate made -r data --inception images.npz --metrics fid --device cpu"),
}  # fmt: skip
"""What is damaged, and a command that reads it; what a command would write is at out, out.png or where it was."""


class Tagged(str):
    """Text that YAML gets as it is: an explicit tag."""


def tagged(dumper: yaml.SafeDumper, value: Tagged) -> yaml.Node:
    tag, _, text = value.partition(" ")
    return dumper.represent_scalar(tag.replace("!!", "tag:yaml.org,2002:"), text.strip('"'))


yaml.SafeDumper.add_representer(Tagged, tagged)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**6, 10**30, 1.5, float("nan"), float("inf"), "", "x", "é\u2028", "a" * 5000, "../..", [],
    [1], {}, {"a": 1}, [[[[[[]]]]]], {"name": None}, ["x"] * 300, Tagged("!!bool maybe"), Tagged('!!int ""'),
)  # fmt: skip


def change_values(values: Any, rng: random.Random) -> Any:
    """Another value, another type, or nothing at a random place of nested keys."""
    if isinstance(values, dict) and values and rng.random() < 0.9:
        key = rng.choice(list(values))
        if rng.random() < 0.25:
            return {k: v for k, v in values.items() if k != key}
        return {**values, key: change_values(values[key], rng)}
    if isinstance(values, list) and values and rng.random() < 0.7:
        place = rng.randrange(len(values))
        return [*values[:place], change_values(values[place], rng), *values[place + 1 :]]
    return rng.choice(ODD)


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    place = rng.randrange(len(data) or 1)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + rng.randbytes(rng.randint(1, 40)) + data[place:]
    if kind == 2:
        return data[:place] + rng.randbytes(8) + data[place + 8 :]
    if kind == 3:
        return data[:place] + b"\xff" * rng.choice((4, 8)) + data[place + 8 :]
    if kind == 4:
        return rng.choice((b"", bytes(64), rng.randbytes(300), b"[" * 10**5, data * 3))
    head = min(len(data), 600)  # headers are what is believed
    place = rng.randrange(head or 1)
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def damage(path: Path, rng: random.Random) -> str:
    """Change one file; what was done to it."""
    special = rng.random()
    if special < 0.06:
        path.unlink()
        kind = rng.choice(("fifo", "folder", "circle", "gone", "zero"))
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "circle":
            path.symlink_to(path.name)
        elif kind == "zero":
            path.symlink_to("/dev/zero")
        return kind
    if path.suffix in (".json", ".yaml") and rng.random() < 0.8:
        values = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
        for _ in range(rng.choice((1, 1, 2, 4))):
            values = change_values(values, rng)
        path.write_text(json.dumps(values) if path.suffix == ".json" else yaml.safe_dump(values))
        done = "values"
    else:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
        done = "bytes"
    folder = path.parent.parent if path.parent.name == "state" else path.parent
    manifest = folder / "manifest.json"
    if manifest.is_file() and path != manifest and rng.random() < 0.85:  # with a checksum that fits
        held = json.loads(manifest.read_text())
        held["files"][path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(held))
    return done
