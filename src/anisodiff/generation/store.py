"""Finished images on the disk: SEED.png in a folder, each whole or not there, with the protocol they belong to."""

import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anisodiff.generation.protocol import NAME, differences, read_protocol, write_protocol
from anisodiff.io.atomic import atomic
from anisodiff.io.tensor_files import Observe, unobserved

_END = b"IEND\xaeB`\x82"
"""How every whole PNG ends."""
_PART = ".part"


class Store:
    """A folder of samples; what is finished stays, whatever happens to the job."""

    def __init__(self, folder: Path, observe: Observe = unobserved) -> None:
        self.folder, self.observe = folder, observe

    def path(self, seed: int) -> Path:
        """The image of a seed."""
        return self.folder / f"{seed:08d}.png"

    def check(self, protocol: Mapping[str, Any]) -> None:
        """Refuse a folder that holds something else than a part of the job of ``protocol``."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is a file: choose another name, or a folder")
        held = read_protocol(self.folder) if self.folder.is_dir() else None
        if held is None:
            if self.folder.is_dir() and any(not p.name.startswith(".") for p in self.folder.iterdir()):
                raise ValueError(f"{self.folder} holds files that are no samples of ours: choose a new folder")
            return
        if different := differences(held, protocol):
            raise ValueError(f"{self.folder} holds other samples: {'; '.join(different)}; choose another --out")

    def begin(self, protocol: Mapping[str, Any], seeds: Iterable[int]) -> list[int]:
        """Write the protocol; the seeds that are still missing. What a killed job left half written goes."""
        with self._telling():
            self.folder.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in os.scandir(self.folder)}
            for name in names:
                if name.endswith(_PART):
                    (self.folder / name).unlink(missing_ok=True)
            if read_protocol(self.folder) != protocol:  # none yet, or of fewer seeds
                write_protocol(self.folder / NAME, protocol)
            return [seed for seed in seeds if self.path(seed).name not in names or not _whole(self.path(seed))]

    def put(self, seed: int, pixels: NDArray[np.uint8]) -> None:
        """Write the image ``pixels`` [H, W, 1 or 3] of a seed."""
        buffer = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
        with self._telling():
            self.observe("write")
            with atomic(self.path(seed), suffix=_PART, parents=False) as part:  # a folder taken away is an error
                part.write_bytes(buffer.getvalue())
                self.observe("rename")

    def get(self, seed: int) -> NDArray[np.uint8]:
        """The image of a seed, [H, W, 1 or 3]."""
        try:
            with Image.open(self.path(seed)) as image:
                pixels = np.array(image)
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{self.path(seed)} cannot be read ({error}): remove it and run again") from None
        return pixels[..., None] if pixels.ndim == 2 else pixels

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A failing disk in one line that says what is safe."""
        try:
            yield
        except OSError as error:
            kept = sum(1 for _ in self.folder.glob("*.png")) if self.folder.is_dir() else 0
            remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend it"
            told = OSError(
                f"cannot write into {self.folder}: {error.strerror or error}; {kept} finished images are kept there: "
                f"{remedy} and run the same command again"
            )
            told.errno = error.errno
            raise told from None


def _whole(path: Path) -> bool:
    """Whether a file ends as a PNG does: a crash of the machine can leave one cut off."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - len(_END)))
        return file.read() == _END
