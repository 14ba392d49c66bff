"""Recipes: named, complete configs of training runs, DATA[-PROCESS][-NETWORK] or DATA[-PROCESS]-latent.

Recipes of one dataset share the network (NCSN++ of Song et al. 2021) and the optimizer; only the process differs.
Without a process the default is meant (`registry.DEFAULT_PROCESS`). docs/baselines.md says where each number of a
baseline is from.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from anisodiff import notation
from anisodiff.registry import DEFAULT_PROCESS, PRESETS, PROCESSES
from anisodiff.training.config import TrainConfig

_SD_VAE = {"autoencoder": "stabilityai/sd-vae-ft-mse", "channels": 4, "factor": 8}
_EMA = ("constant(0.999)", "power(0.05)", "power(0.1)")

_PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # facebookresearch/flow_matching: 1800 epochs of 97 steps of 512, no warm-up, no clipping, EMA 0.999
        "flow-matching": {
            "images": 89_395_200, "batch": 512, "lr": 1e-4, "betas": (0.9, 0.95), "warm_up": 0, "clip": 0.0,
            "ema": _EMA, "network.dropout": 0.3,
        },
        # torchcfm: 400 k steps of 128, EMA 0.9999, dropout 0.1
        "flow-matching-uniform": {"images": 51_200_000},
        # Rissanen et al. 2023: 1.3 M steps of 128, EMA 0.999, dropout 0.1, no flips
        "heat-dissipation": {"ema": _EMA, "flip": False},
        # Vandersanden et al. 2024 publish none for CIFAR-10: the length and EMA of the others
        "edge-preserving": {},
    }
)  # fmt: skip
"""What the authors of a baseline publish for CIFAR-10 instead of our settings."""


def config_of(preset: str, **settings: Any) -> TrainConfig:
    """A config, with what the kind of process requires.

    The SPDE is preconditioned in decorrelated channels (FID −6% for `ve`, docs/results). The baselines of
    `registry.PROCESSES` end at t = 0 themselves: t_min only limits how short an edit may be. `…-paper` learns the
    score alone and takes the drift from its stencil, as the paper does. By the t_min of the others `cartoon` has
    smoothed too much of an image.
    """
    own: dict[str, Any] = {"channel_pca": True} if preset in PRESETS else {"t_min": 1e-5}
    if preset == "cartoon":
        own["t_min"] = 0.005
    paper = {"learns": "score"} if preset.endswith("-paper") else {}
    return TrainConfig(**{"process": {"preset": preset}, **own, **paper, **settings})


def _cifar10(process: str) -> TrainConfig:
    """CIFAR-10 as published: 1.3 M steps of 128 images, warm-up of 5000 steps, EMA 0.9999 and two power functions.

    `anisotropic` is our discretization (flux stencil, exponential step), `anisotropic-paper` that of the paper (its
    stencil, tamed Euler–Maruyama); `heat` is solved exactly, `ve` is noise alone.
    The baselines have the settings of their own authors.
    """
    return _cifar10_common(process).changed(_PUBLISHED.get(process, {}))


def _cifar10_common(process: str) -> TrainConfig:
    ema = ("constant(0.9999)", *_EMA[1:])
    return config_of(
        process, network={"name": "cifar10", "dropout": 0.1}, dataset="cifar10", ema=ema, precision="bf16"
    )


def _cifar10_short(network: str, process: str) -> TrainConfig:
    """CIFAR-10 in minutes instead of days: a smaller network, 6.4 M images, everything else to scale."""
    return _cifar10_common(process).changed(
        {
            "network.name": network, "network.dropout": 0.0 if network == "tiny" else 0.1, "batch": 512, "lr": 4e-4,
            "warm_up": 51_200, "images": 6_400_000, "ema": ["constant(0.9995)"], "log_every": 25_600,
            "checkpoint_every": 512_000, "sample_every": 1_024_000,
        }
    )  # fmt: skip


def _celeba64(process: str) -> TrainConfig:
    """CelebA at 64² (crop 140) as published: 1.3 M steps of 128 images, EMA 0.999, dropout 0.1, flips.

    The noise of `ve`, and of the default, ends at σ = 90.
    """
    return config_of(
        process, process=_with_noise(process, 90.0), network={"name": "celeba64", "dropout": 0.1}, dataset="celeba",
        size=(64, 64), ema=_EMA, calibration=1024, checkpoint_every=640_000, precision="bf16",
    )  # fmt: skip


def _lsun256(process: str) -> TrainConfig:
    """LSUN (church, bedroom) at 256² as published: image pyramids, 2.4 M steps of 64 images, EMA 0.999, no dropout.

    The noise of `ve`, and of the default, ends at σ = 380. Activations are recomputed: 64 images of 256² then fit on
    one GPU.
    """
    return config_of(
        process, process=_with_noise(process, 380.0), network={"name": "lsun256", "dropout": 0.0}, dataset="lsun",
        size=(256, 256), batch=64, warm_up=320_000, images=153_600_000, ema=_EMA, recompute=True, calibration=512,
        log_every=6_400, checkpoint_every=128_000, sample_every=640_000, precision="bf16",
    )  # fmt: skip


def _lsun256_latent(process: str) -> TrainConfig:
    """LSUN at 256² in the latent space of sd-vae-ft-mse, as in the paper: 200,000 steps; states of 4×32×32.

    The paper speaks of 64×64, which this autoencoder gives for images of 512² (--set size=512). Network and
    optimizer are those of CIFAR-10, whose images have the size of these latents.
    """
    return config_of(
        process, network={"name": "cifar10", "dropout": 0.1}, dataset="lsun", size=(256, 256), latent=_SD_VAE,
        images=25_600_000, ema=_EMA, precision="bf16",
    )  # fmt: skip


def _scenes128(process: str) -> TrainConfig:
    """A few thousand photographs at 128²: about 20 minutes of one H200."""
    return config_of(
        process, network={"name": "base", "dropout": 0.1}, size=(128, 128), batch=64, lr=2e-4, warm_up=6_400,
        images=1_280_000, ema=("constant(0.9995)",), calibration=1024, log_every=6_400, checkpoint_every=64_000,
        sample_every=128_000, precision="bf16",
    )  # fmt: skip


def _scenes128_latent(process: str) -> TrainConfig:
    """The same photographs as latents of 4×32×32: of an autoencoder of one's own in the folder ``autoencoder``."""
    return _scenes128(process).changed(
        {
            "latent": {"autoencoder": "autoencoder", "channels": 4, "factor": 4}, "batch": 256, "lr": 4e-4,
            "warm_up": 25_600, "images": 5_120_000, "log_every": 25_600, "checkpoint_every": 256_000,
            "sample_every": 512_000, "calibration": 2048,
        }
    )  # fmt: skip


