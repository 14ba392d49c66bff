"""Which class each sample has, as a function of its seed alone.

    cat        that class           cat,dog    in turn: the seed modulo 2
    all        all classes in turn  data       as often as in the training images, drawn by the seed
    none       no class: the null label, which stands for all

A name of a class goes before these words.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.io.schema import Malformed, fields, rows, text, whole
from anisodiff.noise import KeyedNoise, combine

ALL, DATA, NONE = "all", "data", "none"
CLASS = 5
"""A stream of a seed, beside those of `reverse` and of editing: which class is drawn."""
_LONGEST = 40  # characters of a class in the name of a file

Classes = str | int | Sequence[str | int]
"""What a user gives: a text as above, a label, or several names or labels, taken in turn."""


@dataclass(frozen=True, kw_only=True)
class ClassChoice:
    """How the classes of samples are chosen."""

    text: str
    """As a user would write it, with the names of the classes."""
    names: tuple[str, ...]
    """Of all classes, by label."""
    turn: tuple[int, ...] = ()
    """Labels taken in turn."""
    counts: tuple[int, ...] = ()
    """How often each class is drawn, in proportion."""

    def labels(self, seeds: Sequence[int]) -> Tensor:
        """The label of each seed, int64 [B], on the CPU."""
        if self.turn:
            return torch.tensor([self.turn[seed % len(self.turn)] for seed in seeds], dtype=torch.int64)
        share = torch.tensor(self.counts, dtype=torch.float64).cumsum(0)
        drawn = KeyedNoise(combine(CLASS, torch.tensor(list(seeds), dtype=torch.int64))).uniform()
        return torch.searchsorted(share / share[-1], drawn, right=True).clamp(max=len(self.counts) - 1)

    def __str__(self) -> str:
        if self.counts:
            return "as often as in the training images"
        return f"all {len(self.names)} in turn" if self.turn == tuple(range(len(self.names))) else self.text

    def suffixes(self, seeds: Sequence[int]) -> dict[int, str]:
        """The class of each seed for the name of a file, ``-cat``."""
        short = [re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST].strip("-.") or "class" for name in self.names]
        return {seed: f"-{short[label]}" for seed, label in zip(seeds, self.labels(seeds).tolist())}

    def as_dict(self) -> dict[str, Any]:
        """What the record of samples says: enough to know the label of every seed."""
        return {
            "classes": self.text, "class_names": list(self.names), "class_turn": list(self.turn),
            "class_counts": list(self.counts),
        }  # fmt: skip

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "ClassChoice | None":
        """The inverse of `as_dict`; None where a record says nothing of classes, or nothing that can be true."""
        try:
            _SHAPE(values, "")
        except Malformed:
            return None
        names, turn, counts = (tuple(values[key]) for key in ("class_names", "class_turn", "class_counts"))
        fits = max(turn) < len(names) if turn else len(counts) == len(names) and any(counts)
        fits = fits and values["classes"].isprintable()  # it goes into reports
        return cls(text=values["classes"], names=names, turn=turn, counts=counts) if fits else None


_SHAPE = fields(classes=text, class_names=rows(text), class_turn=rows(whole(0)), class_counts=rows(whole(0)))


def choose_classes(
    asked: Classes | None, names: tuple[str, ...], counts: Sequence[int], default: str
) -> ClassChoice | None:
    """The choice that a user means, of a model with the classes ``names``; None: the null label.

    ``counts``: images of each class in training. A model without classes has no choice; to ask for one is an error.
    """
    if not names:
        if asked is None or asked == NONE:
            return None
        raise ValueError(
            f"classes: got {asked!r}, but the model has learned no classes; leave it out, or train with classes"
        )
    if asked is None:
        asked = default
    if isinstance(asked, str) and asked not in names:
        if asked == NONE:
            return None
        if asked == DATA:
            if len(counts) != len(names) or not any(counts):
                raise ValueError(
                    f"classes: got 'data', but the checkpoint counts images of {len(counts)} classes, "
                    f"expected {len(names)}; name a class, or all"
                )
            return ClassChoice(text=DATA, names=names, counts=tuple(counts))
        if asked == ALL:
            return ClassChoice(text=ALL, names=names, turn=tuple(range(len(names))))
        asked = [part.strip() for part in asked.split(",")]
    members = [asked] if isinstance(asked, str | int) else list(asked)
    if not members:
        raise ValueError("classes: got no class, expected one at least")
    turn = tuple(_label(one, names) for one in members)
    return ClassChoice(text=",".join(names[label] for label in turn), names=names, turn=turn)


def _label(value: Any, names: tuple[str, ...]) -> int:
    """The label of a class by its name, or by the label itself."""
    if isinstance(value, str) and value in names:
        return names.index(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return value
    known = notation.nearest("", names, f"{ALL}, {DATA} or {NONE}")
    if isinstance(value, str):
        words = (notation.close_to(value, (*names, ALL, DATA, NONE)), known)
        raise ValueError(f"classes: unknown class {value!r}; {' '.join(filter(None, words))}")
    raise ValueError(f"classes: got {value!r}, expected a label from 0 to {len(names) - 1}, or a name; {known}")
