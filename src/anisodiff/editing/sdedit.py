"""SDEdit (Meng et al. 2022) with the checkpoint's own process:

    u_t ~ U_t given U_0 = x;    x' ~ U_0 given U_t = u_t, by a sampler;    again from x', ``repeats`` times in all

x is a painting or a photograph. The larger t, the more is invented. **Restoring** is the reverse process alone: the
image is taken as a state at t.

**From a cartoon.** With the process `cartoon` the state when the smoothing ends is M + σ ξ, M the smoothed image. A
picture that is a cartoon already takes the place of M, as it is: u = picture + σ ξ. Smoothing it once more, as SDEdit
would, gives a state whose M is not the picture. A conditional model sees the picture, and starts from its prior, or
from the picture with the noise of a time t, as SDEdit does.

**A mask** (1: edit, 0: keep) keeps the other pixels of x exactly. To make the edit fit them, the forward path from x
is stored at the sampler's own times, and after every reverse step to t' the kept pixels are replaced by those of the
path at t'. This is replacement as in SDEdit: close to, but not, the distribution given the kept pixels (see
docs/editing.md).

Everything random in a result is a function of its own seed and of the number of the repeat.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from anisodiff.editing.strength import time_of
from anisodiff.generation import Generator, SamplingConfig, as_generator
from anisodiff.generation.config import SamplingKeys
from anisodiff.generation.images import Images
from anisodiff.generation.reverse import Callback, ReverseProcess, Seeds, batches, check_batch, seeds_of
from anisodiff.models.base import Model
from anisodiff.noise import KeyedNoise, Randomness, combine
from anisodiff.processes import Process
from anisodiff.registry import DEFAULT_STRENGTH
from anisodiff.samplers import Sampler
from anisodiff.samplers.base import Memory
from anisodiff.samplers.corrector import langevin

FORWARD, REVERSE = 3, 4
"""Streams of a seed, beside those of `generation.reverse`: noise of the forward and of the reverse process."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedSampler(Sampler):
    """``inner``, but after every step the pixels outside the mask are those of a known path."""

    name: ClassVar[str] = "masked"
    cost: ClassVar[int] = 1

    inner: Sampler
    path: tuple[Tensor, ...]
    """States [B, C, H, W] at the times after the first, in the order of the steps."""
    mask: Tensor
    """Bool, [1 or B, 1, H, W]: True where the sampler's own pixels stay."""

    def step(self, model: Any, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory) -> Tensor:
        """A step of the inner sampler, with its corrector; then the kept pixels."""
        number = memory.setdefault("number", 0)
        z = self.inner.step(model, z, t, t_next, rng, memory.setdefault("inner", {}))
        if self.inner.corrector > 0:
            z = langevin(model, z, t_next, self.inner.corrector, rng)
        memory["number"] = number + 1
        kept: Tensor = model.to_coordinates(torch.where(self.mask, model.from_coordinates(z), self.path[number]))
        return kept

    @property
    def depends_on_batch(self) -> bool:
        return self.inner.depends_on_batch

    def evaluations(self, model: Model, times: Tensor) -> int:
        return self.inner.evaluations(model, times)

    def nfe_used(self, model: Model, times: Tensor, memory: Memory) -> float:
        return self.inner.nfe_used(model, times, memory.get("inner", {}))

    def __str__(self) -> str:
        return str(self.inner)


