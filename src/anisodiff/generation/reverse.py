"""Seeds, and the reverse process from u_t to images, batch by batch.

Every sample has a seed and depends on nothing else. Seeds are written as ``0-49999``, ``7``, ``0-99,500,1000-1999``;
`parse_seeds` reads what `write_seeds` writes.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from anisodiff.generation.classes import ClassChoice
from anisodiff.latent.codec import Codec
from anisodiff.models.base import Model
from anisodiff.models.guidance import Guidance
from anisodiff.noise import KeyedNoise, combine
from anisodiff.runtime.progress import Progress
from anisodiff.samplers import Sampler, SampleResult

MOST_SEEDS, LIMIT = 10_000_000, 2**62
_CLIPPED = 0.5
Seeds = int | Iterable[SupportsIndex] | torch.Generator
"""The first seed, the seeds one by one, or a generator that the first seed is drawn from."""
START, PATH = 1, 2
"""Streams of a seed: the terminal state, and the noise of the reverse process."""


def parse_seeds(text: str, what: str = "--seeds") -> tuple[int, ...]:
    """The seeds of a text, ascending; ``what`` names the text where it is refused."""
    got = f"{what}: got {str(text)[:60]!r}"
    ranges = []
    for part in str(text).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise ValueError(f"{got}, expected whole numbers and ranges like 0-49999 or 0-9,20")
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise ValueError(f"{got}, but {part.strip()} runs backwards: expected ranges like 0-9")
        if high >= LIMIT:
            raise ValueError(f"{what}: got {high}, expected seeds below 2^62")
        ranges.append(range(low, high + 1))
    if (count := sum(map(len, ranges))) > MOST_SEEDS:
        raise ValueError(f"{got}, {count} samples, expected at most {MOST_SEEDS:,}; cut the range")
    seeds = sorted(seed for part in ranges for seed in part)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{got}, expected each seed once")
    return tuple(seeds)


def write_seeds(seeds: Sequence[int]) -> str:
    """Ascending seeds in the notation of `parse_seeds`."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def check_seeds(seeds: Iterable[SupportsIndex]) -> tuple[int, ...]:
    """Seeds as whole numbers in [0, 2^62)."""
    try:
        checked = tuple(index(seed) for seed in seeds)
    except TypeError as error:
        raise ValueError(f"seeds must be whole numbers, such as range(16): {error}") from None
    wrong = [seed for seed in checked if not 0 <= seed < LIMIT]
    if wrong:
        raise ValueError(f"seeds must lie {'from 0 on' if wrong[0] < 0 else 'below 2^62'}, got {wrong[0]}")
    if not checked:
        raise ValueError("no samples: got 0 seeds, expected one at least")
    return checked


def seeds_of(seeds: Seeds, count: int) -> tuple[int, ...]:
    """The seeds themselves, or ``count`` of them from a first one, which a `torch.Generator` may draw."""
    if isinstance(seeds, torch.Generator):
        seeds = int(torch.randint(LIMIT - max(count, 0), (), generator=seeds, device=seeds.device))
    first: Any = seeds
    one = isinstance(first, Integral) and not isinstance(first, bool)
    return check_seeds(range(int(first), int(first) + count) if one else first)


def check_batch(what: str, x: Tensor, expected: tuple[int, ...], *, unit: bool = False) -> None:
    """Refuse a batch of another shape, or with values that are no numbers or, for ``unit``, not in [0, 1]."""
    if x.dim() != len(expected):
        shape = ", ".join(map(str, ("B", *expected[1:])))
        raise ValueError(f"{what}: got {list(x.shape)}, expected a batch [{shape}]")
    if tuple(x.shape) != expected:
        raise ValueError(f"{what}: got {list(x.shape)}, expected {list(expected)}, one for every seed")
    if not bool(x.isfinite().all()):
        raise ValueError(f"{what}: they hold NaN or infinite values; expected numbers{' in [0, 1]' * unit}")
    if unit and not bool(((x >= 0) & (x <= 1)).all()):
        low, high = float(x.min()), float(x.max())
        raise ValueError(f"{what}: got values from {low:.3g} to {high:.3g}, expected [0, 1]; divide bytes by 255")


