"""What a step is made of besides the weights: times and keys of a batch, what was drawn for it, what is counted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.models.base import Model
from anisodiff.models.time_density import places_among
from anisodiff.training.config import TrainConfig

BINS = 8
"""Of the noise level, in the log."""


@dataclass(frozen=True)
class Times:
    """The density of t as a table, with the noise level at each entry; all on the CPU."""

    times: Tensor
    cumulative: Tensor
    level: Tensor
    edges: Tensor
    """Seven levels between eight bins: mean ± std·(0, ½, 1, 3/2)."""

    @classmethod
    def of(cls, model: Model, config: TrainConfig) -> "Times":
        """From the tables of a model."""
        mean, std = config.level_mean, config.level_std
        times, cumulative = model.time_density(mean=mean, std=std, t_min=config.t_min)
        edges = mean + std * torch.linspace(-1.5, 1.5, BINS - 1, dtype=torch.float64)
        return cls(times, cumulative, model.level_at(times), edges)

    def level_at(self, t: Tensor) -> Tensor:
        """The noise level at times of the density."""
        return self.level[places_among(self.times, t).clamp(max=len(self.times) - 1)]

    def bin_of(self, t: Tensor) -> Tensor:
        """Number of the level's bin."""
        return places_among(self.edges, self.level_at(t))


@dataclass(frozen=True)
class Batch:
    """What is random about the places of a batch; on the device but for ``t_host``, all [B]."""

    t_host: Tensor
    t: Tensor
    bins: Tensor
    noise: Tensor
    """Keys of time and state."""
    dropout: Tensor
    """Keys of the masks."""


@dataclass(frozen=True)
class Prepared:
    """All that step ``k`` needs besides the weights."""

    k: int
    batch: Batch
    parts: tuple[tuple[Tensor, ...], ...]
    """What `Stepper.passes` is given, for every part of the batch."""
    ready: torch.cuda.Event | None
    """Passed when the values are there; None on a CPU, where they are."""

    def claim(self) -> None:
        """Make the current stream, not the host, wait for the values; their memory is kept until it has used them."""
        if self.ready is None:
            return
        stream = torch.cuda.current_stream(self.batch.t.device)
        stream.wait_event(self.ready)
        for value in (self.batch.t, self.batch.bins, *(x for part in self.parts for x in part)):
            value.record_stream(stream)


@dataclass
class Tally:
    """What is summed up on the device between two lines of the log."""

    loss: Tensor
    """[BINS], over this process's samples."""
    count: Tensor
    """[BINS]."""
    norm: Tensor
    """Gradient norms of good steps; and their number."""
    skipped: Tensor
    """Bad batches so far; bad ones in a row now; most in a row since the last look."""
    where: Tensor
    """Of the last bad batch: step, smallest and largest t of the samples concerned."""

    @classmethod
    def zeros(cls, device: torch.device) -> "Tally":
        """Nothing seen."""
        return cls(*(torch.zeros(n, dtype=torch.float64, device=device) for n in (BINS, BINS, 2, 3, 3)))