@torch.no_grad()
def edit(
    generator: str | Path | Generator,
    images: Tensor,
    config: SamplingConfig = SamplingConfig(),
    *,
    seeds: Seeds = 0,
    t: float | None = None,
    strength: float | None = None,
    repeats: int = 1,
    mask: Tensor | None = None,
    callback: Callback | None = None,
    **keys: Unpack[SamplingKeys],
) -> Images:
    """Edited images [B, C, H, W] in [0, 1] on the CPU, one for every image [B, C, H, W] in [0, 1] and its seed.

    ``generator``: as `load` takes or returns it. How far: ``t`` ∈ (t_min, T] or ``strength`` (see `strength`), 0.7
    where neither is given. ``mask``: [H, W], [1, H, W] or [B, 1, H, W], edited where it is above ½. ``seeds``: one
    for every image, the first of them, or a `torch.Generator` that draws the first. Candidates of one image are rows
    with different seeds. ``keys``: of the config, as in `Generator.sample`: ``steps`` is the NFE of each repeat; the
    null label unless classes are given.
    """
    if not isinstance(images, Tensor):
        raise ValueError(f"images: got {type(images).__name__}, expected a tensor [B, C, H, W] with values in [0, 1]")
    if t is None and strength is None:
        strength = DEFAULT_STRENGTH
    generator = as_generator(generator)
    config, seed_list, start = replace(config, **keys), seeds_of(seeds, len(images)), time_of(generator, t, strength)
    reverse = generator.reverse_process(config, start)
    check_batch("images", images, (len(seed_list), generator.channels, *generator.size), unit=True)
    generator.check_condition(None, len(seed_list))
    if repeats < 1:
        raise ValueError(f"repeats: got {repeats}, expected 1 or more")
    free = None if mask is None else as_mask(mask, len(seed_list), generator.size)
    inner = None if free is None else state_mask(generator, free)
    done = []
    size, device = config.batch or generator.batch, generator.device
    fill = device.type == "cuda" and len(seed_list) > size
    for batch_seeds, rows in batches(seed_list, size, torch.device("cpu"), fill=fill):
        x = images[rows.to(images.device)].to(device, generator.plan.dtype)
        part, held = (None if m is None else m[rows].to(device) for m in (free, inner))
        own = torch.tensor([seed_list[i] for i in rows.tolist()], dtype=torch.int64, device=device)
        again = torch.arange(len(rows), device=device).clamp(max=len(batch_seeds) - 1)  # padding stays
        for number in range(repeats):
            noise = KeyedNoise(combine(FORWARD, own, number))
            state, masked = _forward(generator.process, generator.encode(x), reverse, held, noise)
            result = masked.run(
                generator.model, state, batch_seeds, combine(REVERSE, own, number), callback, generator.codec
            )
            new = result.images[again]
            x = new if part is None else torch.where(part, new, x)
        done.append(x[: len(batch_seeds)].to("cpu", torch.float32))
    return torch.cat(done).as_subclass(Images)


@torch.no_grad()
def noised(generator: Generator, images: Tensor, *, seeds: Seeds, strength: float) -> Tensor:
    """States from which `edit` starts without a mask, of the same images, seeds and strength."""
    seed_list = seeds_of(seeds, len(images))
    check_batch("images", images, (len(seed_list), generator.channels, *generator.size), unit=True)
    keys = torch.tensor(seed_list, dtype=torch.int64, device=generator.device)
    x, noise = images.to(generator.device, generator.plan.dtype), KeyedNoise(combine(FORWARD, keys, 0))
    return generator.process.draw(generator.encode(x), time_of(generator, None, strength), noise)


def _forward(
    process: Process, x: Tensor, reverse: ReverseProcess, mask: Tensor | None, noise: KeyedNoise
) -> tuple[Tensor, ReverseProcess]:
    """The state where the reverse process starts, and that process; a mask ties its sampler to the forward path."""
    if mask is None:
        return process.draw(x, float(reverse.times[0]), noise), reverse
    path = process.path(x, reverse.times.flip(0).tolist(), noise)[::-1]
    masked = MaskedSampler(inner=reverse.sampler, path=tuple(path[1:]), mask=mask)
    return path[0], replace(reverse, sampler=masked)


