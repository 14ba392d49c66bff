"""Where on the way back images go wrong: edges and power of images from forward states at several times.

    python benchmarks/way_back.py CHECKPOINT --images DATASET --samples 128 --evaluations 50 --times 2 1.2 0.9 0.6

States of the forward process at t are taken back to images; the first row starts from the Gaussian prior. What a row
has lost against the next was lost between their times, the prior's share is what the first has lost against t = T.
The steps of a row are those of the whole way that lie below its t. Distances of edges are those of `anisodiff
evaluate`, against other images of DATASET (a prepared one); the last row is what that many images have themselves.
"""

import argparse

import torch

import anisodiff
from anisodiff.data import open_dataset
from anisodiff.io.images import to_bytes
from anisodiff.metrics.edges import edge_distance, edge_statistics
from anisodiff.noise import KeyedNoise, combine
from flatness import powers


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--images", required=True)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--evaluations", type=int, default=50)
    parser.add_argument("--times", type=float, nargs="+", default=[2.0, 1.2, 0.9, 0.6])
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    generator = anisodiff.load(options.checkpoint, options.device)
    generator.use_balance(None, None)
    count = options.samples
    images = open_dataset(options.images).first(count + 4000)
    few, others = images[:count], images[count:]
    mean, seeds = others.mean((0, 2, 3)), range(count)
    known, power = edge_statistics(to_bytes(others)), powers(others, mean)
    print(f"{count} images, {options.evaluations} evaluations for the whole way; power by bands of |k/n|")

    def row(name: str, made: torch.Tensor) -> None:
        gap = edge_distance(edge_statistics(to_bytes(made)), known)
        shown = "  ".join(f"{x:.3f}" for x in (powers(made, mean) / power).tolist())
        edges = f"orientation {gap.orientation:5.2f}°  coherence {gap.coherence:.4f}  magnitude {gap.magnitude:.4f}"
        print(f"{name:>10}: {edges}  power {shown}", flush=True)

    whole = generator.route(steps=options.evaluations).times
    row("prior", generator.sample(count, steps=options.evaluations).cpu())
    for t in options.times:
        key = KeyedNoise(combine(1, torch.arange(count, device=generator.device)))
        when = torch.full((count,), t, dtype=torch.float64)
        states = generator.plan.objective.draw(few.to(generator.device), when, key).state
        steps = max(2, int((whole < t).sum()) + 1)
        row(f"t = {t:g}", generator.reverse(states, t, seeds=seeds, steps=steps).cpu())
    row("images", few)


if __name__ == "__main__":
    main()
