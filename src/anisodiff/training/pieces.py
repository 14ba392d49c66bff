"""A checkpoint cut into pieces of bounded size, and joined again: for places that take no large files.

    PIECES/pieces.json   every file's length and sha256, every piece's sha256, in order
    PIECES/000.piece …   all files of the checkpoint one after the other, cut every N MiB

python -m anisodiff.training.pieces export RUN PIECES [--mib 15]
python -m anisodiff.training.pieces join PIECES RUN
"""

import argparse
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from anisodiff.io import tensor_files as files
from anisodiff.io.checkpoint import Checkpoint, find, folder_of, read
from anisodiff.runtime.errors import in_one_line

FORMAT = "anisodiff pieces"
_BLOCK = 1 << 20


def export(source: str | Path, target: str | Path, mib: float = 15.0) -> list[Path]:
    """Cut a checkpoint (or a run's newest) into pieces of at most ``mib`` MiB in a new folder; the files written."""
    limit = int(mib * (1 << 20))
    if limit < 1:
        raise ValueError(f"pieces of {mib:g} MiB: expected more than 0")
    saved, target = find(source), Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is not empty: choose a new folder for the pieces")
    listed = {name: saved.path / name for name in sorted(_names(saved))}
    manifest: dict[str, Any] = {"format": FORMAT, "name": saved.path.name, "files": [], "pieces": []}
    manifest["files"] = [
        {"name": name, "bytes": path.stat().st_size, "sha256": files.sha256(path)} for name, path in listed.items()
    ]
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for number, piece in enumerate(_cut(_blocks(list(listed.values())), limit)):
        path = target / f"{number:03d}.piece"
        path.write_bytes(piece)
        manifest["pieces"].append({"name": path.name, "sha256": hashlib.sha256(piece).hexdigest()})
        written.append(path)
    files.put_json(target / "pieces.json", manifest)
    return [*written, target / "pieces.json"]


def join(source: str | Path, run: str | Path) -> Checkpoint:
    """Put pieces together as a checkpoint of ``run``, every checksum verified; ready to continue from."""
    source = Path(source)
    manifest = files.get_json(source / "pieces.json")
    name = str(manifest.get("name"))
    try:
        pieces = [(source / _plain(p["name"]), str(p["sha256"])) for p in manifest["pieces"]]
        entries = [(_plain(f["name"]), int(f["bytes"]), str(f["sha256"])) for f in manifest["files"]]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{source}/pieces.json is no list of pieces; export them again") from None
    if manifest.get("format") != FORMAT or not name.startswith("step-") or _plain(name) != name:
        raise ValueError(f"{source}/pieces.json is no list of pieces; export them again")
    target = folder_of(run) / name
    if target.exists():
        raise ValueError(f"{target} is already there: choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        stream = _cut_exactly(_verified(pieces), [length for _, length, _ in entries])
        for (relative, _, code), blocks in zip(entries, stream):
            path = partial / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for block in blocks:
                    file.write(block)
            if files.sha256(path) != code:
                raise ValueError(f"{relative}, joined from {source}, is not what was exported (checksum)")
        partial.chmod(0o755)
        read(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return read(target)


def _names(saved: Checkpoint) -> list[str]:
    return [path.relative_to(saved.path).as_posix() for path in saved.path.rglob("*") if path.is_file()]


def _plain(name: Any) -> str:
    """A relative path that stays below its folder."""
    path = PurePosixPath(str(name))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r} leads out of the folder")
    return str(path)


def _blocks(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block


def _cut(blocks: Iterator[bytes], limit: int) -> Iterator[bytes]:
    """The same bytes in pieces of ``limit``, the last one shorter."""
    buffer = bytearray()
    for block in blocks:
        buffer += block
        while len(buffer) >= limit:
            yield bytes(buffer[:limit])
            del buffer[:limit]
    if buffer:
        yield bytes(buffer)


def _verified(pieces: list[tuple[Path, str]]) -> Iterator[bytes]:
    for path, code in pieces:
        if not path.is_file():
            raise ValueError(f"piece {path} is missing")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != code:
            raise ValueError(f"piece {path} is not what was exported (checksum)")
        yield data


def _cut_exactly(blocks: Iterator[bytes], lengths: list[int]) -> Iterator[list[bytes]]:
    """The same bytes, ``lengths`` at a time."""
    rest = b""
    for length in lengths:
        parts = []
        while length:
            rest = rest or next(blocks, b"")
            if not rest:
                raise ValueError("the pieces end too early; export them again")
            parts.append(rest[:length])
            rest = rest[len(parts[-1]) :]
            length -= len(parts[-1])
        yield parts


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["export", "join"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--mib", type=float, default=15.0, help="largest piece")
    args = parser.parse_args(arguments)
    with in_one_line():
        if args.what == "export":
            print(f"wrote {len(export(args.source, args.target, args.mib)) - 1} pieces to {args.target}")
        else:
            print(f"joined {join(args.source, args.target).path}")


if __name__ == "__main__":
    main()
