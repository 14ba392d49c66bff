"""CelebA at 64² (crop 140): NCSN++ as Song et al. 2021 publish it for 64², and only the process differing."""

from anisodiff.training.config import TrainConfig
from anisodiff.training.recipes import baselines


def full(process: str) -> TrainConfig:
    """As published: 1.3 M steps of 128 images, Adam 2e-4, EMA 0.999 beside two power functions, dropout 0.1, flips.

    The noise of `ve` ends at σ = 90.
    """
    own = {"sigma_max": 90.0} if process == "ve" else {}
    config = TrainConfig(
        process={"preset": process, **own},
        network={"name": "celeba64", "dropout": 0.1},
        dataset="celeba",
        size=(64, 64),
        ema=("constant(0.999)", "power(0.05)", "power(0.1)"),
        precision="bf16",
        compile=True,
        calibration=1024,
        checkpoint_every=640_000,
    )
    return baselines.ended(config)
