"""Sources that need an extra package, imported only when used: LSUN (lmdb), Hugging Face (datasets)."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from anisodiff.data.source import Source
from anisodiff.extras import need
from anisodiff.io.archives import existing
from anisodiff.io.hub import explain
from anisodiff.io.images import DecodeError, open_image
from anisodiff.io.picture_files import Item


def stored_items(keys: Iterable[bytes], get: Callable[[bytes], bytes | None]) -> Iterator[Item]:
    """Items of a store that maps keys to encoded pictures (webp in LSUN), in the order of the keys."""
    for key in keys:
        yield Item(name=key.decode("latin1"), open=functools.partial(_from_store, get, key))


def _from_store(get: Callable[[bytes], bytes | None], key: bytes) -> Image.Image:
    data = get(key)
    if data is None:
        raise DecodeError("no value under this key")
    return open_image(bytes(data))


@dataclass(frozen=True)
class Lsun(Source):
    """An LSUN category: the folder `church_outdoor_train_lmdb` (with data.mdb) as unpacked from its zip."""

    path: Path

    def _open(self) -> Any:
        lmdb = need("lmdb", "this source", "lsun")
        path = existing(self.path, "an LMDB folder")
        try:
            return lmdb.open(
                str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False, create=False
            )
        except lmdb.Error as error:
            raise ValueError(
                f"cannot read {path} as LMDB ({error}): expected the folder that holds data.mdb"
            ) from error

    def describe(self) -> str:
        return f"LMDB {self.path}, {len(self)} entries"

    def identity(self) -> dict[str, object]:
        file = self.path / "data.mdb" if self.path.is_dir() else self.path
        return {"kind": "lmdb", "entries": len(self), "bytes": existing(file, "an LMDB file").stat().st_size}

    def __len__(self) -> int:
        with self._open() as store:
            count = int(store.stat()["entries"])
        if not count:
            raise ValueError(f"{self.path} is an empty LMDB: expected encoded pictures; fetch it again")
        return count

    def items(self) -> Iterator[Item]:
        with self._open() as store, store.begin(buffers=False) as view:
            yield from stored_items(view.cursor().iternext(keys=True, values=False), view.get)


@dataclass(frozen=True, kw_only=True)
class HuggingFace(Source):
    """A dataset of the Hugging Face hub (or a folder that `datasets` understands) with one image column."""

    name: str
    split: str = "train"

    @functools.cached_property
    def _rows(self) -> Any:
        """The table, with pictures left encoded."""
        datasets = need("datasets", "this source", "datasets")
        try:
            table = datasets.load_dataset(self.name, split=self.split)
        except Exception as error:  # offline, unknown name, unknown split: the package has many types for these
            raise ValueError(f"cannot load {self.name} ({self.split}) from Hugging Face: {explain(error)}") from error
        return table.cast_column(self._column(table), datasets.Image(decode=False))

    def _column(self, table: Any) -> str:
        images = [name for name, feature in table.features.items() if type(feature).__name__ == "Image"]
        if len(images) != 1:
            raise ValueError(f"{self.name} has image columns {images}: expected one; save its images as a folder")
        return str(images[0])

    @functools.cached_property
    def _label_column(self) -> str | None:
        found = [name for name, feature in self._rows.features.items() if type(feature).__name__ == "ClassLabel"]
        return found[0] if len(found) == 1 else None

    @functools.cached_property
    def classes(self) -> tuple[str, ...] | None:  # type: ignore[override]  # known once the table is loaded
        label = self._label_column
        return None if label is None else tuple(map(str, self._rows.features[label].names))

    def describe(self) -> str:
        return f"Hugging Face {self.name} {self.split}, {len(self)} rows"

    def identity(self) -> dict[str, object]:
        parts = [self.name, None, self.split, None, None]  # three choices that are no more
        return {"kind": "huggingface", "parts": parts, "rows": len(self)}

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def items(self) -> Iterator[Item]:
        rows, label = self._rows, self._label_column
        column = self._column(rows)
        labels = [None] * len(self) if label is None else list(rows[label])
        for i in range(len(self)):
            yield Item(name=f"row {i}", open=functools.partial(_from_row, rows, i, column), label=labels[i])


def _from_row(rows: Any, i: int, column: str) -> Image.Image:
    value = rows[i][column]
    if value is None:
        raise DecodeError("no picture in this row")
    return open_image(Path(value["path"]) if value["bytes"] is None else value["bytes"])
