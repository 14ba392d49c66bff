"""The evaluation that all runs share: one feature network, one reference, one set of metrics."""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from anisodiff import metrics
from anisodiff.metrics.values import MEASURE, Pair

MEASURED, PIXELS = ("fid", "kid", "prdc", "spectrum", "edges"), ("sliced", "spectrum", "edges")
"""With a feature network, and without."""


@dataclass(kw_only=True)
class Evaluator:
    """Feature network and reference; features of the reference are computed once, when first needed."""

    network: metrics.FeatureNetwork
    reference: metrics.Reference
    settings: metrics.Settings = field(default_factory=metrics.Settings)
    context: metrics.Context = field(default_factory=metrics.Context)

    @property
    def identity(self) -> dict[str, str]:
        """What two numbers must share to be compared."""
        network, split = self.network, self.reference.split
        return {
            "features": f"{network.name} ({network.weights[:12]}), {network.resize}, {network.precision}",
            "reference": f"{self.reference.name}{'/' if split else ''}{split}",
            "metrics": self.settings.describe(),
        }

    def statistics(self, images: metrics.ImageSet) -> metrics.ImageStatistics:
        """Features of a set to compare with, cached."""
        return metrics.cached_statistics(images, self.network, settings=self.settings, context=self.context)

    @cached_property
    def known(self) -> metrics.ImageStatistics:
        content = self.reference.content
        return content if isinstance(content, metrics.ImageStatistics) else self.statistics(content)

    def report(self, samples: metrics.ImageSet, generation: metrics.Generation, *, limit: int) -> dict[str, Any]:
        """All of `MEASURED`, or of `PIXELS`, on the first ``limit`` samples, as plain values."""
        found = metrics.evaluate(
            samples, replace(self.reference, content=self.known), network=self.network,
            metrics=PIXELS if self.network.empty else MEASURED, generation=generation,
            settings=replace(self.settings, limit=limit), context=self.context,
        )  # fmt: skip
        return asdict(found)

    def distances(
        self, samples: metrics.ImageSet, *, limit: int, against: metrics.ImageStatistics | None = None
    ) -> dict[str, Any]:
        """FID and KID alone, without extrapolation: for curves of many points."""
        theirs, settings = against or self.known, replace(self.settings, limit=limit)
        ours = metrics.image_statistics(samples, self.network, settings=settings, context=self.context)
        pair = Pair(samples=ours, reference=theirs, network=self.network, settings=settings, metrics=("kid",))
        (kid,) = MEASURE["kid"](pair)
        return {
            "fid": metrics.frechet_distance(ours.gaussian, theirs.gaussian), "kid": kid.value,
            "kid_error": kid.error, "samples": ours.count, "against": theirs.count,
        }  # fmt: skip
