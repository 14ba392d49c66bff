"""Everything measured on pixels rather than features, collected in one walk over the images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from anisodiff.metrics.edges import SMALLEST, EdgeStatistics, edge_statistics, no_edges
from anisodiff.metrics.sliced import project
from anisodiff.metrics.spectra import SpectrumStatistics, spectrum_statistics


@dataclass(frozen=True, kw_only=True, eq=False)
class PixelStatistics:
    """Spectrum, edge histograms, and projections ``[N,P]`` for the sliced Wasserstein distance."""

    spectrum: SpectrumStatistics
    edges: EdgeStatistics
    projections: Tensor

    def to_tensors(self) -> dict[str, Tensor]:
        """Plain tensors by name: sums over the images, and ``projections`` with a row an image."""
        return {
            "spectrum": self.spectrum.total,
            "orientation": self.edges.orientation,
            "coherence": self.edges.coherence,
            "magnitude": self.edges.magnitude,
            "projections": self.projections,
        }

    @staticmethod
    def from_tensors(t: Mapping[str, Tensor]) -> PixelStatistics:
        """The inverse of :meth:`to_tensors`."""
        return PixelStatistics(
            spectrum=SpectrumStatistics(count=len(t["projections"]), total=t["spectrum"]),
            edges=EdgeStatistics(orientation=t["orientation"], coherence=t["coherence"], magnitude=t["magnitude"]),
            projections=t["projections"],
        )


def pixel_statistics(images: Tensor, theta: Tensor) -> PixelStatistics:
    """uint8 ``[B,3,H,W]`` and directions ``[3HW,P]`` → statistics of one batch, kept on the CPU; images too small for
    edges have none.
    """
    spectrum = spectrum_statistics(images)
    edges = edge_statistics(images) if min(images.shape[-2:]) >= SMALLEST else no_edges()
    return PixelStatistics(
        spectrum=SpectrumStatistics(count=spectrum.count, total=spectrum.total.cpu()),
        edges=EdgeStatistics(
            orientation=edges.orientation.cpu(),
            coherence=edges.coherence.cpu(),
            magnitude=edges.magnitude.cpu(),
        ),
        projections=project(images, theta).cpu(),
    )
