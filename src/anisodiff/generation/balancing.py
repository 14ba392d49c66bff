"""The balance of a model (see `networks.balance`): measured on its own trajectories, kept beside its checkpoint.

CHECKPOINT/balance.safetensors holds it, with the sha256 of the model it was measured on: for another model it does
not count.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from anisodiff.generation.running import keys_of
from anisodiff.io import tensor_files as files
from anisodiff.io.atomic import replacing
from anisodiff.models.base import Model
from anisodiff.networks.balance import Balance, Balancing, Measuring, rings
from anisodiff.noise import KeyedNoise
from anisodiff.pretrained import shipped

if TYPE_CHECKING:
    from anisodiff.generation.generator import Generator

NAME = "balance.safetensors"
TRAJECTORIES, STEPS = 512, 50
_START, _PATH = 5, 6
"""Streams of a seed, other than those of samples: no sample is one of the trajectories."""


class _InParts(nn.Module):
    """A network that sees a large batch in parts of one size, the last one filled up: recorded once, any count."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, x: Tensor, condition: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """As the network's."""
        rows = torch.arange(-(-len(x) // self.size) * self.size, device=x.device).clamp(max=len(x) - 1)
        parts = zip(torch.split(x[rows], self.size), torch.split(condition[rows], self.size))
        # a replayed network writes its next answer over this one
        return torch.cat([self.network(seen, told, dropout_key).clone() for seen, told in parts])[: len(x)]


@contextmanager
def balanced(model: Model, balance: Balancing | None) -> Iterator[None]:
    """Within, the model's residuals go through ``balance``."""
    before, model.balance = model.balance, balance
    try:
        yield
    finally:
        model.balance = before


@torch.no_grad()
def measure_balance(
    generator: "Generator",
    *,
    trajectories: int = TRAJECTORIES,
    steps: int = STEPS,
    batch: int | None = None,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> Balance:
    """Run ``trajectories`` of the model's usual sampler with ``steps`` evaluations, all in step, and measure κ.

    At every evaluation what leans is taken out, so that what follows is measured on balanced states.
    """
    model = generator.model
    if not model.leans:
        name = generator.plan.config.process["preset"]
        raise ValueError(f"{name} has no balance: only models of a score or of a velocity have one")
    size = generator.batch if batch is None else batch
    if trajectories < 2 or size < 1:
        raise ValueError(f"got {trajectories} trajectories, {size} at a time; expected 2 or more, 1 or more")
    size = min(size, trajectories)
    route, seeds = generator.route("auto", steps), tuple(range(trajectories))
    start = generator.prior("gaussian").draw(trajectories, KeyedNoise(keys_of(seeds, _START, generator.device)))
    axes = start.shape[1] if model.turns else None
    measuring = Measuring(rings(*generator.size, axes).to(generator.device))
    whole = model.network
    model.network = _InParts(whole, size)
    try:
        with balanced(model, measuring):
            source = KeyedNoise(keys_of(seeds, _PATH, generator.device))
            route.sampler.run(
                model, start.to(generator.plan.dtype), route.times, source,
                callback=lambda step, _: progress(step + 1, len(route.times)),
            )  # fmt: skip
    finally:
        model.network = whole
    return measuring.balance()


def balance_checkpoint(
    path: str | Path,
    *,
    device: torch.device | str = "auto",
    trajectories: int = TRAJECTORIES,
    steps: int = STEPS,
    batch: int | None = None,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> tuple[Balance, Path]:
    """Measure the balance of a checkpoint (or a run's newest) and keep it there; where it lies."""
    from anisodiff.generation.loading import load, open_checkpoint

    if (home := shipped(path)) is not None:
        raise ValueError(f"{path} is part of the package and has its balance: copy {home} to measure another")
    saved = open_checkpoint(path)
    generator = load(saved.path, device, balance=False)
    found = measure_balance(generator, trajectories=trajectories, steps=steps, batch=batch, progress=progress)
    place = saved.path / NAME
    save_balance(found, place, generator.origin.model)
    return found, place


def save_balance(balance: Balance, target: Path, model: str) -> str:
    """Write it, whole or not at all; ``model`` is the sha256 it belongs to. Its own sha256."""
    named = {**balance.tensors(), "model": torch.tensor(list(bytes.fromhex(model)), dtype=torch.uint8)}
    with replacing(target) as temporary:
        temporary.unlink()  # the file must be new
        return files.put_tensors(temporary, named)


def stored_balance(path: Path, model: str, say: Callable[[str], None] = lambda _: None) -> tuple[Balance, str] | None:
    """The balance in a file and its sha256; None where there is none, or only that of another model."""
    if not path.is_file():
        return None
    try:
        tensors = files.get_tensors(path)
    except ValueError as error:
        raise ValueError(f"{error}; remove it, or measure it again: anisodiff balance {path.parent}") from None
    try:
        if bytes(tensors.pop("model").tolist()).hex() != model:
            say(f"{path} belongs to another model and is not used; measure it again: anisodiff balance {path.parent}")
            return None
        return Balance.of(tensors), files.sha256(path)
    except KeyError as error:
        raise ValueError(f"{path} is no balance (it has no {error}); remove it, or measure it again") from None
