"""Checkpoints by name: the shipped ones, and those of the runs; a few stay loaded."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anisodiff import notation
from anisodiff.editing import strength_range
from anisodiff.generation import PRIORS, Generator, load
from anisodiff.io.checkpoint import folder_of
from anisodiff.pretrained import SHIPPED
from anisodiff.registry import default_sampler, fitting_samplers
from anisodiff.training.run_folder import images_of

IMAGELESS = ("auto", "gaussian")
"""Priors that every model has."""
LOADED = 3
"""Models in memory at a time."""


def latest(run: Path) -> str:
    """The name of a run's newest checkpoint, whole or not; empty where there is none."""
    return max((found.name for found in folder_of(run).glob("step-*")), default="")


class Models:
    """Generators by name. Names come from a list of ours: no request names a path."""

    def __init__(self, runs: Callable[[], Mapping[str, Path]], device: str = "auto") -> None:
        self._runs, self._device = runs, device
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], Generator] = OrderedDict()

    def names(self) -> list[str]:
        """The shipped models first, then the runs that have a checkpoint."""
        return [*SHIPPED, *(name for name, path in self._runs().items() if latest(path))]

    def path(self, name: str) -> str | Path:
        """What `anisodiff.load` takes for a name."""
        if name in SHIPPED:
            return name
        found = self._runs().get(name)
        if found is None or not latest(found):
            raise ValueError(f"no model {name!r}; {notation.nearest(name, self.names())}")
        return found

    def get(self, name: str) -> Generator:
        """The newest checkpoint of that name."""
        path = self.path(name)
        key = (name, latest(path) if isinstance(path, Path) else "")
        with self._lock:
            if key not in self._held:
                made = load(path, self._device)
                for old in [held for held in self._held if held[0] == name]:
                    del self._held[old]
                self._held[key] = made
                while len(self._held) > LOADED:
                    self._held.popitem(last=False)
            self._held.move_to_end(key)
            return self._held[key]

    def images(self, name: str, prior: str) -> Path | None:
        """The images of a run that such a prior starts from; None where it needs none, or there are none."""
        path = self.path(name)
        if not isinstance(path, Path) or prior in IMAGELESS:
            return None
        trained, heldout = images_of(path)
        return heldout if prior == "heldout" else trained

    def facts(self, name: str) -> dict[str, Any]:
        """What the page offers for a model."""
        generator = self.get(name)
        plan = generator.plan
        low, high = strength_range(generator)
        return {
            "name": name, "size": list(generator.size), "channels": generator.channels, "words": repr(generator),
            "process": plan.config.process.get("preset"), "strengths": [low, high],
            "samplers": ["auto", *fitting_samplers(generator.process, plan.provided)],
            "sampler": default_sampler(plan.kind, generator.process, plan.provided).brief,
            "classes": list(generator.classes), "null": not generator.classes or plan.config.label_dropout > 0,
            "priors": [p for p in PRIORS if p in IMAGELESS or self.images(name, p)], "batch": generator.batch,
        }  # fmt: skip
