"""A dataset of small pictures, and autoencoders that diffusers itself has written."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderTiny

from anisodiff.data import Dataset, in_memory, prepare

FACTOR, CHANNELS, SIZE = 2, 3, (8, 16)


def pixels(count: int = 40, seed: int = 0) -> np.ndarray:
    """Ramps in random directions and colors, uint8 [N, 3, 8, 16]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : SIZE[0], 0 : SIZE[1]] / 7 - 0.5
    a, b = rng.uniform(-0.5, 0.5, (2, count, 3, 1, 1))
    field = 0.5 + a * x + b * y + rng.normal(0, 0.03, (count, 3, *SIZE))
    return (255 * field.clip(0, 1)).astype(np.uint8)


def write_autoencoder(path, *, channels=CHANNELS, kind=AutoencoderKL, **changes):
    """A random autoencoder, written by diffusers' save_pretrained."""
    torch.manual_seed(0)
    if kind is AutoencoderTiny:
        keys = {
            "encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1), "latent_channels": channels,
        }  # fmt: skip
    else:
        keys = {
            "block_out_channels": (8, 8), "down_block_types": ("DownEncoderBlock2D",) * 2, "norm_num_groups": 4,
            "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": channels,
        }  # fmt: skip
    made = kind(**{**keys, **changes})
    made.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory):
    return write_autoencoder(tmp_path_factory.mktemp("autoencoder"))


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return prepare(in_memory(pixels()), tmp_path / "data", size=SIZE, channels=3).dataset
