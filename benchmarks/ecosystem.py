"""What the ecosystem pages promise, measured on one GPU, in pieces; the same command again continues:

    python benchmarks/ecosystem.py unet    --data CIFAR --out OUT --inception FILE
    python benchmarks/ecosystem.py classes --data CIFAR --out OUT --inception FILE
    python benchmarks/ecosystem.py inverse --data FACES --out OUT --inception FILE --lpips FILE
    python benchmarks/ecosystem.py unet classes inverse --tiny --out OUT       # all of it on a CPU, in three minutes

FOR (540) is the number of seconds of a call. CIFAR is a prepared dataset with labels (`data prepare cifar10`), FACES
a folder or zip. Every result is one file below OUT, written once; OUT/README.md is made from them.

unet     `UNet2DModel` of diffusers, trained for two minutes, sampled through `AnisoDiffPipeline`; saved with
         `save_pretrained`, loaded, and the same seeds compared bit by bit
classes  for `ve`, `anisotropic-gentle` and `flow-matching`: a run with classes and one without, equal network, images
         and NFE; with several guidance weights. A guided answer costs two NFE, so there are fewer steps
inverse  four operators on held-out photographs, one draw for each: three processes, and the baselines of `solve`

diffusers is not among the packages of every GPU machine. It needs no compiled code: unpack its wheel, and those of
requests, urllib3, certifi and charset_normalizer (the py3-none-any one), into a folder, 32 MB, and put that folder on
PYTHONPATH. Only `unet` needs it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import anisodiff
from anisodiff.data import open_dataset, prepare
from anisodiff.data.memory import in_memory
from anisodiff.editing.solving import degrade, wiener
from anisodiff.generation import Generator, Guidance, SamplingConfig, load, write_samples
from anisodiff.inverse import read_operator
from anisodiff.io.grids import save_grid
from anisodiff.io.images import to_bytes
from anisodiff.io.records import write_json
from anisodiff.metrics import LPIPS, evaluate, image_set, inception, paired_metrics, read_samples
from anisodiff.runtime.devices import pick_device

PROCESSES = ("ve", "anisotropic-gentle", "flow-matching")
GUIDANCES = {
    "w1": Guidance(), "w1.5": Guidance(weight=1.5), "w2": Guidance(weight=2.0),
    "w2-interval": Guidance(weight=2.0, interval=(0.2, 5.0)),
}  # fmt: skip
OPERATORS = ("super-resolution(factor=4)", "inpainting(hole=24)", "deblurring(width=2)", "colorization")
NOISE = 0.02
UNET = {
    "name": "diffusers:UNet2DModel", "block_out_channels": [128, 256, 256], "layers_per_block": 2, "dropout": 0.1,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "AttnUpBlock2D", "UpBlock2D"],
}  # fmt: skip
SHOWN = 8


class TimeIsUp(Exception):
    """The call has used its seconds; everything finished is kept."""


class Study:
    """Everything below one output folder; each part is made where it is missing."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, Path(options.out)
        self.ends = time.monotonic() + float(os.environ.get("FOR", "540"))
        self.device = pick_device(options.device)

    def check_time(self) -> None:
        if time.monotonic() > self.ends:
            raise TimeIsUp

    def once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The facts in OUT/NAME.json, made where they are missing."""
        path = self.out / f"{name}.json"
        if not path.is_file():
            self.check_time()
            write_json(path, make())
            print(f"made {path}", flush=True)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    # -- training

    def train(
        self, name: str, data: Path, keys: dict[str, Any], *, seconds: float | None = None, holdout: str | None = None
    ) -> Generator:
        """A run, trained to its end: its images, or ``seconds`` from its first step on."""
        folder, record = self.out / name / "run", self.out / name / "training.json"
        known = json.loads(record.read_text()) if record.is_file() else {"seconds": 0.0, "finished": False}
        if known["finished"]:
            return load(folder, self.device)
        self.check_time()
        begun: list[float] = []

        def trained() -> float:
            return known["seconds"] + (time.monotonic() - begun[0] if begun else 0.0)

        def stop() -> bool:
            begun.append(time.monotonic())
            return time.monotonic() > self.ends or (seconds is not None and trained() >= seconds)

        here = (folder / "config.yaml").is_file()
        given = {} if here else {"sample_every": 0, "seed": self.options.seed, **self.options.keys, **keys}
        model = anisodiff.train(
            None if here else data, folder, device=self.device, stop=stop, track=(),
            holdout=None if here else holdout, **given,
        )  # fmt: skip
        assert model.outcome is not None
        finished = model.outcome.finished or (seconds is not None and trained() >= seconds)
        write_json(record, {"seconds": trained(), "images": model.outcome.images, "finished": finished})
        if not finished:
            raise TimeIsUp
        return model

    # -- measures

    @cached_property
    def network(self) -> Any:
        found = self.options.inception
        return None if found is None else inception(found, device=self.device)

    @property
    def distances(self) -> tuple[str, ...]:
        return ("sliced", "spectrum") if self.options.inception is None else ("fid", "kid", "prdc")

    def evaluated(self, samples: Path, *more: str) -> dict[str, Any]:
        """The numbers of `anisodiff evaluate` against the training images, and the protocol."""
        made = read_samples(samples)
        report = evaluate(
            made.images, image_set(self.options.data), network=self.network, generation=made.origin.generation,
            metrics=self.distances + (() if self.network is None else more),
        )  # fmt: skip
        return {**{value.name: value.value for value in report.values}, "protocol": report.protocol.line()}

    # -- unet

    def unet(self) -> None:
        """UNet2DModel through the pipeline of diffusers."""
        o = self.options
        keys = {"process": "ve", "network": o.unet, "images": 10**9}
        model = self.train("unet", o.data, keys, seconds=o.training)
        pipe = anisodiff.AnisoDiffPipeline(model)
        pipe.set_progress_bar_config(disable=True)
        parts = self.out / "unet" / "parts"
        for first in range(0, o.n, o.batch):
            part = parts / f"{first:08d}.npy"
            if not part.is_file():
                self.check_time()
                save_bytes(part, draw(pipe, first, min(o.batch, o.n - first), o.nfe))
        self.once("unet/round-trip", lambda: self.round_trip(pipe))

        def measure() -> dict[str, Any]:
            made = np.concatenate([np.load(part) for part in sorted(parts.glob("*.npy"))])
            np.savez(self.out / "unet" / "samples.npz", images=made.transpose(0, 2, 3, 1))
            save_grid(torch.from_numpy(made[:64]).float() / 255, self.out / "unet" / "samples.png")
            found = self.evaluated(self.out / "unet" / "samples.npz")
            about = json.loads((self.out / "unet" / "training.json").read_text())
            size = {"parameters": model.parameters, "images": about["images"], "seconds": about["seconds"]}
            return {**size, "samples": len(made), "nfe": o.nfe, **found}

        self.once("unet/numbers", measure)

    def round_trip(self, pipe: Any) -> dict[str, Any]:
        """The pipeline saved, loaded, and sampled again on the same device."""
        folder = self.out / "unet" / "saved"
        if not folder.is_dir():
            pipe.save_pretrained(folder, samples=16)
        again = anisodiff.AnisoDiffPipeline.from_pretrained(folder).to(self.device)
        again.set_progress_bar_config(disable=True)
        one, two = (draw(p, 0, SHOWN, self.options.nfe) for p in (pipe, again))
        code = load(folder, "cpu").origin.model
        same = code == pipe.generator.origin.model
        return {"equal_images": bool(torch.equal(one, two)), "equal_weights": same, "model_sha256": code}

    # -- classes

    def classes(self) -> None:
        """With classes and without, at equal images and NFE."""
        o = self.options
        for process in o.processes:
            for kind in ("unconditional", "conditional"):
                keys = {"process": process, "images": o.images, **o.small}
                keys |= {"classes": "auto"} if kind == "conditional" else {}
                model = self.train(f"classes/{process}/{kind}", o.data, keys)
                for name, guidance in GUIDANCES.items() if kind == "conditional" else [(kind, Guidance())]:
                    self.one_guidance(model, process, name, guidance)

    def one_guidance(self, model: Generator, process: str, name: str, guidance: Guidance) -> None:
        o, folder = self.options, self.out / "classes" / process
        every = (SamplingConfig(steps=steps, guidance=guidance) for steps in range(o.nfe, 0, -1))
        config = next(config for config in every if model.reverse_process(config).nfe <= o.nfe)
        samples = folder / f"{name}.npz"

        def measure() -> dict[str, Any]:
            write_samples(model, range(o.n), samples, config)
            more = ("class-fid",) if model.classes else ()
            return {
                "process": process, "guidance": name, "steps": config.steps,
                "nfe": model.reverse_process(config).nfe, "samples": o.n, **self.evaluated(samples, *more),
            }  # fmt: skip

        self.once(f"classes/{process}/{name}", measure)
        sheet = folder / f"{name}.png"
        if model.classes and not sheet.is_file():
            self.check_time()
            count = len(model.classes)
            made = model.sample(count * SHOWN, steps=config.steps, classes="all", guidance=guidance, progress=False)
            rows = made.as_subclass(Tensor).unflatten(0, (SHOWN, count)).transpose(0, 1)  # a row for each class
            save_grid(rows.flatten(0, 1), sheet, columns=SHOWN)

    # -- inverse problems

    def inverse(self) -> None:
        """One draw for every held-out photograph, by three processes; and the baselines."""
        o = self.options
        first = self.out / "inverse" / o.processes[0] / "run"  # it keeps images aside, for all
        for process in o.processes:
            own = process == o.processes[0]
            keys = {"process": process, "images": o.images, **o.small}
            data, cut = (o.data, o.holdout) if own else (first / "data", None)
            model = self.train(f"inverse/{process}", data, keys, holdout=cut)
            photos = open_dataset(first / "heldout").first(o.photos)
            for text in o.operators:
                self.one_operator(model, process, text, photos)

    def one_operator(self, model: Generator, process: str, text: str, photos: Tensor) -> None:
        o, operator = self.options, read_operator(text)
        measured = degrade(operator, photos, NOISE)
        if process == o.processes[0]:
            plain = {
                "plain": operator.plain(measured).clamp(0, 1),
                "Wiener": wiener(model, measured, operator, NOISE),
            }
            for name, images in plain.items():
                self.once(f"inverse/{operator.name}-{name}", lambda n=name, x=images: self.row(n, text, x, photos, 0))
        folder = self.out / "inverse" / f"{operator.name}-{process}"
        for begin in range(0, len(photos), o.chunk):
            part = folder / f"{begin:08d}.npy"
            if not part.is_file():
                self.check_time()
                rows = measured[begin : begin + o.chunk]
                seeds = range(begin, begin + len(rows))
                drawn = anisodiff.solve(
                    model, rows, operator, noise=NOISE, seeds=seeds, steps=o.nfe, batch=len(rows)
                )  # fmt: skip
                save_bytes(part, drawn)
        made = read_bytes(folder)
        nfe = model.reverse_process(t=model.process.T, steps=o.nfe).nfe
        self.once(f"inverse/{operator.name}-{process}", lambda: self.row(process, text, made, photos, nfe))
        sheet = self.out / "inverse" / f"{operator.name}.png"
        columns = [photos, operator.plain(measured).clamp(0, 1), wiener(model, measured, operator, NOISE)]
        for other in o.processes[: o.processes.index(process) + 1]:
            columns.append(read_bytes(self.out / "inverse" / f"{operator.name}-{other}"))
        save_grid(torch.cat([images[:SHOWN].cpu() for images in columns]), sheet, columns=min(SHOWN, len(photos)))

    @cached_property
    def paired(self) -> Any:
        found = self.options.lpips
        return paired_metrics(None if found is None else LPIPS(found, device=self.device))

    def row(self, name: str, operator: str, images: Tensor, photos: Tensor, nfe: int) -> dict[str, Any]:
        """Means over the images with their standard errors; FID to the same photographs."""
        seen = torch.round(255 * images.as_subclass(Tensor).cpu()) / 255
        facts: dict[str, Any] = {"name": name, "operator": operator, "nfe": nfe, "images": len(photos)}
        for key, metric in self.paired.items():
            values = torch.cat([metric(*pair) for pair in zip(seen.split(256), photos.split(256))]).double().cpu()
            facts |= {key: float(values.mean()), f"{key}_error": float(values.std() / len(values) ** 0.5)}
        report = evaluate(
            image_set(to_bytes(seen), name="results"), image_set(to_bytes(photos), name="photographs"),
            network=self.network, metrics=self.distances[:2],
        )  # fmt: skip
        return facts | {value.name: value.value for value in report.values}

    # -- the page

    def page(self) -> None:
        o, lines = self.options, ["# Ecosystem", ""]
        where = torch.cuda.get_device_name(0) if self.device.type == "cuda" else "CPU"
        lines += [f"{where}, torch {torch.__version__}; training seed {o.seed}; features: {self.feature_name()}", ""]
        numbers = self.facts("unet/numbers.json") + self.facts("unet/round-trip.json")
        if numbers:
            lines += ["## UNet2DModel", "", *(f"- {k}: {shown(v)}" for row in numbers for k, v in row.items()), ""]
        lines += table("Classes", self.facts("classes/*/*.json"), ("process", "guidance", "steps", "nfe"))
        lines += table("Inverse problems", self.facts("inverse/*.json"), ("operator", "name", "nfe", "images"))
        (self.out / "README.md").write_text("\n".join(lines), encoding="utf-8")
        print(f"wrote {self.out / 'README.md'}")

    def feature_name(self) -> str:
        return "none, pixels are compared" if self.options.inception is None else "Inception 2015-12-05"

    def facts(self, pattern: str) -> list[dict[str, Any]]:
        """What `once` has written: not the protocols beside samples."""
        files = [path for path in sorted(self.out.glob(pattern)) if not path.name.endswith(".npz.json")]
        return [json.loads(path.read_text()) for path in files]


def draw(pipe: Any, first: int, count: int, nfe: int) -> Tensor:
    """Images by the pipeline; the seed of a batch follows from its place."""
    chance = torch.Generator().manual_seed(first)
    found: Tensor = pipe(batch_size=count, generator=chance, num_inference_steps=nfe, output_type="pt").images
    return found


def save_bytes(path: Path, images: Tensor) -> None:
    """Images in [0, 1] as bytes [N, C, H, W], whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.save(file, to_bytes(images.as_subclass(Tensor)).cpu().numpy())
    part.replace(path)


