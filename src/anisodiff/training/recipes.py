"""Recipes: named, complete configs of training runs.

Recipes of one dataset share the network (NCSN++ of Song et al. 2021) and the optimizer; only the process differs.
docs/baselines.md says where each number of a baseline is from.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from anisodiff import notation
from anisodiff.data import Dataset
from anisodiff.registry import PROCESSES
from anisodiff.training.config import TrainConfig, scaled

_EMA = ("constant(0.999)", "power(0.05)", "power(0.1)")
_GPU: dict[str, Any] = {"precision": "bf16", "compile": True}

_PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Lipman et al. 2023, public settings for CIFAR-10: 400 k steps of 128, EMA 0.9999, dropout 0.1
        "flow-matching": {"images": 51_200_000},
        # Rissanen et al. 2023: 1.3 M steps of 128, EMA 0.999, dropout 0.1, no flips
        "heat-dissipation": {"ema": _EMA, "flip": False},
        # Vandersanden et al. 2024 publish none for CIFAR-10: the length and EMA of the others
        "edge-preserving": {},
    }
)
"""What the authors of a baseline publish for CIFAR-10 instead of our settings."""


def _config(preset: str, **settings: Any) -> TrainConfig:
    """A config, with what the kind of process requires.

    The baselines of `registry.PROCESSES` end at t = 0 themselves: t_min only limits how short an edit may be.
    `…-paper` learns the score alone and takes the drift from its stencil, as the paper does.
    """
    ends = {"t_min": 1e-5} if preset in PROCESSES else {}
    paper = {"learns": "score"} if preset.endswith("-paper") else {}
    return TrainConfig(**{"process": {"preset": preset}, **settings, **ends, **paper})


def _cifar10(process: str) -> TrainConfig:
    """CIFAR-10 as published: 1.3 M steps of 128 images, warm-up of 5000 steps, EMA 0.9999 and two power functions.

    `anisotropic` is our discretization (flux stencil, exponential step), `anisotropic-paper` that of the paper (its
    stencil, tamed Euler–Maruyama); `heat` is solved exactly, `ve` is noise alone.
    The baselines have the settings of their own authors.
    """
    return _cifar10_common(process).changed(_PUBLISHED.get(process, {}))


def _cifar10_common(process: str) -> TrainConfig:
    ema = ("constant(0.9999)", *_EMA[1:])
    return _config(process, network={"name": "cifar10", "dropout": 0.1}, dataset="cifar10", ema=ema, **_GPU)


def _cifar10_short(network: str, process: str) -> TrainConfig:
    """CIFAR-10 in minutes instead of days: a smaller network, 3 M images, everything else to scale."""
    return _cifar10_common(process).changed(
        {
            "network": {"name": network, "dropout": 0.1}, "batch": 512, "lr": 4e-4, "warm_up": 51_200,
            "images": 3_072_000, "calibration": 512, "ema": ["constant(0.998)", "power(0.1)"],
            "log_every": 25_600, "checkpoint_every": 512_000, "sample_every": 1_024_000,
        }
    )  # fmt: skip


def _cifar10_best() -> TrainConfig:
    """The best of ours that the studies found (docs/results): `tiny` network, a gentle drift that acts early.

    The noise of `ve` up to σ = 50; smoothing that spares the edges of the image itself (one window), preconditioned
    in decorrelated channels, score and drift learned as one output.
    """
    return _cifar10_short("small", "anisotropic").changed(
        {
            "process.diffusivity": "geometric(0.5, 0.001)", "process.intensity": "geometric(0.02918, 145.9)",
            "process.drift_anisotropy": 0.05, "process.step": "exponential(windows=1)",
            "network": {"name": "tiny", "dropout": 0}, "channel_pca": True, "learns": "reverse_drift",
            "calibration": 2048, "images": 5_120_000, "ema": ["constant(0.9995)"],
            "log_every": 256_000, "checkpoint_every": 1_280_000, "sample_every": 2_560_000,
        }
    )  # fmt: skip


def _celeba64(process: str) -> TrainConfig:
    """CelebA at 64² (crop 140) as published: 1.3 M steps of 128 images, EMA 0.999, dropout 0.1, flips.

    The noise of `ve` ends at σ = 90.
    """
    return _config(
        process, process=_with_noise(process, 90.0), network={"name": "celeba64", "dropout": 0.1}, dataset="celeba",
        size=(64, 64), ema=_EMA, calibration=1024, checkpoint_every=640_000, **_GPU,
    )  # fmt: skip


def _lsun256(process: str) -> TrainConfig:
    """LSUN (church, bedroom) at 256² as published: image pyramids, 2.4 M steps of 64 images, EMA 0.999, no dropout.

    The noise of `ve` ends at σ = 380. Activations are recomputed: 64 images of 256² then fit on one GPU.
    """
    return _config(
        process, process=_with_noise(process, 380.0), network={"name": "lsun256", "dropout": 0.0}, dataset="lsun",
        size=(256, 256), batch=64, warm_up=320_000, images=153_600_000, ema=_EMA, recompute=True, calibration=512,
        log_every=6_400, checkpoint_every=128_000, sample_every=640_000, **_GPU,
    )  # fmt: skip


def _with_noise(process: str, sigma_max: float) -> dict[str, Any]:
    return {"preset": process, "sigma_max": sigma_max} if process == "ve" else {"preset": process}


def _song(make: Callable[[str], TrainConfig]) -> TrainConfig:
    """`ve` as Song et al. 2021 train it: their network's input and output, ‖σs + ξ‖², t uniform, EMA 0.999."""
    config = make("ve")
    ema = (config.ema[0].replace("0.9999", "0.999"), *config.ema[1:])  # short runs keep their own
    return config.changed({"parameterization": "ve", "weighting": "noise", "times": "uniform", "ema": ema})


