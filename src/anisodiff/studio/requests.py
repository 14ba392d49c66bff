"""What the page may ask, with the bounds of every number. Anything else is refused in one line."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from anisodiff.generation import SamplingConfig
from anisodiff.models.guidance import LARGEST
from anisodiff.studio.design import SIZES

Word = Annotated[str, Field(max_length=200)]
Value = FiniteFloat | Word
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Steps = Annotated[int, Field(ge=1, le=500)]
Address = Annotated[str, Field(max_length=3 << 20)]
"""A canvas as a data: address."""
MOST_IMAGES = 16
Weight = Annotated[FiniteFloat, Field(ge=0, le=LARGEST)]


class Request(BaseModel):
    """Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Design(Request):
    """A preset with all its keys."""

    preset: Word
    keys: Annotated[dict[Word, Value], Field(max_length=12)] = {}


class Shown(Request):
    """A picture under one or two processes."""

    a: Design
    b: Design | None = None
    picture: Word = "photograph"
    size: Annotated[int, Field(ge=min(SIZES), le=max(SIZES))] = 64
    seed: Seed = 0


class Sampled(Request):
    """What every request for images of a model says."""

    model: Word
    seed: Seed = 0
    n: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 4
    steps: Steps = 20
    sampler: Word = "auto"
    classes: Word | None = None
    guidance: Weight = 1.0

    def sampling(self) -> SamplingConfig:
        return SamplingConfig(**self.model_dump(include={"steps", "sampler", "prior", "classes", "guidance"}))


class Generated(Sampled):
    """Images from a prior."""

    prior: Word = "auto"


class Strokes(Request):
    """Strokes of a picture for a model, by k-means, as a cartoon, or the picture itself."""

    model: Word
    picture: Word
    way: Annotated[str, Field(pattern="^(kmeans|cartoon|photo)$")] = "kmeans"
    colors: Annotated[int, Field(ge=1, le=64)] = 6
    smooth: Annotated[int, Field(ge=0, le=8)] = 0
    position: Annotated[FiniteFloat, Field(ge=0, le=10)] = 0.0
    edge: Annotated[FiniteFloat, Field(gt=0, le=10)] = 0.02
    amount: Annotated[FiniteFloat, Field(gt=0, le=200)] = 12.0


class Painted(Sampled):
    """Candidates of a painting, and how strongly it is changed."""

    painting: Address
    mask: Address | None = None
    strength: Annotated[FiniteFloat, Field(gt=0, lt=1)] = 0.6


class Started(Request):
    """A new training."""

    name: Word
    data: Word
    process: Word
    keys: Annotated[dict[Word, Value], Field(max_length=24)] = {}
    images: Annotated[int, Field(ge=1, le=10**10)] | None = None


class Named(Request):
    """A run of the list."""

    name: Word
