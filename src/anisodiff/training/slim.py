"""A checkpoint without its state, weights in half precision: all that sampling needs, an eighth of the size.

python -m anisodiff.training.slim RUN FOLDER [--dtype float16|bfloat16|float32|int8]

With int8 matrices and convolutions have 8 bits and a scale for each output (`io.eight_bits`): half of that again.

The tables of the preconditioning and the prior keep their precision; of where the data lay only the last folder's
name is kept. A run can start from it (``--from``), with new moments for Adam, but not continue.
"""

import argparse
from pathlib import Path

import torch

from anisodiff.io.atomic import without_folders
from anisodiff.io.checkpoint import Checkpoint, Snapshot, Store, find, newest
from anisodiff.io.eight_bits import quantized
from anisodiff.runtime.errors import in_one_line

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}


def slim(source: str | Path, target: str | Path, dtype: torch.dtype = torch.float16) -> Checkpoint:
    """Write the model of a checkpoint (or a run's newest) to the new run folder ``target``."""
    saved, target = find(source), Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is not empty: choose a new folder")
    model = saved.tensors("model")
    weights = {name: x for name, x in model.items() if name.startswith("network.") and x.is_floating_point()}
    if dtype == torch.int8:
        model |= quantized(weights)
    rest = torch.float16 if dtype == torch.int8 else dtype
    for name in weights:
        if model[name].is_floating_point():
            model[name] = model[name].to(rest)
            if not bool(model[name].isfinite().all()):
                raise ValueError(f"{name} does not fit into {rest}: take bfloat16")
    prior = saved.tensors("prior") if saved.has("prior") else None
    meta = {**saved.meta, "data": {**saved.meta["data"], "source": without_folders(saved.meta["data"]["source"])}}
    Store(target).save(Snapshot(step=saved.step, meta=meta, model=model, state={}, prior=prior))
    written = newest(target)
    assert written is not None
    return written


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float16")
    args = parser.parse_args(arguments)
    with in_one_line():
        print(f"wrote {slim(args.source, args.target, DTYPES[args.dtype]).path}")


if __name__ == "__main__":
    main()
