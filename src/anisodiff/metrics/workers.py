"""Several processes (GPUs) surveying one set of images together.

Process r of w runs the network on batches r, r+w, r+2w, … and all gather the results in the order of the batches, so
every process ends with the numbers a single one would have found. Start with ``accelerate launch`` or ``torchrun``;
whichever set up ``torch.distributed`` is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True, kw_only=True)
class Workers:
    """This process's ``rank`` among ``world``; ``gather(value)`` gives the values of all ranks, in order."""

    rank: int = 0
    world: int = 1
    gather: Callable[[Any], list[Any]] = _alone

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must lie in 0 … {self.world - 1}, got {self.rank}")

    def mine(self, batch: int) -> bool:
        """Whether batch number ``batch`` is this process's work."""
        return batch % self.world == self.rank

    def agree(self, answer: bool) -> bool:
        """Whether all processes answer yes: none may go a way of its own and leave the others waiting."""
        return all(self.gather(answer))


ALONE = Workers()


def current_workers() -> Workers:
    """The processes of ``torch.distributed`` where it is running, else this process alone."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ALONE
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def gather(value: Any) -> list[Any]:
        found: list[Any] = [None] * world
        torch.distributed.all_gather_object(found, value)
        return found

    return Workers(rank=rank, world=world, gather=gather)
