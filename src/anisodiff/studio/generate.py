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

    def __init__(self, job: Job, generator: Generator, route: Route, total: int) -> None:
        self.job, self.generator, self.route, self.total, self.done = job, generator, route, total, 0

    def __call__(self, step: SamplingStep) -> None:
        """Every step is asked, some are shown, the last of a batch counts its images."""
        self.job.check()
        every = max(1, -(-step.of // SHOWN))
        if step.number % every == 0 and step.number < step.of and step.t > 0:
            self._show(step)
        if step.number == step.of:
            self.done += len(step.seeds)
            for seed, image in zip(step.seeds, step.state):
                tell_state(self.job, "image", image, seed=seed, name=class_of(self.route, seed))

    def _show(self, step: SamplingStep) -> None:
        expected = self.generator.decode(expectation(self.generator, step, self.route))
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
def expectation(generator: Generator, step: SamplingStep, route: Route) -> Tensor:
    """E[x0 | state] [B, C, H, W], for the classes of the seeds and guided as the route is."""
    model = route.view(generator.model, step.seeds, len(step.state))
    when = torch.tensor([step.t], dtype=torch.float64, device=step.state.device)
    return model.denoised(model.to_coordinates(step.state), when)


def class_of(route: Route, seed: int) -> str | None:
    """The name of the class of a seed; None where it has none."""
    return None if route.classes is None else route.classes.names[int(route.classes.labels([seed]))]


def chosen(classes: str | None, guidance: float) -> list[str]:
    """The options of a command that choose them."""
    words = [] if classes is None else ["--class", classes]
    return words if guidance == 1.0 else [*words, "--guidance", f"{guidance:g}"]


def generate(
    job: Job, generator: Generator, seeds: Sequence[int], *, steps: int, sampler: str, prior: str,
    classes: str | None, guidance: float, path: str | Path, images: Path | None,
) -> None:  # fmt: skip
    """Emit the images of the seeds, with their way from noise; ``images``: what the prior starts from."""
    start, route = generator.start(prior, images), generator.route(sampler, steps, classes=classes, guidance=guidance)
    said = lines(path, seeds, steps, sampler=sampler, prior=prior, classes=classes, guidance=guidance, images=images)
    made = {"sampler": str(route.sampler), "nfe": route.nfe, "prior": start.description}
    job.emit({"kind": "protocol", **said, **made})
    generator.sample_along(route, seeds, start.prior, callback=Watch(job, generator, route, len(seeds)))


def lines(
    path: str | Path, seeds: Sequence[int], steps: int, *, sampler: str, prior: str, classes: str | None,
    guidance: float, images: Path | None,
) -> dict[str, str]:  # fmt: skip
    """The command and the line of Python that make the same images."""
    words = ["anisodiff", "sample", str(path), "--seeds", write_seeds(sorted(seeds)), "--steps", str(steps)]
    keys = f"steps={steps}"
    for name, value in (("sampler", sampler), ("prior", prior)):
        if value != "auto":
            words += [f"--{name}", value]
            keys += f", {name}={value!r}"
    words += [] if images is None else ["--images", str(images)]
    given = "" if images is None else f", images={str(images)!r}"
    keys += "" if classes is None else f", classes={classes!r}"
    keys += "" if guidance == 1.0 else f", guidance={guidance:g}"
    return {
        "command": shlex.join([*words, *chosen(classes, guidance), "--out", "samples.png"]),
        "python": f"anisodiff.load({str(path)!r}{given}).sample_seeds(range({seeds[0]}, {seeds[-1] + 1}), {keys})",
    }  # fmt: skip


def tell_state(job: Job, kind: str, state: Tensor, **facts: Any) -> None:
    """Emit one state [C, H, W] as a picture."""
    job.emit({"kind": kind, "image": picture(state), **facts})
