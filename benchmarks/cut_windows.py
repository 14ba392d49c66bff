"""A set of mixed sizes from photographs of one size: of each a random window, at 72 to 128 pixels a side.

    python benchmarks/cut_windows.py scenes-128.zip --folder train --out scenes.zip
    python benchmarks/cut_windows.py scenes-128.zip --folder test --out scenes-heldout.zip

The windows depend on the seed and on the name of the photograph alone.
"""

import argparse
import hashlib
import io
import random
import zipfile
from pathlib import Path

from PIL import Image


def window(name: str, width: int, height: int, low: int, high: int, seed: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the window of one photograph."""
    draw = random.Random(hashlib.sha256(f"{seed}:{name}".encode()).digest())
    sides = [draw.randint(min(low, side), min(high, side)) for side in (width, height)]
    left, top = draw.randint(0, width - sides[0]), draw.randint(0, height - sides[1])
    return left, top, left + sides[0], top + sides[1]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("photographs", type=Path, help="a zip of images")
    words.add_argument("--folder", default="", help="the folder in the zip; all, unless given")
    words.add_argument("--sides", type=int, nargs=2, default=(72, 128), metavar=("LOW", "HIGH"))
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--out", type=Path, required=True)
    options = words.parse_args()
    count = 0
    with zipfile.ZipFile(options.photographs) as photographs, zipfile.ZipFile(options.out, "w") as out:
        for name in sorted(photographs.namelist()):
            if not name.startswith(options.folder) or not name.endswith((".jpg", ".png")):
                continue
            photo = Image.open(io.BytesIO(photographs.read(name))).convert("RGB")
            cut = io.BytesIO()
            photo.crop(window(name, *photo.size, *options.sides, options.seed)).save(cut, "jpeg", quality=95)
            out.writestr(zipfile.ZipInfo(f"{Path(name).stem}.jpg"), cut.getvalue())
            count += 1
    print(f"wrote {options.out}: {count} windows")


if __name__ == "__main__":
    main()
