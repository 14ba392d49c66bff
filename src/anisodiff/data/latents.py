"""Cached latents of a prepared dataset: DATASET/latents/CODE/latents.npy, meta.json and verified.json.

latents.npy is float16 [N, 2, M, C, h, w]: for every image and its mirror image, the mean of the posterior and, where
the autoencoder is variational (M = 2), its standard deviation, both in the autoencoder's units. The states of a
process are

    x = ½ + (z − m_c)/(4 d_c),      z = mean + standard deviation · ξ

with m_c and d_c the mean and the standard deviation of channel c over the dataset. States then have mean ½ and
standard deviation ¼, about those of photographs in [0, 1]: a parameter of a process has the same size relative to
the data in latent space as in pixels.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data.dataset import Dataset, load_array, verified
from anisodiff.io.records import RecordKind
from anisodiff.io.schema import fields, number, require, rows, text, whole
from anisodiff.noise import KeyedNoise
from anisodiff.runtime.progress import Progress

FOLDER = "latents"
_ROUNDING = 1e-3
RECORD = RecordKind(
    "anisodiff latents", 1,
    shape=fields(
        dataset=text, autoencoder=text, sha256=text, shape=rows(whole(1), count=6), mean=rows(number),
        std=rows(number), fingerprint=text,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class LatentScale:
    """The affine map between latents and states, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def near(self, other: "LatentScale") -> bool:
        """Whether both are of the same images, encoded on two machines that round differently."""
        pairs = zip(self.mean, self.std, other.mean, other.std, strict=True)
        return all(abs(m - n) <= _ROUNDING * d and abs(d - e) <= _ROUNDING * d for m, d, n, e in pairs)

    def to_states(self, z: Tensor) -> Tensor:
        """Latents [B, C, h, w] as states with mean ½ and standard deviation ¼."""
        mean, std = self._like(z)
        return 0.5 + (z - mean) / (4 * std)

    def from_states(self, x: Tensor) -> Tensor:
        """The inverse of `to_states`."""
        mean, std = self._like(x)
        return mean + 4 * std * (x - 0.5)

    def _like(self, z: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(values, dtype=z.dtype, device=z.device) for values in (self.mean, self.std))
        return mean[:, None, None], std[:, None, None]


@dataclass(frozen=True, kw_only=True)
class Latents:
    """Latents in a memory map, read only."""

    path: Path
    rows: NDArray[np.float16]
    scale: LatentScale
    meta: dict[str, Any]

    def states(self, rows: Tensor, flip: Tensor | None, noise: Tensor) -> Tensor:
        """States [B, C, h, w] of ``rows`` [B, 2, M, C, h, w], drawn from the posterior with int64 keys [B]."""
        chosen = rows[:, 0] if flip is None else torch.where(flip[:, None, None, None, None], rows[:, 1], rows[:, 0])
        chosen = chosen.float()
        z = chosen[:, 0]
        if chosen.shape[1] == 2:
            z = z + chosen[:, 1] * KeyedNoise(noise).normal(z)
        return self.scale.to_states(z)


def folder_of(dataset: Dataset, code: str) -> Path:
    """Where the latents of an autoencoder with this sha256 lie."""
    return dataset.path / FOLDER / code[:16]


def open_latents(dataset: Dataset, code: str) -> Latents | None:
    """The latents of ``dataset`` by the autoencoder with this sha256; None where they are not complete."""
    path = folder_of(dataset, code)
    meta = RECORD.read(path / "meta.json")
    if meta is None or meta["dataset"] != dataset.fingerprint or meta["sha256"] != code:
        return None
    remedy = f"remove {path} to encode again"
    found, shape = load_array(path / "latents.npy", remedy), tuple(meta["shape"])
    if found.dtype != np.float16 or found.shape != shape or len(dataset) != shape[0]:
        raise ValueError(
            f"{path}: latents.npy is {found.dtype} {[*found.shape]}, expected float16 {[*shape]}; {remedy}"
        )
    channel = rows(number, count=shape[3])
    require(fields(mean=channel, std=channel), meta, path / "meta.json")
    scale = LatentScale(tuple(map(float, meta["mean"])), tuple(map(float, meta["std"])))
    return Latents(path=path, rows=found, scale=scale, meta=meta)


def verify_latents(latents: Latents, progress: Progress | None = None) -> None:
    """Refuse latents that are not what was written."""
    expected = latents.meta["fingerprint"]
    if verified(latents.path / "latents.npy", latents.rows, expected, progress) != expected:
        raise ValueError(f"{latents.path}/latents.npy is damaged or changed; remove {latents.path} to encode again")