class SamplingStep(NamedTuple):
    """The argument of a callback: the start (number 0), every step, and the images (number = of, t = 0)."""

    number: int
    of: int
    t: float
    state: Tensor
    """[B, C, H, W], on the device."""
    seeds: tuple[int, ...]


Callback = Callable[[SamplingStep], None]


def counting(progress: Progress, nfe: int, total: int, start: int = 0) -> Callback:
    """Reports ``start`` and the NFE of all batches since, ``nfe`` for each sample of a batch, of ``total``."""
    done = start

    def count(step: SamplingStep) -> None:
        nonlocal done
        now = done + len(step.seeds) * nfe * step.number // step.of
        progress(now, total)
        done = now if step.number == step.of else done

    return count


@dataclass(frozen=True, kw_only=True)
class ReverseProcess:
    """The reverse process of a model as it is to be run: sampler, time grid, classes and guidance."""

    sampler: Sampler
    times: Tensor
    """Descending, from the time of the start to t_min."""
    nfe: int
    """Network evaluations per image, two for each guided answer."""
    steps: int
    """NFE as asked for: without guidance, and at most."""
    classes: ClassChoice | None = None
    """None: the null label, or a model without classes."""
    guidance: Guidance = Guidance()

    def view(self, model: Model, seeds: Sequence[int], count: int) -> Model:
        """The ``model`` for the classes of ``seeds``, guided; further of ``count`` samples repeat the last one."""
        if self.classes is None:
            return model
        labels = self.classes.labels(seeds)
        filled = torch.cat([labels, labels[-1:].expand(count - len(labels))])
        return model.given(filled.to(model.level.device), self.guidance)

    def run(
        self, model: Model, states: Tensor, seeds: tuple[int, ...], keys: Tensor, callback: Callback | None,
        codec: Codec | None = None,
    ) -> SampleResult:  # fmt: skip
        """Images [B, C, H, W] in [0, 1] and their NFE from ``states``, whose first B rows have ``seeds``.

        ``codec``: decodes states of a latent space. Callbacks get the states, and at last the images.
        """
        times, count = [*self.times.tolist(), 0.0], len(seeds)

        def watch(step: int, state: Tensor) -> None:
            if callback is not None:
                callback(SamplingStep(step + 1, len(times) - 1, times[step + 1], state[:count], seeds))

        watch(-1, states)
        view = self.view(model, seeds, len(states))
        result = self.sampler.run(view, states, self.times, KeyedNoise(keys), callback=watch)
        images = result.images[:count]
        diverges = (
            f"{self.sampler.brief} diverges with {self.nfe} NFE; train longer, take more steps, "
            "or choose another sampler"
        )
        if not bool(images.isfinite().all()):
            raise ValueError(f"the images of seeds {seeds[0]} to {seeds[-1]} are not finite: {diverges}")
        if codec is not None:
            images = codec.decode(images)
        if float(((images < 0) | (images > 1)).float().mean()) > _CLIPPED:
            warnings.warn(
                f"most pixels of seeds {seeds[0]} to {seeds[-1]} lie outside [0, 1]: {diverges}", stacklevel=2
            )
        images = images.clamp(0, 1)
        watch(len(times) - 2, images)
        return SampleResult(images, result.nfe)


def keys_of(seeds: tuple[int, ...], stream: int, device: torch.device) -> Tensor:
    """One key per sample, int64 [B]."""
    return combine(stream, torch.tensor(seeds, dtype=torch.int64)).to(device)


def batches(
    seeds: tuple[int, ...], size: int, device: torch.device, *, fill: bool
) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Seeds in batches, and the rows of each; with ``fill`` the last one repeats its last row.

    All batches of one shape run through the same kernels, compiled once.
    """
    if size < 1:
        raise ValueError(f"batch: got {size}, expected 1 or more")
    for rows in torch.split(torch.arange(len(seeds), device=device), size):
        filled = torch.cat([rows, rows[-1:].expand(size - len(rows))]) if fill else rows
        yield tuple(seeds[i] for i in rows.tolist()), filled