def read_bytes(folder: Path) -> Tensor:
    """All images of `save_bytes` in a folder, in [0, 1]."""
    return torch.from_numpy(np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))])).float() / 255


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(title: str, rows: list[dict[str, Any]], first: tuple[str, ...]) -> list[str]:
    """Markdown; the columns are ``first`` and the numbers that the rows have."""
    if not rows:
        return []
    every = dict.fromkeys(key for row in rows for key in row)
    rest = [key for key in every if key not in (*first, "protocol") and "[" not in key]
    head = [*first, *rest]
    body = ["| " + " | ".join(shown(row.get(key, "–")) for key in head) + " |" for row in rows]
    return [f"## {title}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|", *body, ""]


def tiny(options: argparse.Namespace) -> None:
    """Labeled drawings of 16² and the smallest settings, for a CPU."""
    options.n, options.nfe, options.images, options.batch, options.photos, options.chunk = 12, 8, 64, 8, 6, 4
    options.training, options.holdout = 0.5, "8"
    options.operators = ("super-resolution(factor=4)", "inpainting(hole=6)", "deblurring(width=2)", "colorization")
    options.small = {"network": {"name": "small", "nf": 8, "multipliers": [1, 1], "blocks": 1}}
    options.unet = {
        **UNET, "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 4,
        "down_block_types": UNET["down_block_types"][:2], "up_block_types": UNET["up_block_types"][1:],
    }  # fmt: skip
    options.keys = {"batch": 8, "calibration": 16, "size": 16}
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 2
    pictures = rng.uniform(0.2, 0.8, (64, 3, 1, 1)) + rng.normal(0, 0.04, (64, 3, 16, 16))
    for picture, label in zip(pictures, labels):
        top, left = rng.integers(0, 8, 2)
        picture[:, top : top + 4 + 4 * label, left : left + 4 + 4 * label] = rng.uniform(0, 1, (3, 1, 1))
    options.data = Path(options.out) / "drawings"
    if not options.data.exists():
        source = in_memory((255 * pictures.clip(0, 1)).astype(np.uint8), labels)
        prepare(source, options.data, size=16, channels=3)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("verbs", nargs="+", choices=("unet", "classes", "inverse"), metavar="unet|classes|inverse")
    words.add_argument("--data", type=Path)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--images", type=int, default=2_048_000, help="seen by each run of classes and inverse")
    words.add_argument("--training", type=float, default=120.0, help="seconds of training of unet")
    words.add_argument("--n", type=int, default=10_000, help="samples of each row")
    words.add_argument("--nfe", type=int, default=50, help="network evaluations for each image")
    words.add_argument("--photos", type=int, default=1000, help="held-out photographs of inverse, at most")
    words.add_argument("--holdout", default="10%", help="of inverse, as of train")
    words.add_argument("--seed", type=int, default=0, help="of training")
    words.add_argument("--inception", type=Path, help="Inception's weights, for FID, KID, precision and recall")
    words.add_argument("--lpips", type=Path, help="LPIPS's weights")
    words.add_argument("--device", default="auto")
    words.add_argument("--tiny", action="store_true")
    options = words.parse_args()
    options.batch, options.chunk, options.processes, options.operators = 500, 250, PROCESSES, OPERATORS
    options.small, options.unet, options.keys = {"network": "tiny", "batch": 512}, UNET, {}
    if options.tiny:
        tiny(options)
    if options.data is None:
        words.error("--data: give images, or --tiny")
    study = Study(options)
    try:
        for verb in options.verbs:
            getattr(study, verb)()
    except TimeIsUp:
        print("time is up: the same command continues")
    study.page()


if __name__ == "__main__":
    main()
