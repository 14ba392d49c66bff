"""How samples were made, beside them as JSON: what a number needs to be compared, and a restart to be refused.

FOLDER/protocol.json, FILE.zip.json, FILE.npz.json, FILE.png.json. The keys evaluations, prior and seed are those of
`metrics.protocol.Generation`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anisodiff
from anisodiff.generation.generator import Generator
from anisodiff.generation.running import Route
from anisodiff.generation.seeds import parse_seeds, write_seeds
from anisodiff.generation.starts import Leakage, Start
from anisodiff.io.atomic import replacing
from anisodiff.io.tensor_files import get_json

FORMAT, VERSION = "anisodiff samples", 2
"""2: `exponential` is of second order across edges of the drift, too; its pixels are others than those of 1."""
NAME = "protocol.json"
FILES = (".zip", ".npz", ".png")
"""What samples are joined into; every other place is a folder."""

LAW = (
    "version", "anisodiff", "checkpoint", "checkpoint_prior", "process", "t_min", "sampler", "nfe", "prior",
    "prior_images", "channels", "size", "precision",
)  # fmt: skip
"""What fixes the pixels: a job with another value of one of these is another job."""


def describe(
    generator: Generator, start: Start, route: Route, seeds: Sequence[int], leakage: Leakage | None
) -> dict[str, Any]:
    """The protocol of a job; only plain values."""
    values = {
        "format": FORMAT,
        "version": VERSION,
        "anisodiff": anisodiff.__version__,
        "checkpoint": generator.origin.model,
        "checkpoint_prior": generator.origin.prior,
        "checkpoint_path": generator.origin.path,
        "checkpoint_images": generator.meta.get("images"),
        "process": generator.process.identity(),
        "t_min": generator.plan.config.t_min,
        "sampler": str(route.sampler),
        "nfe": route.nfe,
        "prior": start.name,
        "prior_words": start.words,
        "prior_images": None if start.pool is None else start.pool.fingerprint,
        "leakage": None if leakage is None else leakage.as_dict(),
        "channels": generator.channels,
        "size": generator.size,
        "seed": seeds[0],
        "seeds": write_seeds(seeds),
        "count": len(seeds),
        "device": generator.device.type,
        "precision": "bf16" if generator.half else str(generator.plan.dtype).removeprefix("torch."),
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))  # lists for tuples, as they will be read back
    return plain


def place_of(out: str | Path) -> Path:
    """Where the protocol of samples lies: in their folder, or beside their file."""
    out = Path(out)
    return out.with_name(f"{out.name}.json") if out.suffix.lower() in FILES else out / NAME


def read_protocol(out: str | Path) -> dict[str, Any] | None:
    """The protocol of samples in a folder or file; None where there is none."""
    place = place_of(out)
    if not place.is_file():
        return None
    found = get_json(place)
    if found.get("format") != FORMAT:
        raise ValueError(f"{place} is no protocol of samples: expected the format {FORMAT!r}")
    return found


def write_protocol(place: Path, values: Mapping[str, Any]) -> None:
    """Written whole or not at all."""
    with replacing(place) as temporary:
        temporary.write_text(json.dumps(values, indent=1, ensure_ascii=False), encoding="utf-8")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What keeps one job from being continued as another, in words. More seeds than before are no obstacle."""
    keys = [key for key in LAW if old.get(key) != new[key]]
    if old.get("seeds") != new["seeds"] and not set(parse_seeds(old["seeds"])) <= set(parse_seeds(new["seeds"])):
        keys.append("seeds")
    return [f"{key} was {_short(old.get(key))}, now {_short(new[key])}" for key in keys]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:36]}…"
