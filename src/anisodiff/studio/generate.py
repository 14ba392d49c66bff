"""Images from noise, told step by step: the states, and the images E[x0 | state] that the model expects."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.generation import Generator, SamplingStep
from anisodiff.generation.reverse import Route, write_seeds
from anisodiff.studio.pictures import picture, strip
from anisodiff.studio.queue import Job

SHOWN = 10
"""Steps that are shown; each takes one more network evaluation, which leaves the images as they are."""


class Watch:
    """The callback of a sampler: asks whether to go on, and tells some of the steps."""

    def __init__(self, job: Job, generator: Generator, total: int) -> None:
        self.job, self.generator, self.total, self.done = job, generator, total, 0

    def __call__(self, step: SamplingStep) -> None:
        """Every step is asked, some are shown, the last of a batch counts its images."""
        self.job.check()
        every = max(1, -(-step.of // SHOWN))
        if step.number % every == 0 and step.number < step.of and step.t > 0:
            self._show(step)
        if step.number == step.of:
            self.done += len(step.seeds)
            for seed, image in zip(step.seeds, step.state):
                self.job.emit({"kind": "image", "seed": seed, "image": picture(image)})

    def _show(self, step: SamplingStep) -> None:
        expected = self.generator.decode(expectation(self.generator, step.state, step.t))
        count = len(step.seeds)
        self.job.emit(
            {
                "kind": "step", "number": step.number, "of": step.of, "t": step.t, "seeds": list(step.seeds),
                "states": strip(list(self.generator.shown(step)))[0],
                "expected": strip(list(expected.clamp(0, 1)))[0],
                "done": self.done + count * step.number / step.of, "total": self.total,
            }
        )  # fmt: skip


@torch.no_grad()
def expectation(generator: Generator, state: Tensor, t: float) -> Tensor:
    """E[x0 | state] [B, C, H, W] at time ``t``."""
    model = generator.model
    when = torch.tensor([t], dtype=torch.float64, device=state.device)
    return model.denoised(model.to_coordinates(state), when)


def generate(
    job: Job, generator: Generator, seeds: Sequence[int], *, steps: int, sampler: str, prior: str, path: str | Path
) -> None:
    """Emit the images of the seeds, with their way from noise."""
    start, route = generator.start(prior), generator.route(sampler, steps)
    job.emit({"kind": "protocol", **lines(path, seeds, route, steps, sampler, prior), "prior": start.description})
    generator.sample_along(route, seeds, start.prior, callback=Watch(job, generator, len(seeds)))


def lines(
    path: str | Path, seeds: Sequence[int], route: Route, steps: int, sampler: str, prior: str
) -> dict[str, Any]:
    """The command and the line of Python that make the same images, and what they use."""
    words = ["anisodiff", "sample", str(path), "--seeds", write_seeds(sorted(seeds)), "--steps", str(steps)]
    keys = f"steps={steps}"
    for name, value in (("sampler", sampler), ("prior", prior)):
        if value != "auto":
            words += [f"--{name}", value]
            keys += f", {name}={value!r}"
    seeds_text = f"range({seeds[0]}, {seeds[-1] + 1})"
    return {
        "command": shlex.join([*words, "--out", "samples.png"]), "sampler": str(route.sampler), "nfe": route.nfe,
        "python": f"anisodiff.load({str(path)!r}).sample_seeds({seeds_text}, {keys})",
    }  # fmt: skip


def tell_state(job: Job, kind: str, state: Tensor, **facts: Any) -> None:
    """Emit one state [C, H, W] as a picture."""
    job.emit({"kind": kind, "image": picture(state), **facts})
