"""Latent space: autoencoders of diffusers, cached latents, and the map between images and states.

images ─ encode ─▶ latents on disk ─▶ states of a process ─▶ model ─▶ states ─ decode ─▶ images
"""

from anisodiff.latent.autoencoder import Autoencoder, describe, open_autoencoder
from anisodiff.latent.codec import Codec, codec_of
from anisodiff.latent.encoding import encode
from anisodiff.latent.reconstruction import Reconstructions, reconstruct

__all__ = [
    "Autoencoder", "Codec", "Reconstructions", "codec_of", "describe", "encode", "open_autoencoder", "reconstruct",
]  # fmt: skip