_PROCESSES = ("anisotropic", "anisotropic-paper", "ve", "heat", *PROCESSES, "song")
_FULL: dict[str, Callable[[str], TrainConfig]] = {"cifar10": _cifar10, "celeba64": _celeba64, "lsun256": _lsun256}
_SIZES = ("base", "small")
_FAMILIES = {f"{data}-{{}}": make for data, make in _FULL.items()} | {
    f"cifar10-{{}}-{size}": partial(_cifar10_short, size) for size in _SIZES
}
RECIPES: Mapping[str, Callable[[], TrainConfig]] = MappingProxyType(
    {
        pattern.format(process): partial(_song, make) if process == "song" else partial(make, process)
        for pattern, make in _FAMILIES.items()
        for process in _PROCESSES
    }
    | {"cifar10-anisotropic-best": _cifar10_best}
)
"""Name → function that returns the config."""


def recipe(name: str) -> TrainConfig:
    """A recipe by name."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; {notation.nearest(name, RECIPES)}")
    return RECIPES[name]()


def for_images(
    count: int, channels: int, size: tuple[int, int], process: str = "anisotropic",
    changes: Mapping[str, Any] | None = None,
) -> tuple[TrainConfig, str]:  # fmt: skip
    """A config for ``count`` images of one's own, with ``changes``; and one line that describes it.

    The network grows with the data: `small` up to 20,000 images, `base` above (62 M parameters want a recipe of
    their own). A run is 400 passes over the images, within 1 M and 50 M.
    """
    side = max(size)
    batch = 128 if side <= 64 else 64 if side <= 128 else 32
    images = min(max(400 * count, 1_000_000), 50_000_000)
    images -= images % batch
    network = {"name": "small" if count <= 20_000 else "base", "dropout": 0.1}
    config = scaled(_config(
        process, network=network, size=size, channels=channels, batch=batch, warm_up=min(640_000, images // 20),
        ema=("constant(0.999)", "power(0.1)"), images=images, recompute=side > 128, calibration=512,
        log_every=100 * batch, checkpoint_every=max(100 * batch, images // 50),
        sample_every=max(100 * batch, images // 20), **_GPU,
    ), changes or {})  # fmt: skip
    color = "grayscale" if channels == 1 else f"{channels} channels"
    return config, (
        f"picked for {count} images of {size[0]}×{size[1]}, {color}: process {config.process['preset']}, "
        f"network {config.network['name']}, batch {config.batch}, {config.images} images seen"
    )


def for_dataset(
    dataset: Dataset, process: str = "anisotropic", changes: Mapping[str, Any] | None = None
) -> tuple[TrainConfig, str]:
    """`for_images` for a prepared dataset."""
    return for_images(len(dataset), dataset.channels, dataset.size, process, changes)
