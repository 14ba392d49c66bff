"""Images from noise, told step by step: the states, and the images E[x0 | state] that the model expects."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.generation import Generator, SamplingConfig, SamplingStep
from anisodiff.generation.reverse import ReverseProcess, write_seeds
from anisodiff.studio.pictures import picture, strip
from anisodiff.studio.queue import Job
from anisodiff.tensors import to_device

SHOWN = 10
"""Steps that are shown; each takes one more network evaluation, which leaves the images as they are."""


class Watch:
    """The callback of a sampler: asks whether to go on, and tells some of the steps."""

    def __init__(self, job: Job, generator: Generator, reverse: ReverseProcess, total: int) -> None:
        self.job, self.generator, self.reverse, self.total, self.done = job, generator, reverse, total, 0

    def __call__(self, step: SamplingStep) -> None:
        """Every step is asked, some are shown, the last of a batch counts its images."""
        self.job.check()
        every = max(1, -(-step.of // SHOWN))
        if step.number % every == 0 and step.number < step.of and step.t > 0:
            self._show(step)
        if step.number == step.of:
            self.done += len(step.seeds)
            for seed, image in zip(step.seeds, step.state):
                tell_state(self.job, "image", image, seed=seed, name=class_of(self.reverse, seed))

    def _show(self, step: SamplingStep) -> None:
        expected = self.generator.decode(expectation(self.generator, step, self.reverse))
        count = len(step.seeds)
        self.job.emit(
            {
                "kind": "step", "number": step.number, "of": step.of, "t": step.t, "seeds": list(step.seeds),
                "states": strip(list(self.generator.decode_step(step)))[0],
                "expected": strip(list(expected.clamp(0, 1)))[0],
                "done": self.done + count * step.number / step.of, "total": self.total,
            }
        )  # fmt: skip


@torch.no_grad()
def expectation(generator: Generator, step: SamplingStep, reverse: ReverseProcess) -> Tensor:
    """E[x0 | state] [B, C, H, W], for the classes of the seeds and guided as the reverse process is."""
    model = reverse.view(generator.model, step.seeds, len(step.state))
    when = to_device(torch.tensor([step.t], dtype=torch.float64), step.state.device)
    return model.denoised(model.to_coordinates(step.state), when)


def class_of(reverse: ReverseProcess, seed: int) -> str | None:
    """The name of the class of a seed; None where it has none."""
    return None if reverse.classes is None else reverse.classes.names[int(reverse.classes.labels([seed]))]


def class_options(config: SamplingConfig) -> list[str]:
    """The options of a command that choose classes and guidance."""
    words = [] if config.classes is None else ["--class", str(config.classes)]
    weight = config.guided.weight
    return words if weight == 1.0 else [*words, "--guidance", f"{weight:g}"]


def generate(
    job: Job, generator: Generator, seeds: Sequence[int], config: SamplingConfig, *, path: str | Path,
    images: Path | None,
) -> None:  # fmt: skip
    """Emit the images of the seeds, with their way from noise; ``images``: what the prior starts from."""
    start, reverse = generator.named_prior(config.prior_name, images), generator.reverse_process(config)
    made = {"sampler": str(reverse.sampler), "nfe": reverse.nfe, "prior": start.description}
    job.emit({"kind": "protocol", **lines(path, seeds, config, images), **made})
    generator.sample_with(reverse, seeds, start.prior, callback=Watch(job, generator, reverse, len(seeds)))


def lines(path: str | Path, seeds: Sequence[int], config: SamplingConfig, images: Path | None) -> dict[str, str]:
    """The command and the line of Python that make the same images."""
    words = ["anisodiff", "sample", str(path), "--seeds", write_seeds(sorted(seeds)), "--steps", str(config.steps)]
    keys = f"steps={config.steps}"
    for name, value in (("sampler", str(config.sampler)), ("prior", str(config.prior))):
        if value != "auto":
            words += [f"--{name}", value]
            keys += f", {name}={value!r}"
    words += [] if images is None else ["--images", str(images)]
    given = "" if images is None else f", images={str(images)!r}"
    keys += "" if config.classes is None else f", classes={config.classes!r}"
    keys += "" if config.guidance == 1.0 else f", guidance={config.guided.weight:g}"
    return {
        "command": shlex.join([*words, *class_options(config), "--out", "samples.png"]),
        "python": f"anisodiff.load({str(path)!r}{given}).sample_seeds(range({seeds[0]}, {seeds[-1] + 1}), {keys})",
    }  # fmt: skip


def tell_state(job: Job, kind: str, state: Tensor, **facts: Any) -> None:
    """Emit one state [C, H, W] as a picture."""
    job.emit({"kind": kind, "image": picture(state), **facts})