def restore(
    generator: str | Path | Generator, images: Tensor, config: SamplingConfig = SamplingConfig(), *, seeds: Seeds,
    t: float | None = None, strength: float | None = None, mask: Tensor | None = None,
    callback: Callback | None = None, **keys: Unpack[SamplingKeys],
) -> Images:  # fmt: skip
    """Images [B, C, H, W] in [0, 1] that may have become the states ``images`` [B, C, H, W] at a time.

    ``generator``: as `load` takes or returns it. Each is a draw given its state, so the mean over several seeds is
    closer to the truth than one. A mask, as in `edit`, keeps the other pixels as given; here it does not affect the
    edited ones.
    """
    generator = as_generator(generator)
    seed_list, start = seeds_of(seeds, len(images)), time_of(generator, t, strength)
    check_batch("images", images, (len(seed_list), generator.channels, *generator.size))
    free = None if mask is None else as_mask(mask, len(seed_list), generator.size)
    states = generator.encode(images.to(generator.plan.dtype))
    new = generator.reverse(states, start, config, seeds=seed_list, callback=callback, **keys)
    kept = new if free is None else torch.where(free, new, images.to("cpu", torch.float32))
    return kept.as_subclass(Images)


def cartoon_time(generator: Generator, t: float | None = None) -> float:
    """Where a cartoon starts: at the end of the smoothing, or a later ``t``; for a conditional model at T, or t."""
    process = generator.process
    if process.conditional:
        return process.T if t is None else time_of(generator, t, None)
    end = process.smoothing_end
    if end is None:
        raise ValueError("the process never ends its smoothing, so no cartoon lies on its path; train 'cartoon'")
    if t is None or abs(t - end) < 1e-5 * process.T:  # times are written with six digits
        return end
    if not end < t <= process.T:
        raise ValueError(f"t: got {t:g}, expected [{end:g}, {process.T:g}], where nothing is smoothed")
    return t


@torch.no_grad()
def from_cartoon(
    generator: str | Path | Generator, images: Tensor, config: SamplingConfig = SamplingConfig(), *, seeds: Seeds,
    t: float | None = None, callback: Callback | None = None,
    **keys: Unpack[SamplingKeys],
) -> Images:  # fmt: skip
    """Images [B, C, H, W] in [0, 1] whose cartoons are ``images`` [B, C, H, W] in [0, 1], one for every seed.

    ``generator``: as `load` takes or returns it. ``t``: from this time on, later than the end of the smoothing (the
    default): with more noise more is invented. For a conditional model before T, its prior (the default).
    """
    generator = as_generator(generator)
    config, seed_list, start = replace(config, **keys), seeds_of(seeds, len(images)), cartoon_time(generator, t)
    check_batch("images", images, (len(seed_list), generator.channels, *generator.size), unit=True)
    process, conditional = generator.process, generator.process.conditional
    if conditional and start == process.T:
        return generator.sample_seeds(seed_list, config.unlabeled(), condition=images, callback=callback)
    x = generator.encode(images.to("cpu", generator.plan.dtype)).cpu()
    noise = KeyedNoise(combine(FORWARD, torch.tensor(seed_list, dtype=torch.int64), 0))
    states = process.draw(x, start, noise) if conditional else process.after_smoothing(x, start, noise)
    condition = images if conditional else None
    return generator.reverse(states, start, config, seeds=seed_list, condition=condition, callback=callback)


def state_mask(generator: Generator, mask: Tensor) -> Tensor:
    """A mask of pixels as one of states: a latent is edited where any of its pixels is."""
    if generator.codec is None:
        return mask
    return F.adaptive_max_pool2d(mask.float(), generator.state_shape[1:]) > 0


def as_mask(mask: Tensor, count: int, size: tuple[int, int]) -> Tensor:
    """A mask of any accepted shape as bool [count, 1, H, W]."""
    shapes = (list(size), [1, *size], [1, 1, *size], [count, 1, *size])
    if list(mask.shape) not in shapes:
        raise ValueError(f"mask: got {list(mask.shape)}, expected {shapes[0]}, {shapes[1]} or {shapes[3]}")
    free = (mask if mask.dtype == torch.bool else mask > 0.5).reshape(-1, 1, *size)
    if not bool(free.flatten(1).any(1).all()):
        raise ValueError("mask: it keeps every pixel; expected some above ½ (white), which are edited")
    return free.expand(count, 1, *size).cpu()
