"""Best-case data for an edge-preserving process: a dataset painted image by image, in flat regions of few colors.

    python benchmarks/paint_dataset.py DATASET OUT.npy --paint "flat(colors=8)"
    anisodiff compare ve anisotropic-gentle cartoon --data OUT.npy --seeds 0,1 --out study

The kinds of painting are those of `anisodiff edit --paint`. DATASET is a prepared one.
"""

import argparse
from pathlib import Path

import numpy as np

from anisodiff.data import open_dataset
from anisodiff.editing import read_paint
from anisodiff.io.grids import to_pixels


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("dataset")
    words.add_argument("out", type=Path)
    words.add_argument("--paint", default="flat(colors=8)")
    words.add_argument("--images", type=int, help="the first so many; all, unless given")
    options = words.parse_args()
    data, paint = open_dataset(options.dataset), read_paint(options.paint, "--paint")
    photos = data.first(options.images or len(data))
    painted = np.concatenate([to_pixels(paint(photo)) for photo in photos])
    part = options.out.with_suffix(".part.npy")
    np.save(part, painted)
    part.replace(options.out)
    print(f"wrote {options.out}: {len(painted)} images by {paint}")


if __name__ == "__main__":
    main()
