"""CIFAR-10 at 32²: NCSN++ of Song et al. 2021, Adam 2e-4, and only the process differing from recipe to recipe."""

from anisodiff.train.config import TrainConfig


def anisotropic() -> TrainConfig:
    """`anisotropic` in our discretisation: flux stencil, exponential step, window objective."""
    return _full("anisotropic")


def anisotropic_paper() -> TrainConfig:
    """`anisotropic` as the paper discretises it: its stencil, tamed Euler–Maruyama, one-step objective."""
    return _full("anisotropic-paper")


def ve() -> TrainConfig:
    """Song et al. 2021: noise alone."""
    return _full("ve")


def heat() -> TrainConfig:
    """The paper's isotropic process, solved exactly."""
    return _full("heat")


def _full(process: str) -> TrainConfig:
    """As published: 1.3 M steps of 128 images, warm-up of 5000 steps, EMA 0.9999 beside two power functions."""
    return TrainConfig(
        process={"preset": process},
        network={"size": "cifar10", "dropout": 0.1},
        dataset="cifar10",
        ema=("constant(0.9999)", "power(0.05)", "power(0.1)"),
        precision="bf16",
        compile=True,
    )


def small(config: TrainConfig) -> TrainConfig:
    """The same for minutes instead of days: `small` network, 3 M images, everything else to scale."""
    return _short(config, "small")


def base(config: TrainConfig) -> TrainConfig:
    """The same for a quarter of an hour on one large GPU: `base` network."""
    return _short(config, "base")


def _short(config: TrainConfig, network: str) -> TrainConfig:
    return config.changed(
        {
            "network": {"size": network, "dropout": 0.1},
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
