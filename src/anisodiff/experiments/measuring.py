"""The measure all contenders are held to: one feature network, one reference surveyed once, one set of metrics."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from anisodiff.metrics import (
    FeatureNetwork,
    Generation,
    ImageSet,
    Reference,
    Report,
    Settings,
    Survey,
    cached_survey,
    evaluate,
    frechet_distance,
    kernel_distance,
    survey,
)
from anisodiff.metrics.cache import cache_folder

MEASURED = ("fid", "kid", "prdc", "spectrum", "edges")
Tell = Callable[[str, int, int | None], None]


class Yardstick:
    """Feature network and reference; features of the reference are computed once, when first needed."""

    def __init__(
        self,
        network: FeatureNetwork,
        reference: Reference,
        *,
        settings: Settings | None = None,
        cache: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        tell: Tell = lambda _, __, ___: None,
    ) -> None:
        self.network, self.reference, self.settings = network, reference, settings or Settings()
        self.cache, self.say, self.tell = cache or cache_folder(), say, tell

    @property
    def identity(self) -> dict[str, str]:
        """What two numbers must share to be compared."""
        network, split = self.network, self.reference.split
        return {
            "features": f"{network.name} ({network.weights[:12]}), {network.resize}, {network.precision}",
            "reference": f"{self.reference.name}{'/' if split else ''}{split}",
            "metrics": self.settings.describe(),
        }

    def survey(self, images: ImageSet) -> Survey:
        """Of a set to compare with."""
        return cached_survey(
            images, self.network, self.cache, batch_size=self.settings.batch_size,
            projections=self.settings.projections, seed=self.settings.seed, say=self.say,
            progress=lambda done, total: self.tell(f"reference {images.name}", done, total),
        )  # fmt: skip

    @cached_property
    def known(self) -> Survey:
        """The reference."""
        content = self.reference.content
        return content if isinstance(content, Survey) else self.survey(content)

    def report(self, samples: ImageSet, generation: Generation, *, limit: int) -> dict[str, Any]:
        """All of `MEASURED` on the first ``limit`` samples, as plain values."""
        found = evaluate(
            samples, self.known, network=self.network, generation=generation, metrics=MEASURED, limit=limit,
            split=self.reference.split, settings=self.settings, cache=self.cache, say=self.say,
            reference_name=self.reference.name,
            progress=lambda stage, done, total: self.tell(f"features, {stage}", done, total),
        )  # fmt: skip
        return asdict(found)

    def distances(self, samples: ImageSet, *, limit: int, against: Survey | None = None) -> dict[str, Any]:
        """FID and KID alone, without extrapolation: for curves of many points."""
        theirs = against or self.known
        ours = survey(
            samples, self.network, batch_size=self.settings.batch_size, limit=limit,
            progress=lambda done, total: self.tell(f"features, {samples.name}", done, total),
        )  # fmt: skip
        kid = kernel_distance(
            ours.features, theirs.features, generator=self.settings.generator(), block=self.settings.kid_block
        )
        return {
            "fid": frechet_distance(ours.gaussian, theirs.gaussian), "kid": kid.value,
            "kid_error": kid.standard_error, "samples": ours.count, "against": theirs.count,
        }  # fmt: skip


def read_report(values: dict[str, Any]) -> Report:
    """The inverse of `Yardstick.report`, through JSON."""
    return Report.from_json(json.dumps(values))
