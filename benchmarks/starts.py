"""What explains the paper's numbers: where sampling starts, and how many samples are distinct.

    python benchmarks/starts.py starts MODEL --train TRAIN --test TEST --out OUT --inception FILE
    python benchmarks/starts.py repeats SAMPLES --train TRAIN --out OUT --inception FILE

`starts`: MODEL (of `ve`) samples from states at σ = 0.87, 2, 5 and 50 that were made from training images, from test
images, and from the Gaussian of such states: train − test is leakage, test − Gaussian is a legitimate gain;
`recovery` is the share of samples whose own source is the nearest, in pixels, of --gallery images; by chance it is
1/gallery.

`repeats`: the first R-th of the samples, once and R times over: what the metrics say of fewer samples than counted.
Where samples have the distribution and the number of the reference, both have coverage 1 − (R/(R+1))^k with k
neighbors: the chance that one of n/R samples is nearer than k of n real images. Recall of copies is 0 from R = k + 1
on: the k nearest neighbors of a sample are its own copies. Every row is a file in OUT; table.md has all. Without
--inception pixels are compared, in `repeats` means of 4×4. TRAIN, TEST and SAMPLES are prepared datasets, or an .npz
of pictures.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import anisodiff
from anisodiff.data import is_dataset, open_dataset
from anisodiff.generation import Generator
from anisodiff.io.images import to_bytes
from anisodiff.io.records import write_json
from anisodiff.metrics import evaluate, image_set, inception
from anisodiff.metrics.feature_metrics import kernel_distance, prdc
from anisodiff.metrics.features import FeatureNetwork, function_network
from anisodiff.metrics.frechet import frechet_distance, gaussian_statistics
from anisodiff.metrics.memorization import source_recovery
from anisodiff.noise import KeyedNoise, combine
from anisodiff.path_bound import noise_left
from anisodiff.priors import fit_gaussian
from anisodiff.runtime.devices import pick_device

SIGMAS, BATCH = (0.87, 2.0, 5.0, 50.0), 250


def time_of(generator: Generator, sigma: float) -> float:
    """Where the noise of a state has the standard deviation ``sigma``; T where it never has more."""
    t = torch.linspace(0, generator.process.T, 2001, dtype=torch.float64)[1:]
    level = torch.cat([noise_left(generator.model, part) for part in torch.split(t, 64)])
    return float(t[min(int(torch.searchsorted(level.cummax(0).values, sigma)), len(t) - 1)])


def pictures(path: Path, most: int) -> Tensor:
    """The first images, [N, C, H, W] in [0, 1]."""
    if is_dataset(path):
        return open_dataset(path).first(most)
    with np.load(path) as held:
        return torch.from_numpy(held["images"][:most]).permute(0, 3, 1, 2).float() / 255


def states(generator: Generator, kind: str, images: Tensor, t: float) -> Tensor:
    """States at ``t`` of images, or of the Gaussian with the mean and covariance of such states."""
    keys = torch.arange(len(images))
    parts = zip(torch.split(images, BATCH), torch.split(keys, BATCH))
    drawn = torch.cat([generator.process.draw(x, t, KeyedNoise(combine(71, key))) for x, key in parts])
    return fit_gaussian(drawn).draw(len(images), KeyedNoise(combine(72, keys))) if kind == "gaussian" else drawn


def features_of(options: argparse.Namespace) -> FeatureNetwork:
    if options.inception is None:
        return function_network("pixels", lambda images: avg_pool2d(images.float() / 255, 4).flatten(1))
    return inception(options.inception, device=pick_device(options.device))


def recovery(samples: Tensor, gallery: Tensor) -> float:
    """How often image j of the gallery is the nearest to sample j."""
    pixels = [to_bytes(x).flatten(1).double() for x in (samples, gallery)]
    return source_recovery(*pixels, torch.arange(len(samples))).rate


def measure(samples: Tensor, reference: Any, options: argparse.Namespace) -> dict[str, float]:
    network = None if options.inception is None else features_of(options)
    found = evaluate(image_set(samples, name="samples"), reference, network=network)
    return {value.name: value.value for value in found.values if isinstance(value.value, float)}


def starts(options: argparse.Namespace) -> None:
    generator = anisodiff.load(options.model, options.device)
    most = max(options.n, options.gallery)
    galleries = {"train": pictures(options.train, most), "test": pictures(options.test, most)}
    sets = {kind: images[: options.n] for kind, images in galleries.items()}
    sets["gaussian"] = sets["train"]
    reference = image_set(to_bytes(pictures(options.train, options.reference)), name="training images")
    for sigma in options.sigmas:
        t = time_of(generator, sigma)
        for kind, images in sets.items():
            path = options.out / f"start-{sigma:g}-{kind}.json"
            facts = {"sigma": sigma, "t": t, "start": kind, "samples": len(images), "steps": options.steps}
            facts |= {"sampler": options.sampler, "reference": reference.count}
            facts |= {"gallery": len(galleries[kind][: options.gallery])} if kind in galleries else {}
            if path.is_file():
                held = json.loads(path.read_text())
                if other := [f"{key} {held.get(key)}" for key, value in facts.items() if held.get(key) != value]:
                    raise SystemExit(f"{path} was made with {', '.join(other)}; choose another --out")
                continue
            begin = states(generator, kind, images, t)
            made = generator.reverse(
                begin, t, seeds=range(len(begin)), steps=options.steps, sampler=options.sampler
            ).as_subclass(Tensor)
            if kind in galleries:
                searched = min(len(made), options.gallery)
                facts["recovery"] = recovery(made[:searched], galleries[kind][: options.gallery])
            write_json(path, {**facts, **measure(to_bytes(made), reference, options)})
            print(f"wrote {path}", flush=True)


def repeats(options: argparse.Namespace) -> None:
    """Features are taken once; a sample that stands R times is its feature R times."""
    network = features_of(options)
    bytes_of = [to_bytes(pictures(Path(path), options.n)) for path in (options.train, options.model)]
    real, distinct = (torch.cat([network(part)[0] for part in torch.split(x, BATCH)]) for x in bytes_of)
    reference = gaussian_statistics(real)
    for times, copies in [(r, copies) for r in options.times for copies in sorted({1, r})]:
        samples = distinct[: len(distinct) // times].repeat(copies, 1)
        local = prdc(real, samples)
        kernel = kernel_distance(samples, real, generator=torch.Generator().manual_seed(0))
        facts = {"distinct": len(distinct) // times, "copies": copies, "reference": len(real)}
        facts |= {"fid": frechet_distance(gaussian_statistics(samples), reference), "kid": kernel.value}
        facts |= {"precision": local.precision, "recall": local.recall, "density": local.density}
        facts |= {"coverage": local.coverage, "coverage_expected": 1 - (times / (times + 1)) ** local.k}
        write_json(options.out / f"repeats-{times}-{copies}.json", facts)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("what", choices=("starts", "repeats"))
    words.add_argument("model", help="a model, or samples")
    words.add_argument("--train", type=Path, required=True)
    words.add_argument("--test", type=Path)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--n", type=int, default=10_000)
    words.add_argument("--steps", type=int, default=50, help="NFE")
    words.add_argument("--sampler", default="auto")
    words.add_argument("--reference", type=int, default=50_000, help="training images in the reference")
    words.add_argument("--gallery", type=int, default=10_000, help="images among which a source is searched")
    words.add_argument("--sigmas", type=float, nargs="+", default=SIGMAS)
    words.add_argument("--times", type=int, nargs="+", default=(1, 2, 4, 8), help="R of repeats")
    words.add_argument("--inception", type=Path)
    words.add_argument("--device", default="auto")
    options = words.parse_args()
    if options.what == "starts" and options.test is None:
        words.error("starts needs --test: images that were not trained on")
    options.out.mkdir(parents=True, exist_ok=True)
    (starts if options.what == "starts" else repeats)(options)
    rows = [json.loads(path.read_text()) for path in sorted(options.out.glob("*.json"))]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(keys) + " |", "|---" * len(keys) + "|"]
    for row in rows:
        cells = (f"{row[k]:.4g}" if isinstance(row.get(k), float) else str(row.get(k, "–")) for k in keys)
        lines.append("| " + " | ".join(cells) + " |")
    (options.out / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
