"""Models on the Hugging Face Hub, ``hub:OWNER/NAME`` or ``hub:OWNER/NAME@REVISION``: folders like all others.

A name with this prefix that the user gives is the only thing that reaches for the Hub. Only the files that the
manifest lists are downloaded, into the cache of huggingface_hub, and are then checked as every checkpoint is.
"""

import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePath
from typing import TypeVar

from anisodiff.extras import need
from anisodiff.io.archives import LARGEST, one_line
from anisodiff.io.records import read_json
from anisodiff.io.schema import fields, require, table, text

T = TypeVar("T")
PREFIX = "hub:"
_REPOSITORY = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")
_LISTED = fields(files=table(text))
_MOST = 64
LARGEST_MODEL = 1 << 33
"""Bytes of all files that are downloaded of a model."""


def is_hub(path: str | Path) -> bool:
    """Whether a name is that of a model on the Hub."""
    return str(path).startswith(PREFIX)


def is_repository(name: str) -> bool:
    """Whether a name has the form OWNER/NAME of a repository on the Hub."""
    return _REPOSITORY.fullmatch(name) is not None


def fetch_files(name: str, files: Iterable[str], *, online: bool, remedy: str) -> Path:
    """The local folder of these files of the repository OWNER/NAME; ``online``: whether they may be downloaded."""
    hub = need("huggingface_hub", name, "hub")
    wanted = list(files)
    try:
        folder = Path(hub.snapshot_download(repo_id=name, allow_patterns=wanted, local_files_only=not online))
    except Exception as error:  # of huggingface_hub, of its HTTP client, of the disk
        why = explain(error) if online else "it has not been downloaded"
        raise ValueError(f"no {name} here ({why[:200]}); {remedy}") from error
    if missing := [file for file in wanted if not (folder / file).is_file()]:
        why = "the repository has none" if online else "it has not been downloaded"
        raise ValueError(f"no {missing[0]} of {name} here ({why}); {remedy}")
    return folder


def split(path: str | Path) -> tuple[str, str | None]:
    """OWNER/NAME and the revision, where one is given."""
    name, at, revision = str(path).replace("\\", "/").removeprefix(PREFIX).partition("@")
    if not _REPOSITORY.fullmatch(name) or (at and not revision):
        raise ValueError(f"got {str(path)!r}, expected hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
    return name, revision or None


def is_outside(name: str) -> bool:
    """Whether a name in a manifest leads out of its folder."""
    return PurePath(name).is_absolute() or ".." in PurePath(name).parts


def fetch(path: str | Path) -> Path:
    """The local folder of a model on the Hub; what is there already is not downloaded again."""
    name, revision = split(path)
    hub = need("huggingface_hub", str(path), "hub")

    def download(files: Collection[str], at: str | None, most: int) -> Path:
        failed: Exception | None = None
        try:
            about = hub.HfApi().model_info(name, revision=at, files_metadata=True)
        except Exception as error:  # offline, or none is there: what has been downloaded before will do
            failed = error
        else:
            sizes = {file.rfilename: file.size for file in about.siblings or [] if file.rfilename in files}
            if unknown := [file for file, size in sizes.items() if size is None]:
                raise ValueError(f"{path}: the Hub does not tell the size of {unknown[0]}: not downloaded")
            if sum(sizes.values()) > most:
                raise ValueError(
                    f"{path}: {', '.join(sorted(files)[:3])} have more than {most:,} bytes: not downloaded"
                )
            files = sizes
        patterns = [re.sub(r"([*?[])", r"[\1]", file) for file in files]
        found: str | None = None
        try:
            found = hub.snapshot_download(
                repo_id=name, revision=at, allow_patterns=patterns, local_files_only=failed is not None
            )
        except Exception:
            if failed is None:
                raise
        if found is None:  # outside of the block: the cache's error would be taken for the reason
            assert failed is not None
            raise failed
        return Path(found)

    def both() -> Path:
        folder = download(["manifest.json"], revision, LARGEST)  # by its name, which the cache keeps
        if not (folder / "manifest.json").is_file():
            raise ValueError(f"{path} holds no model of anisodiff: manifest.json is missing")
        listed = require(_LISTED, read_json(folder / "manifest.json"), folder / "manifest.json")["files"]
        if len(listed) > _MOST:
            raise ValueError(f"{path}: manifest.json lists {len(listed)} files, expected at most {_MOST}")
        for file in listed:
            if is_outside(file):
                raise ValueError(f"{path}: manifest.json lists {file}, which is not inside")
        return download(listed, folder.name, LARGEST_MODEL)  # of the same commit, whatever has been pushed since

    return _answered(path, both)


def push(folder: Path, name: str, *, private: bool | None, token: str | None, message: str) -> str:
    """Upload a folder to the repository ``name``, which is created where it does not exist; the address of it."""
    owner_and_name, revision = split(name)
    api = need("huggingface_hub", "push_to_hub", "hub").HfApi(token=token)

    def both() -> str:
        url = api.create_repo(owner_and_name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=owner_and_name, folder_path=folder, revision=revision, commit_message=message,
        )  # fmt: skip
        return str(url)

    return _answered(f"{PREFIX}{owner_and_name}", both)


def _answered(path: str | Path, ask: Callable[[], T]) -> T:
    """What the Hub answers; all that may go wrong on the way is one line."""
    try:
        return ask()
    except ValueError as error:
        raise ValueError(one_line(error)) from None
    except Exception as error:  # of huggingface_hub, of its HTTP client, of the disk
        raise ValueError(f"{path}: {explain(error)}") from error


def explain(error: Exception) -> str:
    """Why the Hub has not answered: without a connection its clients raise many types."""
    raised = (error, error.__cause__, error.__context__)
    for one in raised:
        if isinstance(one, Exception) and getattr(one, "response", None) is not None:  # it has answered
            return f"{type(one).__name__}: {one_line(one)}"
    if {type(one).__name__ for one in raised} & {
        "LocalEntryNotFoundError",
        "ConnectError",
        "ConnectionError",
        "OfflineModeIsEnabled",
    }:
        return "no connection to the Hugging Face Hub, and it has not been downloaded before"
    return f"{type(error).__name__}: {one_line(error)}"
