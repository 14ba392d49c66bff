"""From a path to a generator: a run's folder, a checkpoint's, or an export in half precision."""

from collections.abc import Callable
from pathlib import Path

import torch

from anisodiff.generation.generator import Generator, Origin
from anisodiff.generation.pool import Pictures
from anisodiff.io.checkpoint import VERSION, Checkpoint, Damaged, folder_of, newest, read
from anisodiff.pretrained import SHIPPED, shipped
from anisodiff.runtime.devices import pick_device
from anisodiff.training.model import Trained, load_model


def open_checkpoint(path: str | Path, say: Callable[[str], None] = lambda _: None) -> Checkpoint:
    """The checkpoint at ``path``, or a run's newest whole one; what is wrong with a damaged one is said."""
    path = shipped(path) or Path(path)
    if not path.is_dir():
        raise ValueError(f"no such folder: {path}; expected a run's, a checkpoint's, or {' or '.join(SHIPPED)}")
    complaints: list[str] = []
    found = None
    if (path / "manifest.json").is_file():
        try:
            return read(path)
        except Damaged as error:
            complaints.append(str(error))
    elif (path / "model.safetensors").exists() or (path / "config.json").exists():
        complaints.append(f"{path}: manifest.json is missing")
    else:
        found = newest(path, complaints.append)
    if found is None:
        raise ValueError(_refusal(path, complaints))
    for line in complaints:
        say(line)
    return found


def _refusal(path: Path, complaints: list[str]) -> str:
    if not complaints:
        return f"{path} holds no checkpoint: expected a run's folder ({folder_of('RUN')}/…) or a checkpoint's"
    reason = complaints[0].removeprefix("passed over a damaged checkpoint: ")
    if "checkpoint version" in reason:
        return f"{reason}; this anisodiff reads version {VERSION}: install the version that wrote it"
    return f"{reason}: the checkpoint is incomplete or damaged; copy it again, or take another"


def load(
    path: str | Path,
    device: torch.device | str = "auto",
    images: Pictures | None = None,
    *,
    compile: bool = False,
    precision: str = "auto",
    say: Callable[[str], None] = lambda _: None,
) -> Generator:
    """A generator from the averaged weights of a checkpoint; nothing but the folder is needed.

    ``images``: what priors other than `gaussian` start from. ``precision``: bf16 or fp32 inside the network; auto is
    bf16 on CUDA. ``compile``: torch.compile the network, on CUDA; worth it for thousands of samples.
    """
    where = pick_device(device)
    saved = open_checkpoint(path, say)
    codes = saved.codes
    origin = Origin(path=str(path), model=codes["model.safetensors"], prior=codes.get("prior.safetensors"))
    return Generator(
        _trained(saved, where), origin, device=where, images=images, compile=compile, precision=precision
    )


def _trained(saved: Checkpoint, device: torch.device) -> Trained:
    try:
        return load_model(saved, device)
    except (KeyError, RuntimeError) as error:
        if "memory" in str(error):
            raise
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"{saved.path}: this anisodiff cannot read its model ({what})") from None
