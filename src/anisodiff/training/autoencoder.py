"""A small KL autoencoder of one's own images: diffusers' `AutoencoderKL`, trained by

    mean |x − x̂| + β·mean KL(N(mean, std²) ‖ N(0, 1)),      x̂ = decode(mean + std·ξ)

There is no perceptual and no adversarial loss, so fine texture is smoother than in the published autoencoders.
Batches and noise are functions of (seed, step): a run that is killed continues with the same bits.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.data import Dataset, Loader
from anisodiff.extras import need
from anisodiff.io.checkpoint import Snapshot, Store, alone
from anisodiff.io.schema import anything, fields, optional, require, table
from anisodiff.io.tensor_files import put_json, put_tensors
from anisodiff.latent.autoencoder import CONFIG, WEIGHTS
from anisodiff.noise import KeyedNoise, combine
from anisodiff.tensors import check_shapes
from anisodiff.training.adam import check_moments, load_moments, moments
from anisodiff.training.ema import EMA, Constant
from anisodiff.training.hooks import TrainingOutcome, on_signals
from anisodiff.version import __version__

_NOISE = 5  # a stream of the run's keys
_SETTINGS = fields(autoencoder=optional(table(anything)))


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig:
    """Everything that fixes the autoencoder of a dataset."""

    channels: int = 4
    """Of a latent."""
    factor: int = 8
    """Pixels along a side of an image for one of its latent: 2, 4, 8 or 16."""
    width: int = 64
    """Channels of the first level; the second has twice, the others four times as many."""
    layers: int = 1
    """Residual blocks on each level."""
    beta: float = 1e-4
    """Weight of the KL divergence, a mean over the numbers of a latent."""
    batch: int = 32
    lr: float = 3e-4
    warm_up: int = 3_200
    """Images over which the learning rate rises from 0."""
    ema: float = 0.999
    images: int = 1_000_000
    """Length of the run: images seen."""
    checkpoint_every: int = 64_000
    seed: int = 0

    def __post_init__(self) -> None:
        ranges: Mapping[str, tuple[float, float]] = {
            "channels": (1, 64), "width": (8, 512), "layers": (1, 4), "beta": (0, 10), "batch": (1, 4096),
            "lr": (0, 1), "warm_up": (0, 1e12), "ema": (0, 0.999999), "images": (1, 1e12),
            "checkpoint_every": (1, 1e12), "seed": (0, 2**53),
        }  # fmt: skip
        if self.factor not in (2, 4, 8, 16):
            raise ValueError(f"factor: got {self.factor!r}, expected 2, 4, 8 or 16")
        for name, (low, high) in ranges.items():
            notation.check_number(self, name, low, high, whole=type(getattr(AutoencoderConfig, name)) is int)
        if self.width % 8:
            raise ValueError(f"width: got {self.width}, expected a multiple of 8")

    @property
    def steps(self) -> int:
        return -(-self.images // self.batch)

    def network(self, channels: int, size: tuple[int, int]) -> dict[str, Any]:
        """Arguments of `AutoencoderKL` for images of these channels and this size."""
        if any(side % self.factor or not side for side in size):
            raise ValueError(
                f"factor: got {self.factor} for images of {size[0]}×{size[1]}, expected a divisor of both"
            )
        levels = self.factor.bit_length()
        widths = [self.width * min(4, 2**level) for level in range(levels)]
        return {
            "in_channels": channels, "out_channels": channels, "latent_channels": self.channels,
            "down_block_types": ["DownEncoderBlock2D"] * levels, "up_block_types": ["UpDecoderBlock2D"] * levels,
            "block_out_channels": widths, "layers_per_block": self.layers, "norm_num_groups": 8,
            "sample_size": max(size), "scaling_factor": 1.0,
        }  # fmt: skip


def train_autoencoder(
    dataset: Dataset,
    output: Path,
    config: AutoencoderConfig,
    *,
    device: torch.device,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int | None, str], None] = lambda done, total, note: None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainingOutcome:
    """Train on ``dataset``, or continue; ``output`` is then a folder that --latent takes."""
    kind = need("diffusers", "an autoencoder", "diffusers").AutoencoderKL
    arguments = config.network(dataset.channels, dataset.size)
    with alone(output):
        torch.manual_seed(config.seed)
        network = kind(**arguments).to(device)
        run = _Run(network, config, dataset, output, device, say)
        run.resume()
        loader = Loader(dataset, batch=config.batch, seed=config.seed, device=device)
        loss: float | None = None
        with on_signals() as asked:
            stopped = False
            batches = loader.iterate(run.step)
            try:
                while run.step < config.steps and not stopped:
                    loss = run.advance(next(batches)[0])
                    asked.at_once = False
                    stopped = asked.asked or stop()
                    progress(run.step * config.batch, config.steps * config.batch, f"loss {loss:.4f}")
                    seen, every = run.step * config.batch, config.checkpoint_every
                    if seen // every > (seen - config.batch) // every:
                        run.save()
            finally:
                getattr(batches, "close", lambda: None)()
        checkpoint = run.save()
    return TrainingOutcome(
        step=run.step, images=run.step * config.batch, finished=run.step >= config.steps, skipped=0, loss=loss,
        checkpoint=checkpoint,
    )  # fmt: skip


class _Run:
    """Weights, their average and the optimizer, with their checkpoints."""

    def __init__(
        self, network: Any, config: AutoencoderConfig, dataset: Dataset, output: Path, device: torch.device,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.network, self.config, self.output, self.device, self.say = network, config, output, device, say
        self.weights: dict[str, Tensor] = dict(network.named_parameters())
        self.ema = EMA(self.weights, (Constant(config.ema),))
        self.adam = torch.optim.Adam(self.weights.values(), lr=config.lr, betas=(0.9, 0.99))
        self.store, self.step = Store(output), 0
        about = {
            "version": __version__, "config": {"autoencoder": dataclasses.asdict(config)}, "process": {},
            "network": {"name": "AutoencoderKL", **dict(network.config)},
            "data": {"fingerprint": dataset.fingerprint, "images": len(dataset)},
        }  # fmt: skip
        self.about: dict[str, Any] = json.loads(json.dumps(about))

    def resume(self) -> None:
        """Continue from the newest checkpoint of the folder, where it is of the same run."""
        saved = self.store.newest(self.say)
        if saved is None:
            return
        free = ("images", "checkpoint_every")
        own = require(_SETTINGS, saved.meta["config"], saved.path / "config.json")
        before, now = own.get("autoencoder") or {}, self.about["config"]["autoencoder"]
        changed = [key for key in now if key not in free and before.get(key) != now[key]]
        if changed or saved.meta["data"]["fingerprint"] != self.about["data"]["fingerprint"]:
            what = f"another {', '.join(changed)}" if changed else "other images"
            raise ValueError(f"{self.output} holds an autoencoder of {what}; choose another folder")
        weights, averaged, moved = (saved.tensors(name) for name in ("state/weights", "model", "state/optimizer"))
        for name, found in (("state/weights", weights), ("model", averaged)):
            check_shapes(f"{saved.path}: {name}.safetensors is damaged", found, self.weights)
        check_moments(f"{saved.path}: state/optimizer.safetensors is damaged", moved, self.weights)
        with torch.no_grad():
            for name, p in self.weights.items():
                p.copy_(weights[name])
            self.ema.load(0, averaged)
            load_moments(self.adam, self.weights, moved)
        self.step = saved.step
        self.say(f"continuing from {saved.path.name}: {self.step * self.config.batch} images seen")

    def advance(self, images: Tensor) -> float:
        """One step; its loss."""
        seen = self.step * self.config.batch
        for group in self.adam.param_groups:
            group["lr"] = self.config.lr * min(1.0, (seen + self.config.batch) / max(1, self.config.warm_up))
        keys = combine(self.config.seed, _NOISE, seen + torch.arange(len(images), device=self.device))
        x = 2 * images - 1
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            law = self.network.encode(x).latent_dist
            mean, std = law.mean.float(), law.std.float()
            made = self.network.decode(mean + std * KeyedNoise(keys).normal(mean)).sample.float()
        kl = 0.5 * (mean.square() + std.square() - 1 - 2 * std.log()).mean()
        loss = (x - made).abs().mean() + self.config.beta * kl
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        found = float(loss.detach())
        if not torch.isfinite(loss.detach()):
            raise ValueError(f"the loss is not finite at step {self.step}; try a smaller lr, in a new folder")
        self.adam.step()
        self.step += 1
        self.ema.update(self.step, torch.ones((), device=self.device))
        return found

    def save(self) -> Path:
        """A checkpoint, and the averaged weights as diffusers reads them."""
        weights, average = {name: p.detach() for name, p in self.weights.items()}, self.ema.of(0)
        state = {"weights": weights, "optimizer": moments(self.adam, self.weights)}
        meta = {**self.about, "step": self.step, "images": self.step * self.config.batch}
        saved = self.store.save(Snapshot(step=self.step, meta=meta, model=average, state=state))
        config = {"_class_name": "AutoencoderKL", **{k: v for k, v in self.network.config.items() if k[0] != "_"}}
        for name, write in ((WEIGHTS, put_tensors), (CONFIG, put_json)):
            hidden = self.output / f".{name}"
            hidden.unlink(missing_ok=True)  # of a run that was killed here
            write(hidden, average if name == WEIGHTS else config)
            hidden.replace(self.output / name)
        return saved
