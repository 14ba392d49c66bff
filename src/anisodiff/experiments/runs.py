"""The runs of a study: ``BASE[:KEY=VALUE;…]``; BASE is a recipe, a process for one's own images, or a checkpoint.

Keys are those of a training config, or of the run alone:

    name     its name in tables and folders       sampler, steps, prior, n    in place of the study's own
    from     a run or checkpoint to start from (fine-tuning)
    of       of a checkpoint: the training it belongs to; checkpoints of one training make a curve over images seen

All runs have the network, batch, optimizer and EMA of the first (`COMMON`), changed by ``--set``, changed by
their own keys.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anisodiff import notation
from anisodiff.data import Dataset
from anisodiff.generation import PRIORS
from anisodiff.io.hub import PREFIX, is_hub
from anisodiff.pretrained import shipped
from anisodiff.registry import PROCESSES, TRAINED
from anisodiff.training.config import TrainConfig, scaled
from anisodiff.training.picking import Machine, for_dataset
from anisodiff.training.recipes import RECIPES, recipe
from anisodiff.training.setup import with_classes

OWN = ("name", "sampler", "steps", "prior", "n", "from", "of")
COMMON = (
    "network", "size", "channels", "batch", "accumulation", "lr", "betas", "eps", "warm_up", "clip", "ema", "flip",
    "precision", "compile", "recompute", "deterministic", "calibration", "checkpoint_every",
)  # fmt: skip
"""Equal for all runs unless set otherwise; but time features are a method's own (`registry.network_keys`)."""
_OF_SCORES = ("weighting", "times", "level_mean", "level_std")
"""Not used by a baseline, which has its own loss and density of t."""
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_LONGEST = 60
FEWEST = 10
"""Fewest samples that can be measured: precision and recall need five neighbors."""


def split_outside(text: str, separator: str) -> list[str]:
    """Parts of ``text`` between separators that stand outside of all brackets; empty parts are left out."""
    parts, open_, start = [], list[str](), 0
    for place, letter in enumerate(text):
        if letter in _PAIRS:
            open_.append(_PAIRS[letter])
        elif open_ and letter == open_[-1]:
            open_.pop()
        elif letter == separator and not open_:
            parts.append(text[start:place])
            start = place + 1
    if open_:
        raise ValueError(f"{text!r}: a bracket is not closed, expected {open_[-1]!r}")
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One line of the table, before anything is built."""

    text: str
    base: str
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the config."""
    checkpoint: bool = False
    """``base`` is already trained."""
    sampler: str = "auto"
    steps: tuple[int, ...] = ()
    """NFE; empty: those of the study."""
    priors: tuple[str, ...] = ()
    n: int | None = None
    start: str | None = None
    of: str | None = None


def parse_run(text: str, more: Mapping[str, Any] | None = None) -> Run:
    """Parse one; ``more`` are further keys, over those of the text."""
    whole, prefix = Path(text).is_dir() or shipped(text) is not None, PREFIX if is_hub(text) else ""
    base, _, rest = (text, "", "") if whole else text.removeprefix(prefix).partition(":")
    base = f"{prefix}{base}"
    if not base.strip():  # as a path it would be the folder one stands in
        raise ValueError(f"run {text!r}: expected a recipe, process or checkpoint first, such as ve")
    keys: dict[str, Any] = {}
    for item in split_outside(rest, ";"):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"run {text!r}: got {item!r}, expected KEY=VALUE")
        keys[key.strip()] = value.strip() if key.strip() in OWN else notation.setting(value)
    keys |= more or {}
    own = {key: keys.pop(key) for key in OWN if key in keys}
    checkpoint = is_hub(base) or Path(base).is_dir() or shipped(base) is not None
    if not checkpoint and base not in RECIPES and base not in TRAINED:
        hint = notation.nearest(base, [*RECIPES, *TRAINED])
        raise ValueError(f"run {text!r}: no recipe, process or checkpoint {base!r}; {hint}")
    if checkpoint and (keys or "from" in own):
        wrong = next(iter(keys), "from")
        raise ValueError(f"run {text!r}: a checkpoint is already trained; remove {wrong!r}")
    if not checkpoint and "of" in own:
        raise ValueError(f"run {text!r}: of: for checkpoints; runs of this study use --track")
    priors = tuple(split_outside(str(own.get("prior", "")), ","))
    for prior in priors:
        if prior not in PRIORS:
            raise ValueError(f"unknown prior {prior!r}; {notation.nearest(prior, PRIORS)}")
    if more:
        said = ";".join(f"{key}={value}" for key, value in more.items())
        text = f"{text}{';' if rest else ':'}{said}"
    return Run(
        text=text, base=base, name=str(own.get("name") or slug(_short_name(text, checkpoint))), changes=keys,
        checkpoint=checkpoint, sampler=str(own.get("sampler", "auto")), priors=priors,
        steps=parse_steps(str(own["steps"])) if "steps" in own else (),
        n=notation.in_range(own["n"], "n", FEWEST, whole=True) if "n" in own else None, start=own.get("from"),
        of=own.get("of") or None,
    )  # fmt: skip


