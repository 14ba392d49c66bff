"""Structure → texture: cartoons of held-out photographs become photographs again; which model does it best?

    python benchmarks/structure_texture.py --data faces --out OUT --inception FILE     # again until all is there
    python benchmarks/structure_texture.py --tiny --out OUT                            # all of it in three minutes

Runs, all with the same network, images and data:

    cartoon     Perona–Malik on the image, finished at σ = 0.03, then noise; starts from the input as it is
    cartoon-3   the same with 3/10 of the smoothing;   blur: the same with isotropic smoothing
    cartoon-near  `cartoon`, trained mostly at the times that it passes from a cartoon on (noise level −2 ± 1.2)
    cartoon-0.1, cartoon-0.3  `cartoon` whose smoothing is finished at σ = 0.1 and 0.3
    cartoon-late  `cartoon-0.1` with ∫α1 ∝ t⁴ instead of t²: the removed texture stays below the noise
    ve          SDEdit at every strength
    ve-conditional  `ve` whose network sees the Perona–Malik cartoon (process.condition): starts from noise, and from
                    the input with noise at every strength

Inputs: Perona–Malik, bilateral and median cartoons, k-means strokes, flat drawings, all of held-out photographs.
`ve-conditional` was trained on the first kind only. Input and photograph are rows of their own: the edges of a
photograph are not those of its cartoon. Each run edits each kind with NFE 2, 4, 8, 20, 50; up to 8 by `multistep`,
too. Of all strengths and samplers of a run the best by FID is its row, and beside it the best of those that keep the
edges as well as the first run does: no rival is held to a strength that is good for one measure alone. Measures:
FID and KID of the results to the photographs (without --inception: sliced Wasserstein distance), edge F1 against the
input's edges, RMSE to the photograph, diversity between seeds, LPIPS with --lpips. Every result is a file, made once;
--for SECONDS ends a call early. Writes results.json, README.md and sheets.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import anisodiff
from anisodiff.data import open_dataset
from anisodiff.editing import edit, from_cartoon, read_paint, t_of_strength
from anisodiff.generation import Generator, load
from anisodiff.io.grids import save_grid
from anisodiff.io.images import to_bytes
from anisodiff.io.records import write_json
from anisodiff.metrics import (
    ImageStatistics,
    diversity,
    edge_f1,
    evaluate,
    image_set,
    image_statistics,
    inception,
    no_network,
)
from anisodiff.metrics.paired import rms_distance
from anisodiff.notation import setting
from anisodiff.processes.presets import preset
from anisodiff.runtime.devices import pick_device

STRENGTHS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
FEW = 8
"""NFE up to which `multistep` is tried beside the default sampler, which adds noise."""
RUNS = ("cartoon", "cartoon-3", "blur", "ve", "ve-conditional")
MORE = ("cartoon-near", "cartoon-0.1", "cartoon-0.3", "cartoon-late")
"""These are trained only where --runs names them."""
KINDS = ("perona-malik", "bilateral", "median", "strokes", "flat")
SHOWN = 6


@dataclass(frozen=True)
class Run:
    """A model of the study."""

    name: str
    process: dict[str, Any]
    starts: tuple[float | None, ...]
    """SDEdit strengths; None: from the cartoon as it is, or from noise where the network sees it."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Of its training alone."""
    power: int = 2
    """Of ∫α1 ∝ t^power, for `cartoon`."""

    def process_at(self, size: int) -> dict[str, Any]:
        """The process for images of ``size`` pixels."""
        if self.power == 2:
            return self.process
        own = {key: value for key, value in self.process.items() if key != "preset"}
        grown = str(preset("cartoon", size, **own)["diffusivity"]).replace("r=2", f"r={self.power}")
        return {**self.process, "diffusivity": grown}


