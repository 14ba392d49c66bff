"""What a run is: one frozen configuration, with every length in images, so that the batch never changes a meaning."""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anisodiff import notation
from anisodiff.io.arrays import LARGEST_SIDE
from anisodiff.models.base import CHOICES, Learns, ModelOptions, Parameterization, TimeDensity, Weighting
from anisodiff.networks import own
from anisodiff.registry import DEFAULT_PROCESS, ELSEWHERE, NETWORKS, TRAINED, process_keys
from anisodiff.training.config_values import AUTO, classes_of, latent_of, named, sequence
from anisodiff.training.ema import profile

_KEY = {"process": "preset", "network": "name", "latent": "autoencoder"}
"""The key of a group that a bare name stands for."""
PRECISIONS = ("fp32", "bf16", "fp64")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that fixes a run. `from_dict` reads what `to_dict` wrote, and refuses unknown keys."""

    process: Mapping[str, Any] = field(default_factory=lambda: {"preset": DEFAULT_PROCESS})
    """A preset, and keys of `ProcessConfig` to override (of the default and of `ve` also sigma_max); a name alone
    will do."""
    network: Mapping[str, Any] = field(default_factory=lambda: {"name": "cifar10"})
    """A registered network, or the class or import path ``module:Class`` of your own, and its keyword arguments
    (dropout, nf, …); the name alone will do."""
    dataset: str = ""
    """The well-known set the recipe is made for; empty: any."""
    size: tuple[int, int] = (32, 32)
    """(H, W)."""
    channels: int = 3
    latent: Mapping[str, Any] = field(default_factory=dict)
    """Train on latents: ``autoencoder`` (a folder, or OWNER/NAME on the Hub), ``channels`` and ``factor`` of its
    latents. The run adds the sha256 of the weights, the ``scale`` of diffusers, and ``mean`` and ``std`` of its
    latents. Empty: train on pixels."""
    parameterization: Parameterization = "residual"
    """This and the next four: see `models.base.ModelOptions`."""
    learns: Learns = "score_and_drift"
    channel_pca: bool = False
    weighting: Weighting = "state"
    times: TimeDensity = "level"
    level_mean: float = -0.5
    """Density of t: noise level ln(σ/σ_d) ~ N(level_mean, level_std²), cut to [t_min, T]."""
    level_std: float = 1.2
    t_min: float = 0.02
    """Where sampling will end; nothing is learned below."""
    batch: int = 128
    """Images a step, over all processes."""
    accumulation: int = 1
    """Parts into which each process cuts its share of the batch, to save memory; changes no result."""
    lr: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warm_up: int = 640_000
    """Images over which the learning rate rises from 0."""
    clip: float = 1.0
    """Largest norm of the gradient; 0: no clipping."""
    ema: tuple[str, ...] = ("constant(0.9999)",)
    """Averages of the weights, `constant(DECAY)` or `power(STD)`; the first is the model."""
    classes: tuple[str, ...] = ()
    """Names of the classes to learn, as the data have them; ``auto``: read them there. Empty: unconditional."""
    label_dropout: float = 0.1
    """Share of the labels that the network is not told in training, so that it learns all classes at once, too."""
    flip: bool = True
    seed: int = 0
    images: int = 166_400_000
    """Length of the run: images seen. 0: no step, a checkpoint of what the run begins with."""
    precision: str = "fp32"
    """fp32, bf16 (the network alone, on CUDA alone), or fp64 for tests."""
    compile: bool = False
    """torch.compile the network (on CUDA): for networks of one's own. NCSN++ has kernels instead."""
    shard: bool = False
    """Cut weights, gradients, moments and averages among the processes (FSDP2): for networks that do not fit."""
    recompute: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    deterministic: bool = False
    """On CUDA: algorithms that repeat bit by bit, at some cost; on a CPU all do."""
    calibration: int = 2048
    """Images the preconditioning is measured on, a small set's again and again; below 16 no signal is significant."""
    log_every: int = 25_600
    """Images between two lines of the log, checkpoints, sample grids (0: none of these)."""
    checkpoint_every: int = 1_280_000
    sample_every: int = 2_560_000

    def __post_init__(self) -> None:
        take = object.__setattr__
        take(self, "process", named(self.process, "process", _KEY["process"], process_keys(), TRAINED))
        take(self, "network", named(own.as_keys(self.network), "network", _KEY["network"], None, tuple(NETWORKS)))
        if not isinstance(self.dataset, str):
            raise ValueError(f"dataset: got {self.dataset!r}, expected a name, or nothing for any")
        sides = sequence(self.size, "size")
        take(
            self,
            "size",
            tuple(
                notation.in_range(side, "size", 3, whole=True) for side in (sides * 2 if len(sides) == 1 else sides)
            ),
        )
        if len(self.size) != 2:
            raise ValueError(f"size: got {list(self.size)}, expected one side or [height, width]")
        if max(self.size) > LARGEST_SIDE:
            raise ValueError(f"size: got {list(self.size)}, expected sides of {LARGEST_SIDE} pixels at most")
        for name, least in _WHOLE.items():
            notation.check_number(self, name, least, whole=True)
        if self.channels not in (1, 3):
            raise ValueError(f"channels: got {self.channels}, expected 1 (grayscale) or 3 (RGB)")
        take(self, "latent", latent_of(self.latent, self.size))
        for name, (low, high) in _REAL.items():
            notation.check_number(self, name, low, high)
        pair = sequence(self.betas, "betas")
        take(self, "betas", tuple(notation.in_range(b, "betas", 0.0, 1.0) for b in pair))
        if len(self.betas) != 2 or max(self.betas) >= 1:
            raise ValueError(f"betas: got {list(self.betas)}, expected two numbers below 1")
        take(self, "ema", tuple(str(profile(str(text))) for text in sequence(self.ema, "ema")))
        take(self, "classes", classes_of(self.classes))
        if not self.ema:
            raise ValueError("ema: expected one average at least, such as constant(0.9999)")
        for f in dataclasses.fields(self):
            if isinstance(f.default, bool) and not isinstance(getattr(self, f.name), bool):
                raise ValueError(f"{f.name}: got {getattr(self, f.name)!r}, expected true or false")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: got {self.precision!r}, expected fp32, bf16 (on CUDA) or fp64 (for tests)")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise ValueError(f"{name}: unknown {value!r}; {notation.nearest(str(value), known)}")
        self.check_batch(1)

    def check_batch(self, world: int) -> None:
        """Each of ``world`` processes gets an equal share of the batch, cut into equal parts."""
        parts = world * self.accumulation
        if self.batch % parts:
            reasons = [f"accumulation = {self.accumulation}"] * (self.accumulation > 1)
            reasons += [f"{world} processes"] * (world > 1)
            raise ValueError(
                f"batch: got {self.batch} with {', '.join(reasons)}, expected a multiple of {parts}, such as "
                f"{-(-self.batch // parts) * parts}"
            )

    @property
    def asks_classes(self) -> bool:
        """Whether the names of the classes are still to be read from the data."""
        return self.classes == AUTO

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what the process and the network see: images, or their latents."""
        if not self.latent:
            return (self.channels, *self.size)
        factor = self.latent["factor"]
        return (self.latent["channels"], self.size[0] // factor, self.size[1] // factor)

    @property
    def model_options(self) -> ModelOptions:
        return ModelOptions(**{f.name: getattr(self, f.name) for f in dataclasses.fields(ModelOptions)})

    @property
    def steps(self) -> int:
        """Steps until ``images`` are seen."""
        return -(-self.images // self.batch)

    @property
    def images_seen(self) -> int:
        """Images that the run sees: ``images``, rounded up to whole batches."""
        return self.steps * self.batch

    def to_dict(self) -> dict[str, Any]:
        """Plain values: JSON, YAML."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()} | {
            "process": dict(self.process),
            "latent": dict(self.latent),
            "network": {k: list(v) if isinstance(v, tuple) else v for k, v in self.network.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """Read what `to_dict` wrote."""
        if not isinstance(values, Mapping):
            raise ValueError(f"a run's config: expected keys and values, got {type(values).__name__}")
        values = current(values)
        for key in values:
            if key not in FIELDS:
                known = {name: name for name in FIELDS} | ELSEWHERE
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {known[near[0]]!r}?" if near else "'anisodiff train --dry-run' prints all keys"
                raise ValueError(f"train: unknown key {key!r}; {hint}")
        return cls(**values)

    def changed(self, changes: Mapping[str, Any]) -> "TrainConfig":
        """The config with changes; ``process.KEY``, ``network.KEY`` and ``latent.KEY`` reach into the groups."""
        values = self.to_dict()
        for key, value in changes.items():
            group, dot, inner = str(key).partition(".")
            if dot and group in _KEY:
                given = values[group]
                named = {_KEY[group]: given} if isinstance(given, str) else given
                values[group] = {**named, inner: value}
            else:
                values[str(key)] = value
        return TrainConfig.from_dict(values)


def scaled(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """``config.changed(changes)``; where the length is changed, warm-up and intervals change in proportion.

    Those that are among the changes stay as given. A short run is not cut into more than every hundredth step of
    checkpoints and grids, and every tenth of lines of the log.
    """
    made = config.changed(changes)
    if "images" not in changes or not made.images or not config.images:
        return made
    ratio = made.images / config.images
    least = {"warm_up": 0, "log_every": 10, "checkpoint_every": 100, "sample_every": 100}  # in batches
    for key, batches in least.items():
        old = getattr(config, key)
        if key not in changes and old:
            floor = min(old, batches * made.batch)
            made = dataclasses.replace(made, **{key: max(floor, round(old * ratio))})
    return made


def completed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A config as it was saved: a setting that did not exist yet was at its default."""
    return {**TrainConfig().to_dict(), **current(saved)}


def current(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A config as it was saved, without a key that is no more where it was off."""
    return {key: value for key, value in saved.items() if (key, value) != ("dequantize", False)}


FIELDS = tuple(f.name for f in dataclasses.fields(TrainConfig))
FREE = (
    "images", "log_every", "checkpoint_every", "sample_every",
    "accumulation", "compile", "shard", "recompute", "deterministic",
)  # fmt: skip
"""What may change when a run is continued: its length, its intervals, and how it is computed."""

_WHOLE = {
    "channels": 1, "batch": 1, "accumulation": 1, "warm_up": 0, "seed": 0, "images": 0, "calibration": 16,
    "log_every": 1, "checkpoint_every": 0, "sample_every": 0,
}  # fmt: skip
_REAL = {
    "level_mean": (-20.0, 20.0), "level_std": (0.01, 20.0), "t_min": (1e-9, 1e6),
    "lr": (0.0, 10.0), "eps": (1e-30, 1.0), "clip": (0.0, 1e9), "label_dropout": (0.0, 0.9),
}  # fmt: skip
