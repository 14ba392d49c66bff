"""Finished images joined into one file: zip, npz, or a grid to look at.

The file is made from the parts at the end, whole or not at all; the same images give the same bytes.
"""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from anisodiff.generation.pictures import save_grid
from anisodiff.generation.protocol import FILES, NAME
from anisodiff.generation.store import Store
from anisodiff.io.atomic import replacing

Join = Callable[[Store, Sequence[int], Mapping[str, Any], Path], None]


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))  # no clock in the bytes


def _zip(store: Store, seeds: Sequence[int], protocol: Mapping[str, Any], out: Path) -> None:
    """SEED.png in ascending order, and the protocol."""
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for seed in seeds:
            archive.writestr(_member(store.path(seed).name), store.path(seed).read_bytes())
        archive.writestr(_member(NAME), json.dumps(protocol, indent=1, ensure_ascii=False))


def _npz(store: Store, seeds: Sequence[int], protocol: Mapping[str, Any], out: Path) -> None:
    """``images`` uint8 [N, H, W, C] and ``seeds`` int64 [N]; one image in memory at a time."""
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with archive.open(_member("images.npy"), "w", force_zip64=True) as stream:
            shape = (len(seeds), *store.get(seeds[0]).shape)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for seed in seeds:
                pixels = store.get(seed)
                if pixels.shape != shape[1:]:
                    raise ValueError(
                        f"{store.path(seed)} is {pixels.shape}, expected {shape[1:]}: remove it, run again"
                    )
                stream.write(pixels.tobytes())
        with archive.open(_member("seeds.npy"), "w") as stream:
            np.lib.format.write_array(stream, np.array(seeds, dtype=np.int64), allow_pickle=False)


def _grid(store: Store, seeds: Sequence[int], protocol: Mapping[str, Any], out: Path) -> None:
    save_grid([store.get(seed) for seed in seeds], out)


JOINS: Mapping[str, Join] = MappingProxyType(dict(zip(FILES, (_zip, _npz, _grid))))
"""By the suffix of the file; a folder is never joined."""