def runs(options: argparse.Namespace) -> list[Run]:
    """The models of ``--runs``, in this order. The first one keeps images aside for all."""
    smoothing = options.smoothing
    condition = f"perona-malik(smoothing={smoothing:g})"
    cartoon = {"preset": "cartoon", "smoothing": smoothing, "sigma_end": 0.03}
    every = [
        Run("cartoon", cartoon, (None,)),
        Run("cartoon-3", {**cartoon, "smoothing": 0.3 * smoothing}, (None,)),
        Run("blur", {**cartoon, "drift_anisotropy": "infinite"}, (None,)),
        Run("ve", {"preset": "ve"}, tuple(options.strengths)),
        Run("ve-conditional", {"preset": "ve", "condition": condition}, (None, *options.strengths)),
        Run("cartoon-near", cartoon, (None,), {"level_mean": -2.0}),
        Run("cartoon-0.1", {**cartoon, "sigma_end": 0.1}, (None,)),
        Run("cartoon-0.3", {**cartoon, "sigma_end": 0.3}, (None,)),
        Run("cartoon-late", {**cartoon, "sigma_end": 0.1}, (None,), power=4),
    ]
    return [run for run in every if run.name in options.runs]


def inputs(options: argparse.Namespace) -> dict[str, str]:
    """Kinds of input, and how each is painted."""
    every = {
        "perona-malik": f"perona-malik(smoothing={options.smoothing:g})",
        "bilateral": "bilateral(radius=3, space=2, color=0.1)",
        "median": "median(radius=2)",
        "strokes": "strokes(colors=8)",
        "flat": "flat(colors=8, area=16)",
    }
    return {kind: every[kind] for kind in options.kinds}


