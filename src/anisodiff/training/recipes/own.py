"""A recipe for images nobody has trained on before: network, batch and length from their size and number."""

from collections.abc import Mapping
from typing import Any

from anisodiff.data import Dataset
from anisodiff.training.config import TrainConfig
from anisodiff.training.recipes import baselines


def for_images(
    count: int,
    channels: int,
    size: tuple[int, int],
    process: str = "anisotropic",
    changes: Mapping[str, Any] | None = None,
) -> tuple[TrainConfig, str]:
    """A config for ``count`` images, with ``changes`` over what is picked, and the outcome in words.

    The network grows with the data: `small` up to 20,000 images, `base` above (62 M parameters want a recipe of
    their own). A run is 400 passes over the images, within 1 M and 50 M.
    """
    network = "small" if count <= 20_000 else "base"
    side = max(size)
    batch = 128 if side <= 64 else 64 if side <= 128 else 32
    images = min(max(400 * count, 1_000_000), 50_000_000)
    images -= images % batch
    config = TrainConfig(
        process={"preset": process},
        network={"name": network, "dropout": 0.1},
        size=size,
        channels=channels,
        batch=batch,
        warm_up=min(640_000, images // 20),
        ema=("constant(0.999)", "power(0.1)"),
        images=images,
        precision="bf16",
        compile=True,
        recompute=side > 128,
        calibration=512,
        log_every=100 * batch,
        checkpoint_every=max(100 * batch, images // 50),
        sample_every=max(100 * batch, images // 20),
    )
    config = baselines.paper(baselines.ended(config)).changed(changes or {})
    color = "grayscale" if channels == 1 else f"{channels} channels"
    words = (
        f"picked for {count} images of {size[0]}×{size[1]}, {color}: process {config.process['preset']}, "
        f"network {config.network['name']}, batch {config.batch}, {config.images} images seen"
    )
    return config, words


def for_dataset(
    dataset: Dataset, process: str = "anisotropic", changes: Mapping[str, Any] | None = None
) -> tuple[TrainConfig, str]:
    """The same for a prepared dataset."""
    return for_images(len(dataset), dataset.channels, dataset.size, process, changes)