def _with_noise(process: str, sigma_max: float) -> dict[str, Any]:
    own = {"sigma_max": sigma_max} if process in ("ve", "cartoon", DEFAULT_PROCESS) else {}
    return {"preset": process, **own}


def _song(make: Callable[[str], TrainConfig]) -> TrainConfig:
    """`ve` as Song et al. 2021 train it: their network's input and output, ½‖σs + ξ‖², EMA 0.999.

    Their t is uniform on (1e-5, 1) and their noise σ(t): log-uniform from σ_min·r^1e-5 to σ_max, r = σ_max/σ_min. The
    noise of our states at t is √(σ(t)² − σ_min²), which is that of their t = 1e-5 at t_min.
    """
    config = make("ve")
    ratio = float(config.process.get("sigma_max", 50.0)) / 0.01
    first = 2.0 * math.log(1 + ratio**2e-5) / (2 * math.log(ratio))
    ema = (config.ema[0].replace("0.9999", "0.999"), *config.ema[1:])  # short runs keep their own
    own = {"parameterization": "ve", "channel_pca": False, "weighting": "noise", "times": "log_uniform"}
    return config.changed({**own, "t_min": round(first, 8), "ema": ema})


_PROCESSES = (*(name for name in PRESETS if name != "heat-paper"), *PROCESSES, "song")
SIZES = ("base", "small", "tiny")
_FAMILIES: dict[str, Callable[[str], TrainConfig]] = {
    "cifar10{}": _cifar10,
    **{f"cifar10{{}}-{size}": partial(_cifar10_short, size) for size in SIZES},
    "celeba64{}": _celeba64,
    **{f"{data}256{{}}": _lsun256 for data in ("lsun", "church", "bedroom")},
    **{f"{data}256{{}}-latent": _lsun256_latent for data in ("church", "bedroom")},
    "scenes128{}": _scenes128,
    "scenes128{}-latent": _scenes128_latent,
}
RECIPES: Mapping[str, Callable[[], TrainConfig]] = MappingProxyType(
    {pattern.format(""): partial(make, DEFAULT_PROCESS) for pattern, make in _FAMILIES.items()}
    | {
        pattern.format(f"-{process}"): partial(_song, make) if process == "song" else partial(make, process)
        for pattern, make in _FAMILIES.items()
        for process in _PROCESSES
    }
)
"""Name → function that returns the config."""


def recipe(name: str) -> TrainConfig:
    """A recipe by name."""
    notation.check_choice(name, RECIPES, "recipe")
    return RECIPES[name]()
