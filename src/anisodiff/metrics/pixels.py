"""Everything measured on pixels rather than features, collected in one walk over the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from anisodiff.metrics.edges import EdgeStatistics, edge_statistics
from anisodiff.metrics.sliced import project
from anisodiff.metrics.spectra import SpectrumStatistics, spectrum_statistics


@dataclass(frozen=True, kw_only=True, eq=False)
class PixelStatistics:
    """Spectrum, edge histograms, and projections ``[N,P]`` for the sliced Wasserstein distance."""

    spectrum: SpectrumStatistics
    edges: EdgeStatistics
    projections: Tensor

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, for a cache file."""
        tensors = {
            "spectrum": self.spectrum.total,
            "orientation": self.edges.orientation,
            "coherence": self.edges.coherence,
            "magnitude": self.edges.magnitude,
            "projections": self.projections,
        }
        return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> PixelStatistics:
        """The inverse of :meth:`to_arrays`."""
        t = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return PixelStatistics(
            spectrum=SpectrumStatistics(count=len(t["projections"]), total=t["spectrum"]),
            edges=EdgeStatistics(orientation=t["orientation"], coherence=t["coherence"], magnitude=t["magnitude"]),
            projections=t["projections"],
        )


def pixel_statistics(images: Tensor, theta: Tensor) -> PixelStatistics:
    """uint8 ``[B,3,H,W]`` and directions ``[3HW,P]`` → statistics of one batch, kept on the CPU."""
    spectrum, edges = spectrum_statistics(images), edge_statistics(images)
    return PixelStatistics(
        spectrum=SpectrumStatistics(count=spectrum.count, total=spectrum.total.cpu()),
        edges=EdgeStatistics(
            orientation=edges.orientation.cpu(),
            coherence=edges.coherence.cpu(),
            magnitude=edges.magnitude.cpu(),
        ),
        projections=project(images, theta).cpu(),
    )


def combine(parts: Sequence[PixelStatistics]) -> PixelStatistics:
    """Statistics of all parts together."""
    return PixelStatistics(
        spectrum=reduce(SpectrumStatistics.merge, [p.spectrum for p in parts]),
        edges=reduce(EdgeStatistics.merge, [p.edges for p in parts]),
        projections=torch.cat([p.projections for p in parts]),
    )
