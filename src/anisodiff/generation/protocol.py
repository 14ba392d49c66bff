"""How samples were made.

The protocol is the record (`io.records`) beside samples: FOLDER/protocol.json, FILE.zip.json, FILE.npz.json,
FILE.png.json. It holds what a number needs to be compared, and what decides whether a job continues another. The
keys nfe, prior and seed are those of `metrics.protocol.Generation`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anisodiff.generation.generator import Generator
from anisodiff.generation.priors import Leakage, NamedPrior
from anisodiff.generation.reverse import ReverseProcess, parse_seeds, write_seeds
from anisodiff.io import records
from anisodiff.io.schema import Malformed, fields, text


def seeds_shape(value: Any, where: str) -> None:
    """A shape: seeds in the notation of `parse_seeds`."""
    text(value, where)
    try:
        parse_seeds(value, where)
    except ValueError as error:
        raise Malformed(str(error)) from None


RECORD = records.RecordKind("anisodiff samples", 2, shape=fields(seeds=seeds_shape))
NAME = "protocol.json"
FILES = (".zip", ".npz", ".png")
"""Files that samples are joined into; every other place is a folder."""

MAY_CHANGE = (
    "checkpoint_path", "checkpoint_images", "prior_description", "leakage", "note", "seed", "seeds", "count",
    "device",
)  # fmt: skip
"""Keys that do not fix the pixels; `differences` compares seeds by itself."""


def describe(
    generator: Generator, prior: NamedPrior, reverse: ReverseProcess, seeds: Sequence[int], leakage: Leakage | None,
    batch: int,
) -> dict[str, Any]:  # fmt: skip
    """The protocol of a job; only plain values. The ``batch`` is recorded where it fixes the pixels."""
    return RECORD.new(
        {
            "checkpoint": generator.origin.model,
            "checkpoint_prior": generator.origin.prior,
            "checkpoint_path": generator.origin.path,
            **({} if generator.codec is None else {"autoencoder": generator.codec.autoencoder.sha256}),
            "checkpoint_images": generator.meta.get("images"),
            "process": generator.process.identity(),
            "t_min": generator.plan.config.t_min,
            "sampler": str(reverse.sampler),
            "steps": reverse.steps,
            "nfe": reverse.nfe,
            "prior": prior.name,
            "prior_description": prior.description,
            "prior_images": None if prior.pool is None else prior.pool.fingerprint,
            "leakage": None if leakage is None else leakage.as_dict(),
            "channels": generator.channels,
            "size": generator.size,
            **conditions_of(reverse, batch),
            "seed": seeds[0],
            "seeds": write_seeds(seeds),
            "count": len(seeds),
            "device": generator.device.type,
            "precision": "bf16" if generator.half else str(generator.plan.dtype).removeprefix("torch."),
        }
    )


def conditions_of(reverse: ReverseProcess, batch: int) -> dict[str, Any]:
    """Classes and guidance, where there are any; the batch, where a sample depends on it."""
    values: dict[str, Any] = {"batch": batch} if reverse.sampler.depends_on_batch else {}
    if reverse.classes is not None:
        values |= reverse.classes.as_dict()
        values |= {"guidance": reverse.guidance.weight, "guidance_interval": reverse.guidance.interval}
    return values


def path_of(out: str | Path) -> Path:
    """The file of the protocol: in the folder of the samples, or beside their file."""
    out = Path(out)
    return out.with_name(f"{out.name}.json") if out.suffix.lower() in FILES else out / NAME


def read_protocol(out: str | Path) -> dict[str, Any] | None:
    """The protocol of samples in a folder or file; None where there is none."""
    return RECORD.read(path_of(out))


_OF_MODEL = ("checkpoint", "checkpoint_prior")
_FOLLOWS = ("nfe", "seeds", "class_turn", "class_names", "class_counts")
"""Keys that are told only where no other differs: most follow from an option, which is the one to name."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What keeps a job from continuing another, as lines. It may have more seeds, if batches do not matter."""
    grown = "batch" not in new and set(parse_seeds(old["seeds"])) <= set(parse_seeds(new["seeds"]))
    free = tuple(key for key in MAY_CHANGE if grown or key != "seeds")
    every = records.differences(old, new, may_change=(*free, *_OF_MODEL, "steps"))
    if every and "steps" in old:  # by themselves they make no difference: the NFE does
        every = records.differences(old, new, may_change=(*free, *_OF_MODEL))
    found = [line for line in every if not line.startswith(_FOLLOWS)] or every
    other_model = any(old.get(key) != new.get(key) for key in _OF_MODEL)
    return ["made with another model or another checkpoint"] * other_model + found
