"""CIFAR-10 at 32²: NCSN++ of Song et al. 2021, Adam 2e-4, and only the process differing from recipe to recipe."""

from anisodiff.training.config import TrainConfig
from anisodiff.training.recipes import baselines


def full(process: str) -> TrainConfig:
    """As published: 1.3 M steps of 128 images, warm-up of 5000 steps, EMA 0.9999 beside two power functions.

    `anisotropic` is our discretization (flux stencil, exponential step, window objective), `anisotropic-paper` the
    paper's (its stencil, tamed Euler–Maruyama, one-step objective); `heat` is solved exactly, `ve` is noise alone.
    The baselines have the settings of their own authors.
    """
    return baselines.published(_common(process))


def _common(process: str) -> TrainConfig:
    return TrainConfig(
        process={"preset": process},
        network={"name": "cifar10", "dropout": 0.1},
        dataset="cifar10",
        ema=("constant(0.9999)", "power(0.05)", "power(0.1)"),
        precision="bf16",
        compile=True,
    )


def small(process: str) -> TrainConfig:
    """The same for minutes instead of days: `small` network, 3 M images, everything else to scale."""
    return _short(process, "small")


def base(process: str) -> TrainConfig:
    """The same for a quarter of an hour on one large GPU: `base` network."""
    return _short(process, "base")


def best() -> TrainConfig:
    """The best of ours that the studies found (docs/results): `tiny` network, a gentle drift that acts early.

    The noise of `ve` up to σ = 50; smoothing that spares the edges of the image itself (one window), preconditioned
    in the principal axes of the channel_pca, score and drift learned as one output.
    """
    return small("anisotropic").changed(
        {
            "process.diffusivity": "geometric(0.5, 0.001)",
            "process.intensity": "geometric(0.02918, 145.9)",
            "process.drift_anisotropy": 0.05,
            "process.step": "exponential(windows=1)",
            "network": {"name": "tiny", "dropout": 0},
            "channel_pca": True,
            "learns": "reverse_drift",
            "calibration": 2048,
            "images": 5_120_000,
            "ema": ["constant(0.9995)"],
            "log_every": 256_000,
            "checkpoint_every": 1_280_000,
            "sample_every": 2_560_000,
        }
    )


def _short(process: str, network: str) -> TrainConfig:
    return baselines.ended(_common(process)).changed(
        {
            "network": {"name": network, "dropout": 0.1},
            "batch": 512,
            "lr": 4e-4,
            "warm_up": 51_200,
            "images": 3_072_000,
            "calibration": 512,
            "ema": ["constant(0.998)", "power(0.1)"],
            "log_every": 25_600,
            "checkpoint_every": 512_000,
            "sample_every": 1_024_000,
        }
    )
