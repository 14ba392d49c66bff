"""The evaluation that all runs share: one feature network, one reference, one set of metrics."""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from anisodiff.metrics import (
    Context,
    FeatureNetwork,
    Generation,
    ImageSet,
    ImageStatistics,
    Reference,
    Settings,
    cached_statistics,
    evaluate,
    frechet_distance,
    image_statistics,
    kernel_distance,
)

MEASURED = ("fid", "kid", "prdc", "spectrum", "edges")


@dataclass(kw_only=True)
class Evaluator:
    """Feature network and reference; features of the reference are computed once, when first needed."""

    network: FeatureNetwork
    reference: Reference
    settings: Settings = field(default_factory=Settings)
    context: Context = field(default_factory=Context)

    @property
    def identity(self) -> dict[str, str]:
        """What two numbers must share to be compared."""
        network, split = self.network, self.reference.split
        return {
            "features": f"{network.name} ({network.weights[:12]}), {network.resize}, {network.precision}",
            "reference": f"{self.reference.name}{'/' if split else ''}{split}",
            "metrics": self.settings.describe(),
        }

    def statistics(self, images: ImageSet) -> ImageStatistics:
        """Features of a set to compare with, cached."""
        return cached_statistics(images, self.network, settings=self.settings, context=self.context)

    @cached_property
    def known(self) -> ImageStatistics:
        content = self.reference.content
        return content if isinstance(content, ImageStatistics) else self.statistics(content)

    def report(self, samples: ImageSet, generation: Generation, *, limit: int) -> dict[str, Any]:
        """All of `MEASURED` on the first ``limit`` samples, as plain values."""
        found = evaluate(
            samples, replace(self.reference, content=self.known), network=self.network, metrics=MEASURED,
            generation=generation, settings=replace(self.settings, limit=limit), context=self.context,
        )  # fmt: skip
        return asdict(found)

    def distances(self, samples: ImageSet, *, limit: int, against: ImageStatistics | None = None) -> dict[str, Any]:
        """FID and KID alone, without extrapolation: for curves of many points."""
        theirs, settings = against or self.known, replace(self.settings, limit=limit)
        ours = image_statistics(samples, self.network, settings=settings, context=self.context)
        kid = kernel_distance(
            ours.by_digest(ours.features),
            theirs.by_digest(theirs.features),
            generator=settings.generator(),
            block=settings.kid_block,
        )
        return {
            "fid": frechet_distance(ours.gaussian, theirs.gaussian), "kid": kid.value,
            "kid_error": kid.standard_error, "samples": ours.count, "against": theirs.count,
        }  # fmt: skip
