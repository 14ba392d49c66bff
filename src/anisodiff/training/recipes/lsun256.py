"""LSUN (church, bedroom) at 256²: NCSN++ with image pyramids as Song et al. 2021 publish it for 256²."""

from anisodiff.training.config import TrainConfig
from anisodiff.training.recipes import baselines


def full(process: str) -> TrainConfig:
    """As published: 2.4 M steps of 64 images, Adam 2e-4, EMA 0.999 beside two power functions, no dropout, flips.

    The noise of `ve` ends at σ = 380. Activations are recomputed: 64 images of 256² then fit on one GPU.
    """
    own = {"sigma_max": 380.0} if process == "ve" else {}
    config = TrainConfig(
        process={"preset": process, **own},
        network={"name": "lsun256", "dropout": 0.0},
        dataset="lsun",
        size=(256, 256),
        batch=64,
        warm_up=320_000,
        images=153_600_000,
        ema=("constant(0.999)", "power(0.05)", "power(0.1)"),
        precision="bf16",
        compile=True,
        recompute=True,
        calibration=512,
        log_every=6_400,
        checkpoint_every=128_000,
        sample_every=640_000,
    )
    return baselines.ended(config)