def _short_name(text: str, checkpoint: bool) -> str:
    """Of a path the last part."""
    text = text.removeprefix(PREFIX)
    return Path(text.partition(":")[0]).name + text.partition(":")[2] if checkpoint else text


def parse_steps(text: str) -> tuple[int, ...]:
    """NFE: ``50``, or ``10,20,50``."""
    return tuple(dict.fromkeys(notation.in_range(part, "steps", 1, whole=True) for part in text.split(",")))


def slug(text: str) -> str:
    """A name for folders: letters, digits, dots, dashes; a long one is cut and marked by a hash."""
    found = re.sub(r"(process|network)\.", "", text)
    found = re.sub(r"=\s*-", "-minus-", found)
    found = re.sub(r"[^A-Za-z0-9.]+", "-", found).strip("-.") or "run"
    code = hashlib.sha256(os.fsencode(text)).hexdigest()[:6]
    return found if len(found) <= _LONGEST else f"{found[: _LONGEST - 7]}-{code}"


def check_names(runs: Sequence[Run]) -> None:
    """All different, and fit for folders."""
    if not runs:
        raise ValueError("name the runs: recipes, processes or checkpoints, such as ve anisotropic")
    for k, one in enumerate(runs):
        for key, word in (("name", one.name), ("of", one.of or one.name)):
            if slug(word) != word:
                raise ValueError(f"{key}: got {word!r}, expected letters, digits, dots, dashes: {slug(word)!r}")
        if one.name in [other.name for other in runs[:k]]:
            raise ValueError(f"two runs are called {one.name!r}; give one of them another with ;name=…")


def configs(
    runs: Sequence[Run],
    dataset: Dataset,
    common: Mapping[str, Any],
    machine: Machine,
    *,
    own: bool = False,
    images: int | None = None,
) -> list[TrainConfig | None]:
    """The config of each (None for a checkpoint); with ``own`` the recipes keep their own `COMMON` fields.

    ``images``: how many each of them sees, where that is the budget: the warm-up is scaled with it, as in `train`.
    """
    for keys in (common, *(one.changes for one in runs)):
        for key, instead in (("seed", "--seeds"), ("images", "--images or --budget")):
            if key in keys:
                raise ValueError(f"{key}: the same for all runs; say it with {instead}")
    shared: dict[str, Any] | None = None
    found: list[TrainConfig | None] = []
    for one in runs:
        if one.checkpoint:
            found.append(None)
            continue
        base = recipe(one.base) if one.base in RECIPES else for_dataset(dataset, machine, one.base)[0]
        if images is not None:
            base = replace(base, warm_up=scaled(base, {"images": images}).warm_up)
        if shared is None:
            shared = {key: value for key, value in base.to_dict().items() if key in COMMON}
        config = (base if own else base.changed(shared)).changed(common)
        try:
            changed = with_classes(config.changed(one.changes), dataset)
            idle = [key for key in one.changes if key in _OF_SCORES] if changed.process["preset"] in PROCESSES else []
            if idle:
                raise ValueError(f"{idle[0]}: changes nothing for this process, which has its own; remove it")
        except ValueError as error:
            raise ValueError(f"run {one.text!r}: {error}") from None
        found.append(changed)
    return found
