"""How images are sampled: one config for every call that makes images.

A call takes the config, or its keys one by one: ``edit(model, x, config, …)``, ``edit(model, x, steps=20, …)``.
"""

from dataclasses import dataclass, replace
from typing import TypedDict

from anisodiff import notation
from anisodiff.generation.classes import NONE, Classes
from anisodiff.models.guidance import Guidance
from anisodiff.priors import Prior
from anisodiff.samplers import Sampler


class SamplingKeys(TypedDict, total=False):
    """The keys of `SamplingConfig`, each optional."""

    steps: int
    sampler: str | Sampler
    prior: str | Prior
    classes: Classes | None
    guidance: float | Guidance
    batch: int | None


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How images are sampled."""

    steps: int = 50
    """NFE of each image. A sampler may need a few more, and guidance twice as many."""
    sampler: str | Sampler = "auto"
    """``auto``: the default of the model."""
    prior: str | Prior = "auto"
    """The distribution of the terminal state, by name (`generation.priors`) or itself."""
    classes: Classes | None = None
    """A name, ``all`` in turn, ``data`` as often as in the data, ``none``, or a list; see `generation.classes`."""
    guidance: float | Guidance = 1.0
    """The weight w, or a `Guidance` with an interval of noise levels; each guided answer costs two NFE."""
    batch: int | None = None
    """Images at a time; None: as many as keep the device busy."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", notation.whole(self.steps, "steps", 1))
        if self.batch is not None:
            object.__setattr__(self, "batch", notation.whole(self.batch, "batch", 1))

    @property
    def guided(self) -> Guidance:
        """The guidance as an object."""
        return self.guidance if isinstance(self.guidance, Guidance) else Guidance(weight=self.guidance)

    @property
    def prior_name(self) -> str:
        """The name of the prior, for what is recorded."""
        if not isinstance(self.prior, str):
            raise ValueError(f"prior: got {type(self.prior).__name__}, expected a name, such as gaussian, to record")
        return self.prior

    def unlabeled(self) -> "SamplingConfig":
        """With the null label, unless classes are given."""
        return self if self.classes is not None else replace(self, classes=NONE)

    def from_state(self) -> "SamplingConfig":
        """For a start that is given: without a prior, and with the null label unless classes are given."""
        if self.prior != "auto":
            raise ValueError("prior: the reverse process starts from a given state here; leave the prior out")
        return self.unlabeled()
