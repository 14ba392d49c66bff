"""Images ↔ states of a process in latent space: an autoencoder with the scale of a run's latents."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anisodiff.data.latents import LatentScale
from anisodiff.latent.autoencoder import Autoencoder, Description, describe


class Codec:
    """Encodes images and decodes states [B, C, h, w]."""

    def __init__(self, autoencoder: Autoencoder, scale: LatentScale, channels: int) -> None:
        self.autoencoder, self.scale, self.channels = autoencoder, scale, channels

    def encode(self, images: Tensor) -> Tensor:
        """The states at the means of the posteriors of ``images`` [B, C, H, W] in [0, 1]."""
        return self.scale.to_states(self.autoencoder.encode(images)[0]).to(images.dtype)

    def decode(self, states: Tensor) -> Tensor:
        """Images [B, C, H, W] in [0, 1]."""
        images = self.autoencoder.decode(self.scale.from_states(states))
        return in_channels(images, self.channels).to(states.dtype)

    def to(self, device: torch.device | str) -> "Codec":
        """Move to another device."""
        self.autoencoder.to(device)
        return self


def in_channels(images: Tensor, channels: int) -> Tensor:
    """Images [B, 3, H, W] as gray ones, where ``channels`` is 1: the mean of the three."""
    return images.mean(1, keepdim=True) if channels == 1 else images


def codec_of(latent: Mapping[str, Any], channels: int, device: torch.device | str, place: str | None = None) -> Codec:
    """The codec of a run's keys ``latent``, for images of these ``channels``.

    ``place``: where its autoencoder lies now, or is to be downloaded from.

    An autoencoder of another latent shape or scale is refused. Without ``place`` nothing is downloaded, and the
    weights must be those of the training.
    """
    try:
        about = describe(place or str(latent["autoencoder"]), online=place is not None)
    except ValueError as error:
        if place is not None:
            raise
        raise ValueError(f"the autoencoder of this model: {error}") from None
    check_same(latent, about)
    autoencoder = Autoencoder(about, device)
    if place is None and latent.get("sha256") not in (None, autoencoder.sha256):
        raise ValueError(
            f"the autoencoder of this model: {about.name} has other weights than in training; give the place of the "
            f"right ones with --latent, or use these with --latent {about.name}"
        )
    scale = LatentScale(tuple(latent["mean"]), tuple(latent["std"]))
    return Codec(autoencoder, scale, channels)


def check_same(latent: Mapping[str, Any], about: Description) -> None:
    """Refuse an autoencoder whose latents are not those of the run."""

    def words(channels: int, factor: int, scale: tuple[float, ...]) -> str:
        return f"{channels} channels, {factor}-fold, scaling {scale[0]:g}, shift {scale[1]:g}"

    wanted = words(latent["channels"], latent["factor"], tuple(latent.get("scale", about.scale)))
    got = words(about.channels, about.factor, about.scale)
    if got != wanted:
        raise ValueError(f"{about.name} has other latents: got {got}; expected {wanted}")
