"""Editing: strokes from a photograph, SDEdit, a mask, and a sweep over strengths.

    python examples/05_editing.py --checkpoint cifar10-tiny --image photo.jpg

Without --checkpoint (a run, or cifar10-tiny, which ships with the package), a network is first trained for about
15 s on crops of one photograph: enough to try the functions, too little for good images. Writes editing.png (input,
strokes, results) and sweep.png (results at eight strengths).
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

import anisodiff
from anisodiff.data import prepare
from anisodiff.editing import edit, strength_of_t, strokes, sweep, t_of_strength
from anisodiff.editing.figures import comparison_figure, sweep_figure
from anisodiff.editing.inputs import read_pictures
from anisodiff.io.figures import save_figure
from anisodiff.io.images import sample_photo
from anisodiff.training import TrainConfig, train


def crops(count: int, size: int) -> torch.Tensor:
    photo, generator = sample_photo(4 * size), torch.Generator().manual_seed(0)
    corners = torch.randint(0, 3 * size + 1, (count, 2), generator=generator).tolist()
    return torch.stack([photo[:, y : y + size, x : x + size] for y, x in corners])


def trained(folder: Path, size: int, images: int) -> anisodiff.Generator:
    np.save(folder / "crops.npy", (crops(512, size) * 255).round().to(torch.uint8).numpy())
    dataset = prepare(folder / "crops.npy", folder / "data", size=size, channels=3).dataset
    network = {"name": "small", "nf": 16, "multipliers": [1, 2], "blocks": 1, "dropout": 0.0}
    config = TrainConfig(
        process="ve", network=network, size=size, images=images, batch=32, lr=1e-3, warm_up=2000, calibration=512,
        ema=["constant(0.99)"], checkpoint_every=0, sample_every=0,
    )  # fmt: skip
    train(config, dataset, folder / "run", track=())
    return anisodiff.load(folder / "run", "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", help="A run, or cifar10-tiny; without it a network is trained.")
    parser.add_argument("--image", type=Path, help="A photograph; without it the sample photograph.")
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--train", type=int, default=12_000, help="Images seen by the tiny network.")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        given = args.checkpoint
        generator = anisodiff.load(given) if given else trained(Path(folder), args.size, args.train)
    size = generator.size
    photo = sample_photo(size[0]) if args.image is None else read_pictures([args.image], 3, size)[0].photo
    painting = strokes(photo, colors=6)
    print(f"painting: {len(torch.unique(painting.flatten(1), dim=1).mT)} colors")

    found = sweep(generator, painting[None], seeds=range(4), steps=args.steps)
    s = found.strengths[4]  # in a real edit chosen by eye, in sweep.png
    t = t_of_strength(generator.model, s)
    print(f"chosen: strength {s:.2f}, t = {t:.3f} (strength at t: {strength_of_t(generator.model, t):.2f})")
    both = edit(generator, painting.expand(2, -1, -1, -1), seeds=[0, 1], t=t, steps=args.steps)
    mask = torch.zeros(size)
    mask[: size[0] // 2] = 1.0  # only the upper half
    half = edit(generator, painting[None], seeds=[0], t=t, steps=args.steps, mask=mask, repeats=2)[0]
    print(f"kept exactly below: {bool((half == painting)[:, size[0] // 2 :].all())}")
    titles = ["input", "strokes", "seed 0", "seed 1", "upper half"]
    save_figure(comparison_figure([[photo, painting, *both, half]], titles), "editing.png")
    save_figure(sweep_figure(found), "sweep.png")


if __name__ == "__main__":
    main()
