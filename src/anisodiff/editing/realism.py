"""Whether a model takes images for its own, without a feature network and without other images to compare with.

**Denoising error.** An image x is noised by the process to strengths s_l and denoised by the model in one step:

    e_l(x) = ln √mean( (E[x0 | u_l] − x)² ),     u_l ~ U_{t(s_l)} given U_0 = x

**Unrest.** Going forth to a middle strength and back leaves the model's own law as it is. So the errors of images
that have this law do not change on average when they go that way once more, x → x', and those of other images do:

    unrest of a set = √mean_l ( mean_x (e_l(x) − e_l(x')) )²        as a relative change of the error

x' has the content of x, so that content cancels: few images are enough. It is zero up to chance and to errors of the
sampler for the model's own samples. Both signs count: a painting may be harder to denoise than a photograph, or
easier. What it sees are textures, edges and contrast up to the scale that the middle strength destroys. It does not
see whether a face has three eyes, and it takes the model's word for what is real.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from anisodiff.editing.sdedit import edit
from anisodiff.editing.strength import reach, t_of_strength
from anisodiff.generation import Generator
from anisodiff.noise import KeyedNoise, combine
from anisodiff.samplers import Sampler

Realism = Callable[[Tensor], float]
"""Images [N, C, H, W] in [0, 1] → how far they are from real ones, lower is better."""

STRENGTHS, MIDDLE = (0.1, 0.2, 0.3, 0.5, 0.7), 0.5
_STREAM, _FIRST_SEED = 5, 1 << 40  # far from the seeds of edits: x' must not meet the noise that made x


@torch.no_grad()
def denoising_error(generator: Generator, images: Tensor) -> Tensor:
    """e_l(x), [N, L] in float64: one evaluation of the network for each; ``images`` [N, C, H, W] in [0, 1].

    Row n meets the same noise in every call. Strengths that the process does not reach are left out.
    """
    low, high = reach(generator)
    levels = [s for s in STRENGTHS if low < s <= high] or [0.5 * (low + high)]
    t_min, device = generator.plan.config.t_min, generator.device
    found = []
    for rows in torch.split(torch.arange(len(images)), generator.batch):
        x = images[rows.to(images.device)].to(device, generator.plan.dtype)
        columns = []
        for number, s in enumerate(levels):
            t = t_of_strength(generator.model, s, t_min=t_min)
            u = generator.process.simulate(x, t, KeyedNoise(combine(_STREAM, rows.to(device), number)))
            when = torch.tensor([t], dtype=torch.float64, device=device)
            back = generator.model.denoised(generator.model.to_coordinates(u), when)
            columns.append(0.5 * (back - x).double().square().mean((1, 2, 3)).clamp(min=1e-20).log())
        found.append(torch.stack(columns, dim=1).cpu())
    return torch.cat(found)


class Unrest:
    """The measure above, for one model."""

    label = "unrest (change of the model's denoising error)"

    def __init__(
        self, generator: Generator, *, steps: int = 50, sampler: str | Sampler = "auto", middle: float = MIDDLE
    ) -> None:
        low, high = reach(generator)
        self.generator, self.steps, self.sampler = generator, steps, sampler
        self.middle = middle if low < middle <= high else 0.5 * (low + high)

    def changes(self, images: Tensor) -> Tensor:
        """e_l(x) − e_l(x') of every image, [N, L]."""
        seeds = range(_FIRST_SEED, _FIRST_SEED + len(images))
        again = edit(
            self.generator, images, seeds=seeds, strength=self.middle, steps=self.steps, sampler=self.sampler
        )
        return denoising_error(self.generator, images) - denoising_error(self.generator, again)

    def __call__(self, images: Tensor) -> float:
        """Of a set of images [N, C, H, W]."""
        return float(self.changes(images).mean(0).square().mean().sqrt())
