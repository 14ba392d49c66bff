"""Rows that batch after batch brings, kept in few large tensors.

A small tensor kept from every batch would lie between the large ones that come and go, and the heap could give none
of that room back: a walk over many images would take more and more memory, though it keeps little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor


class Rows:
    """Rows ``[n,…]`` in one tensor, made large enough at once where their number is ``expected``."""

    def __init__(self, expected: int | None) -> None:
        self._expected, self._count = expected or 0, 0
        self._held: Tensor | None = None

    def add(self, part: Tensor) -> None:
        """Copy the rows of ``part`` behind those already here."""
        end = self._count + len(part)
        if self._held is None or end > len(self._held):
            grown = torch.empty(
                max(end, self._expected, 2 * self._count), *part.shape[1:], dtype=part.dtype, device=part.device
            )
            if self._held is not None:
                grown[: self._count] = self._held[: self._count]
            self._held = grown
        self._held[self._count : end] = part
        self._count = end

    def joined(self) -> Tensor:
        """All rows; room that was not needed is given back."""
        assert self._held is not None, "no rows yet"
        return self._held if self._count == len(self._held) else self._held[: self._count].clone()


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """What one worker found: for its batches their places in the walk and their sizes; tensors with a row an image
    (``images``) and with a row a batch (``batches``), by name.
    """

    orders: tuple[int, ...]
    sizes: tuple[int, ...]
    images: Mapping[str, Tensor]
    batches: Mapping[str, Tensor]


@dataclass(kw_only=True, eq=False)
class Gathering:
    """A :class:`Gathered` in the making; ``expected``: how many images will come, where that is known."""

    expected: int | None
    orders: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    images: dict[str, Rows] = field(default_factory=dict)
    batches: dict[str, Rows] = field(default_factory=dict)

    def add(self, order: int, images: Mapping[str, Tensor], batches: Mapping[str, Tensor]) -> None:
        """Batch number ``order``: tensors ``[B,…]`` and tensors of the whole batch."""
        for name, tensor in images.items():
            self.images.setdefault(name, Rows(self.expected)).add(tensor)
        size = len(next(iter(images.values())))
        walks = None if self.expected is None else -(-self.expected // size)  # the first batch is a full one
        for name, tensor in batches.items():
            self.batches.setdefault(name, Rows(walks)).add(tensor[None])
        self.orders.append(order)
        self.sizes.append(size)

    def done(self) -> Gathered:
        """All of it."""
        return Gathered(
            orders=tuple(self.orders),
            sizes=tuple(self.sizes),
            images={name: rows.joined() for name, rows in self.images.items()},
            batches={name: rows.joined() for name, rows in self.batches.items()},
        )


def in_order(parts: Sequence[Gathered]) -> Gathered:
    """The parts of all workers as one, in the order of the batches."""
    parts = [part for part in parts if part.orders]
    if len(parts) == 1:
        return parts[0]
    starts = [list(accumulate(part.sizes, initial=0)) for part in parts]
    places = sorted((order, p, i) for p, part in enumerate(parts) for i, order in enumerate(part.orders))
    first = parts[0]
    return Gathered(
        orders=tuple(order for order, _, _ in places),
        sizes=tuple(parts[p].sizes[i] for _, p, i in places),
        images={
            name: torch.cat([parts[p].images[name][starts[p][i] : starts[p][i + 1]] for _, p, i in places])
            for name in first.images
        },
        batches={name: torch.stack([parts[p].batches[name][i] for _, p, i in places]) for name in first.batches},
    )