@dataclass
class Study:
    """Everything of one output folder; each part is made where it is missing."""

    options: argparse.Namespace
    ends: float

    @property
    def out(self) -> Path:
        return Path(self.options.out)

    @property
    def first(self) -> Path:
        """The run that keeps images aside, for all."""
        return self.out / "runs" / runs(self.options)[0].name

    def on_time(self) -> bool:
        return time.monotonic() < self.ends

    # -- training

    def train(self, run: Run) -> bool:
        """Train a run to its end; whether it is there."""
        folder, first = self.out / "runs" / run.name, self.first
        here = folder.exists() and any(folder.iterdir())
        data = None if here else (self.options.data if folder == first else first / "data")
        cut = {} if here or folder != first else {"holdout": str(self.options.holdout)}
        keys: dict[str, Any] = {}
        if not here:
            size = 0 if run.power == 2 else max(open_dataset(data).size)
            keys = {"images": self.options.images, "process": run.process_at(size), **self.options.keys, **run.keys}
            keys["seed"] = self.options.seed
        model = anisodiff.train(
            data, folder, device=self.options.device, stop=lambda: not self.on_time(), **cut, **keys
        )
        return model.outcome is None or model.outcome.finished

    # -- inputs

    @cached_property
    def photos(self) -> Tensor:
        """Held-out photographs, [N, C, H, W] in [0, 1]."""
        held = open_dataset(self.first / "heldout")
        return held.first(min(self.options.n, len(held)))

    @cached_property
    def paintings(self) -> dict[str, Tensor]:
        """The inputs of every kind, as bytes would have them."""
        found = {}
        for kind, text in inputs(self.options).items():
            path = self.out / "inputs" / f"{kind}.npz"
            if not path.is_file():
                paint = read_paint(text)
                save(path, torch.stack([paint(x) for x in self.photos]))
            found[kind] = read(path)
        return found

    # -- edits

    def items(self) -> Iterator[tuple[Run, str, int, float | None, str]]:
        for run in runs(self.options):
            for kind in inputs(self.options):
                for nfe in self.options.nfe:
                    for start in run.starts:
                        for sampler in ("auto", "multistep") if nfe <= FEW else ("auto",):
                            yield run, kind, nfe, start, sampler

    def file(self, run: str, kind: str, nfe: int, start: float | None, sampler: str) -> Path:
        where = "" if start is None else f"-{start:g}"
        return self.out / "edits" / f"{run}-{kind}-{nfe}{where}-{sampler}"

    def edit(
        self, generator: Generator, kind: str, nfe: int, start: float | None, sampler: str
    ) -> tuple[Tensor, int] | None:
        """Results [seeds, N, C, H, W] and the NFE spent; None where this model needs more NFE."""
        paintings, made = self.paintings[kind], []
        t = generator.process.smoothing_end
        if start is not None:
            t = t_of_strength(generator.model, start, t_min=generator.plan.config.t_min)
        try:
            spent = generator.reverse_process(t=t, steps=nfe, sampler=sampler).nfe
        except ValueError:
            return None
        given: dict[str, Any] = {"steps": nfe, "sampler": sampler}
        for seed in range(self.options.candidates):
            seeds = range(seed * 10**6, seed * 10**6 + len(paintings))
            if start is None:
                made.append(from_cartoon(generator, paintings, seeds=seeds, **given))
            elif generator.process.conditional:
                made.append(from_cartoon(generator, paintings, seeds=seeds, t=t, **given))
            else:
                made.append(edit(generator, paintings, seeds=seeds, t=t, **given))
        return torch.stack(made).as_subclass(Tensor), spent

    def make(self) -> bool:
        """Edit and measure what is missing; whether all is there."""
        loaded: dict[str, Generator] = {}
        for kind, painting in self.paintings.items():
            for name, images in (("input", painting), ("photograph", self.photos)):
                path = self.out / "edits" / f"{name}-{kind}.json"
                if not path.is_file():
                    facts: dict[str, Any] = {"run": name, "kind": kind, "asked": 0, "nfe": 0, "strength": None}
                    facts["sampler"] = "none"
                    write_json(path, {**facts, **self.measure(kind, torch.stack([images, images]))})
        for run, kind, nfe, start, sampler in self.items():
            path = self.file(run.name, kind, nfe, start, sampler)
            if path.with_suffix(path.suffix + ".json").is_file():
                continue
            if not self.on_time():
                return False
            if run.name not in loaded:
                loaded = {run.name: load(self.out / "runs" / run.name, self.options.device)}
            found = self.edit(loaded[run.name], kind, nfe, start, sampler)
            facts = {"run": run.name, "kind": kind, "asked": nfe, "strength": start, "sampler": sampler}
            if found is None:
                facts["refused"] = True
            else:
                save(path.with_suffix(path.suffix + ".npz"), found[0][0, :SHOWN])
                facts |= {"nfe": found[1], "checkpoint": loaded[run.name].origin.model}
                facts |= self.measure(kind, found[0])
            write_json(path.with_suffix(path.suffix + ".json"), facts)
            print(path.name, {k: round(v, 4) for k, v in facts.items() if isinstance(v, float)}, flush=True)
        return True

    # -- measures

    @cached_property
    def network(self) -> Any:
        if self.options.inception is None:
            return None
        return inception(self.options.inception, device=pick_device(self.options.device))

    @cached_property
    def perceptual(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        if self.options.lpips is None:
            return None
        from anisodiff.metrics.lpips import LPIPS  # type: ignore[import-not-found, unused-ignore]

        found: Callable[[Tensor, Tensor], Tensor] = LPIPS(self.options.lpips)
        return found

    @cached_property
    def reference(self) -> ImageStatistics:
        """Features of the photographs, computed once."""
        network = self.network or no_network("cpu")
        return image_statistics(image_set(to_bytes(self.photos), name="photographs"), network)

    def measure(self, kind: str, results: Tensor) -> dict[str, float]:
        first, photos = results[0], self.photos
        names = ("fid", "kid") if self.network is not None else ("sliced", "spectrum")
        made = image_set(to_bytes(first), name="results")
        report = evaluate(made, self.reference, network=self.network, metrics=names)
        found = {value.name: value.value for value in report.values}
        found["edge_f1"] = float(edge_f1(first, self.paintings[kind]).mean())
        found["rmse_photo"] = float(rms_distance(first, photos).mean())
        found["rmse_input"] = float(rms_distance(first, self.paintings[kind]).mean())
        found["diversity"] = diversity(results)
        if self.perceptual is not None:
            found["lpips"] = float(self.perceptual(first, photos).mean())
            found["lpips_diversity"] = diversity(results, self.perceptual)
        return found

    # -- the page

    def page(self) -> None:
        rows = [json.loads(path.read_text()) for path in sorted((self.out / "edits").glob("*.json"))]
        write_json(self.out / "results.json", {"protocol": self.protocol(), "rows": rows})
        rank = "fid" if self.network is not None else "sliced_wasserstein"
        shown = [rank, "edge_f1", "diversity", "rmse_photo"] + (["lpips"] if self.options.lpips else [])
        lines = ["# Structure → texture", "", *(f"- {k}: {v}" for k, v in self.protocol().items()), ""]
        lines.append(f"Of each run the strength and sampler that are best by {rank}; 'edges kept': the best of those")
        lines += [f"whose edge_f1 is no less than that of `{self.first.name}` with the same NFE.", ""]
        for kind in inputs(self.options):
            lines += [f"## {kind}", "", "| NFE | run | strength | sampler | " + " | ".join(shown) + " |"]
            lines.append("|---" * (4 + len(shown)) + "|")
            lines += [_line(name, _best(rows, name, kind, 0, rank), 0, shown) for name in ("input", "photograph")]
            for nfe in self.options.nfe:
                lines += self._lines(rows, kind, nfe, rank, shown)
            lines.append("")
            self.sheet(kind, rows, rank)
        (self.out / "README.md").write_text("\n".join(lines))

    def _lines(self, rows: list[dict[str, Any]], kind: str, nfe: int, rank: str, shown: list[str]) -> Iterator[str]:
        own = _best(rows, self.first.name, kind, nfe, rank)
        for run in runs(self.options):
            yield _line(run.name, _best(rows, run.name, kind, nfe, rank), nfe, shown)
            if own is not None and len(run.starts) > 1:
                kept = _best(rows, run.name, kind, nfe, rank, own["edge_f1"])
                yield _line(f"{run.name}, edges kept", kept, nfe, shown)

    def sheet(self, kind: str, rows: list[dict[str, Any]], rank: str) -> None:
        """Rows: photograph, input, and each run's results with the NFE nearest to 8."""
        nfe = min(self.options.nfe, key=lambda n: abs(n - 8))
        columns = [self.photos[:SHOWN], self.paintings[kind][:SHOWN]]
        for run in runs(self.options):
            best = _best(rows, run.name, kind, nfe, rank)
            if best is not None:
                path = self.file(run.name, kind, nfe, best["strength"], best["sampler"])
                columns.append(read(path.with_suffix(path.suffix + ".npz")))
        save_grid(torch.cat(columns), self.out / f"{kind}.png", columns=len(columns[0]))

    def protocol(self) -> dict[str, Any]:
        o = self.options
        return {
            "data": Path(o.data).name, "photographs": len(self.photos), "seeds per input": o.candidates,
            "images seen": o.images, "training seed": o.seed, "smoothing": o.smoothing,
            "features": "none" if self.network is None else self.network.name,
            "edges": "contrast 0.15, tolerance 1 pixel",
        }  # fmt: skip


def _best(
    rows: list[dict[str, Any]], run: str, kind: str, nfe: int, rank: str, edges: float = 0.0
) -> dict[str, Any] | None:
    """The least by ``rank`` of those that keep the edges at least so well."""
    own = [r for r in rows if (r["run"], r["kind"], r["asked"]) == (run, kind, nfe) and rank in r]
    return min((r for r in own if r["edge_f1"] >= edges), key=lambda r: r[rank], default=None)


def _line(name: str, row: dict[str, Any] | None, nfe: int, shown: list[str]) -> str:
    if row is None:
        return f"| {nfe} | {name} | – | – | " + " | ".join("–" for _ in shown) + " |"
    strength = "–" if row["strength"] is None else f"{row['strength']:g}"
    cells = " | ".join(f"{row[k]:.4g}" for k in shown)
    return f"| {row['nfe']} | {name} | {strength} | {row['sampler']} | {cells} |"


def save(path: Path, images: Tensor) -> None:
    """Bytes of images in [0, 1], whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez(part, images=to_bytes(images).cpu().numpy())
    part.replace(path)


def read(path: Path) -> Tensor:
    with np.load(path) as held:
        return torch.from_numpy(held["images"]).float() / 255


def tiny(options: argparse.Namespace) -> None:
    """Settings and drawings of 16² for a trial on a CPU."""
    options.keys = {
        "network": {"name": "small", "nf": 8, "multipliers": [1, 1], "blocks": 1}, "batch": 8, "calibration": 16,
        "images": 40, "sample_every": 0,
    }  # fmt: skip
    options.images, options.n, options.holdout, options.smoothing = 40, 8, 8, 4.0
    options.nfe = [2, 10]
    if options.strengths is STRENGTHS:
        options.strengths = (0.3, 0.6)
    rng = np.random.default_rng(0)
    pictures = np.zeros((48, 16, 16, 3))
    for picture in pictures:
        picture[:] = rng.uniform(0.2, 0.8, 3)
        for _ in range(3):
            (top, left), side = rng.integers(0, 10, 2), rng.integers(4, 9)
            picture[top : top + side, left : left + side] = rng.uniform(0, 1, 3)
        picture += rng.normal(0, 0.04, picture.shape)
    options.data = Path(options.out) / "drawings.npy"
    options.data.parent.mkdir(parents=True, exist_ok=True)
    np.save(options.data, (255 * pictures.clip(0, 1)).astype(np.uint8))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--data", type=Path, help="photographs: a folder, zip or prepared dataset")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--images", type=int, default=5_120_000, help="seen by each run")
    words.add_argument("--n", type=int, default=2000, help="held-out photographs that are edited, at most")
    words.add_argument("--holdout", default="10%", help="as of train")
    words.add_argument("--candidates", type=int, default=2, help="seeds of each edit")
    words.add_argument("--seed", type=int, default=0, help="of training")
    words.add_argument("--smoothing", type=float, default=10.0, help="∫α1 of the cartoons, in pixels²; 40 at 64²")
    words.add_argument("--nfe", type=int, nargs="+", default=[2, 4, 8, 20, 50])
    words.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of input")
    words.add_argument("--runs", nargs="+", choices=(*RUNS, *MORE), default=RUNS, help="models")
    words.add_argument("--strengths", type=float, nargs="+", default=STRENGTHS, help="of VE-SDEdit")
    words.add_argument("--set", nargs="*", default=[], help="KEY=VALUE of all trainings")
    words.add_argument("--inception", type=Path, help="Inception's weights, for FID and KID")
    words.add_argument("--lpips", type=Path, help="LPIPS weights")
    words.add_argument("--for", dest="seconds", type=float, default=float("inf"), help="seconds of this call")
    words.add_argument("--device", default="auto")
    words.add_argument("--tiny", action="store_true")
    options = words.parse_args()
    options.keys = {key: setting(value) for key, _, value in (text.partition("=") for text in options.set)}
    if options.tiny:
        tiny(options)
    if options.data is None:
        words.error("--data: give photographs, or --tiny")
    _check_same(options)
    study = Study(options, time.monotonic() + options.seconds)
    for run in runs(options):
        if not (study.on_time() and study.train(run)):
            sys.exit("time is up: the same command continues")
    whole = study.make()
    study.page()
    print(f"wrote {options.out / 'README.md'}" + ("" if whole else "; time is up: the same command continues"))


def _check_same(options: argparse.Namespace) -> None:
    """Refuse to continue a study with other settings."""
    own = {k: str(v) for k, v in vars(options).items() if k not in ("seconds", "device", "out", "inception", "lpips")}
    code = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    path = options.out / "settings.json"
    if path.is_file() and json.loads(path.read_text())["code"] != code:
        sys.exit(f"{options.out} holds a study with other settings ({path}): choose another --out")
    write_json(path, {**own, "code": code})


if __name__ == "__main__":
    main()
