"""A folder of PNGs that a job may be killed in: each file is complete or absent, and the next call makes the rest.

Beside the pictures lies the record (`io.records`) of everything that fixes their pixels.
"""

import errno
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from anisodiff.io.atomic import atomic
from anisodiff.io.grids import Pixels
from anisodiff.io.images import DecodeError, decode, open_image, whole_png
from anisodiff.io.records import RecordKind, differences, write_json
from anisodiff.io.tensor_files import Observe, unobserved

PART = ".part"
"""Suffix of a file that is being written."""
Compare = Callable[[Mapping[str, Any], Mapping[str, Any]], list[str]]


class PictureFolder:
    """The pictures ``files`` of a job, in a folder with the record ``name``."""

    def __init__(
        self, path: Path, kind: RecordKind, name: str, files: Sequence[Path], observe: Observe = unobserved
    ) -> None:
        self.path, self.kind, self.name, self.files, self.observe = path, kind, name, files, observe

    def check(self, record: Mapping[str, Any], compare: Compare = differences) -> dict[str, Any] | None:
        """The record that is there; a folder that holds anything else than a part of this job is refused."""
        self.kind.check_folder(self.path, self.name)
        held = self.kind.read(self.path / self.name)
        if held is not None and (different := compare(held, record)):
            raise ValueError(
                f"{self.path} holds other {self.kind.noun}: {'; '.join(different)}; choose another --out"
            )
        return held

    def begin(self, record: Mapping[str, Any]) -> list[Path]:
        """Write the record, remove what a killed job left incomplete, and return the files still missing."""
        with self._disk_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            for part in self.path.rglob(f".*{PART}"):
                part.unlink(missing_ok=True)
            if self.kind.read(self.path / self.name) != record:
                write_json(self.path / self.name, record)
        return [file for file in self.files if not whole_png(file)]

    def write(self, file: Path, pixels: Pixels) -> None:
        """Write a picture [H, W, 1 or 3]; a removed folder is an error."""
        buffer = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
        with self._disk_errors():
            self.observe("write")
            if file.parent != self.path:
                file.parent.mkdir(exist_ok=True)
            with atomic(file, suffix=PART, parents=False) as part:
                part.write_bytes(buffer.getvalue())
                self.observe("rename")

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """An error of the disk as one line with the number of pictures that are safe."""
        try:
            yield
        except OSError as error:
            safe = sum(file.is_file() for file in self.files)
            remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "repair it"
            raised = OSError(
                f"cannot write into {self.path}: {error.strerror or error}; {safe} finished images are kept there: "
                f"{remedy} and run the same command again"
            )
            raised.errno = error.errno
            raise raised from None


def read_picture(file: Path) -> Pixels:
    """A picture of such a folder, [H, W, 1 or 3]."""
    try:
        pixels = np.array(decode(lambda: open_image(file)))
    except DecodeError as error:
        raise ValueError(f"{file} cannot be read ({error}): remove it and run again") from None
    return pixels[..., None] if pixels.ndim == 2 else pixels
