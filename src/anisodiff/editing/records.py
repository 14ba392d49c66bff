"""Where edits lie on the disk, and how they were made, beside them as JSON:

    OUT/tTIME/NAME-SEED.png     results;  OUT/tTIME-mean/NAME.png, their mean over the seeds, when restoring
    OUT/input/NAME.png          the pictures as the model sees them;  OUT/strokes/NAME.png, their paintings
    OUT/edit.json               the protocol

Every file is written whole or not at all.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from anisodiff.generation.pictures import to_pixels
from anisodiff.io.atomic import replacing
from anisodiff.io.tensor_files import get_json

FORMAT, VERSION, NAME = "anisodiff edits", 2, "edit.json"  # the version of the samplers, as of samples
GROWING = ("strengths", "pictures")
"""Tables of a protocol that a later job may add to; everything else fixes the pixels."""


def place(out: Path, name: str, t: float, seed: int) -> Path:
    """Where a result lies."""
    return out / f"t{t:g}" / f"{name}-{seed:04d}.png"


def read_png(path: Path) -> Tensor:
    """A picture that was written, [C, H, W] in [0, 1]."""
    with Image.open(path) as opened:
        pixels = np.array(opened)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).float() / 255


def whole(path: Path) -> bool:
    """Whether a picture is there and can be decoded."""
    try:
        return path.is_file() and bool(read_png(path).numel())
    except (OSError, SyntaxError):
        return False


def save_png(path: Path, image: Tensor) -> None:
    """Write a picture [C, H, W] in [0, 1], rounded to bytes."""
    pixels = to_pixels(image[None])[0]
    with replacing(path) as temporary:
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(temporary)


def save_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1, ensure_ascii=False), encoding="utf-8")


def check_out(out: Path) -> None:
    """A folder of edits, an empty one, or none yet."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose another --out, a folder")
    if out.is_dir() and not (out / NAME).is_file() and any(not p.name.startswith(".") for p in out.iterdir()):
        raise ValueError(f"{out} holds files that are no edits of ours: choose another --out")


def merged(out: Path, new: dict[str, Any]) -> dict[str, Any]:
    """The protocol to be written into ``out``: with more pictures or times than before.

    A folder that holds something else, or edits made in another way, is refused: nothing finished is overwritten.
    """
    check_out(out)
    if not (out / NAME).is_file():
        return new
    old = get_json(out / NAME)
    if old.get("format") != FORMAT or not all(isinstance(old.get(key), dict) for key in GROWING):
        raise ValueError(f"{out / NAME} is no protocol of edits: choose another --out")
    wrong = [key for key in new if key not in GROWING and old.get(key) != new[key]]
    wrong += [f"picture {n}" for n, code in new["pictures"].items() if old["pictures"].get(n, code) != code]
    if wrong:
        raise ValueError(
            f"{out} holds edits made in another way (not the same: {', '.join(wrong)}); choose another --out"
        )
    return {**new, **{key: {**old[key], **new[key]} for key in GROWING}}
