"""How many images per second the loader delivers to a device, as a markdown row.

python benchmarks/loader.py --device cuda --size 32 --n 50000 --batch 128
python benchmarks/loader.py --device cuda --size 256 --n 20000 --batch 64 --stream
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from anisodiff.data import Dataset, Loader, prepare


def random_dataset(folder: Path, size: int, count: int) -> Dataset:
    """Random RGB images of the given size, prepared in a folder."""
    rng = np.random.default_rng(0)
    file = folder / "raw.npy"
    raw = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(count, 3, size, size))
    for i in range(0, count, 256):
        raw[i : i + 256] = rng.integers(0, 256, raw[i : i + 256].shape, dtype=np.uint8)
    raw.flush()
    dataset = prepare(file, folder / "prepared", size=size, channels=3).dataset
    file.unlink()
    return dataset


def images_per_second(loader: Loader, seconds: float) -> float:
    """Delivered images per second over at least so many seconds, the first batches not counted."""

    def wait() -> None:
        if loader.device.type == "cuda":
            torch.cuda.synchronize(loader.device)

    batches = loader.iterate(0)
    for _ in range(5):
        next(batches)
    wait()
    start, images = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(5):
            images += len(next(batches)[0])
        wait()
    return images / (time.perf_counter() - start)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--n", type=int, default=50_000, help="number of images")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--stream", action="store_true", help="gather from the memory map even where the set would fit"
    )
    parser.add_argument("--folder", type=Path, help="where to write the images (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        loader = Loader(
            random_dataset(Path(folder), args.size, args.n),
            batch=args.batch,
            seed=0,
            device=args.device,
            resident_bytes=0 if args.stream else 8 << 30,
            threads=args.threads,
        )
        rate = images_per_second(loader, args.seconds)
    cuda = loader.device.type == "cuda"
    row = {
        "device": torch.cuda.get_device_name(loader.device) if cuda else "cpu",
        "size": f"{args.size}²",
        "images": f"{args.n:,}",
        "batch": args.batch,
        "held": "on the device" if loader.resident else f"memory map, {args.threads} threads",
        "images/s": f"{rate:,.0f}",
        "MB/s": f"{rate * 3 * args.size**2 / 1e6:,.0f}",
    }
    if args.json:
        print(json.dumps(row | {"images/s": rate}))
        return
    print("| " + " | ".join(row) + " |")
    print("|" + "---|" * len(row))
    print("| " + " | ".join(str(value) for value in row.values()) + " |")


if __name__ == "__main__":
    main()
