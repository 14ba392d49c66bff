"""Autoencoders of diffusers, `AutoencoderKL` and `AutoencoderTiny`, by folder or by name on the Hub.

Only tensors are read (.safetensors), into a class of diffusers that this module names; no code comes from a folder.
Images are in [0, 1], latents in the autoencoder's own units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from anisodiff.extras import need
from anisodiff.io import hub
from anisodiff.io.archives import one_line
from anisodiff.io.checkpoint import require_finite
from anisodiff.io.records import read_json
from anisodiff.io.schema import Shape, fields, number, optional, require, rows, text, whole
from anisodiff.io.tensor_files import get_tensors, sha256
from anisodiff.notation import alternatives
from anisodiff.tensors import check_shapes

CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"
TILE = 512
"""Pixels: `AutoencoderKL` codes larger images in overlapping tiles."""
_CHANNELS = rows(whole(1, 1 << 13))
_KINDS: Mapping[str, tuple[str, Shape]] = MappingProxyType(
    {
        "AutoencoderKL": (
            "block_out_channels",
            fields(block_out_channels=_CHANNELS, layers_per_block=optional(whole(1, 64))),
        ),
        "AutoencoderTiny": (
            "encoder_block_out_channels",
            fields(
                encoder_block_out_channels=_CHANNELS, num_encoder_blocks=optional(rows(whole(1, 64))),
                decoder_block_out_channels=_CHANNELS, num_decoder_blocks=optional(rows(whole(1, 64))),
                upsampling_scaling_factor=optional(whole(2, 2)),
            ),
        ),
    }
)  # fmt: skip
"""Class → the list of its levels (each but the first halves the image), and bounds on what it builds."""
_COMMON = fields(
    _class_name=text, in_channels=whole(1, 16), out_channels=whole(1, 16), latent_channels=whole(1, 1 << 10),
    scaling_factor=optional(number), shift_factor=optional(number),
)  # fmt: skip
_DEEPEST = 8


@dataclass(frozen=True, kw_only=True)
class Description:
    """What an autoencoder is, read from its config alone."""

    name: str
    """As the user gave it."""
    folder: Path
    config: dict[str, Any]
    channels: int
    """Of a latent."""
    factor: int
    """Pixels along a side of an image for one of its latent."""

    @property
    def scale(self) -> tuple[float, float]:
        """diffusers' scaling and shift: what a model trained elsewhere takes for the unit of a latent."""
        return float(self.config.get("scaling_factor") or 1.0), float(self.config.get("shift_factor") or 0.0)

    def as_keys(self) -> dict[str, Any]:
        """The keys ``latent`` of a `TrainConfig`, as far as they are known without encoding."""
        place = str(Path(self.name).resolve()) if Path(self.name).is_dir() else self.name
        return {"autoencoder": place, "channels": self.channels, "factor": self.factor}


def describe(name: str | Path, *, online: bool) -> Description:
    """The autoencoder in a folder (or its subfolder vae), or OWNER/NAME on the Hub.

    ``online``: whether it may be downloaded. Without, only what has been downloaded before is found.
    """
    folder = _folder(str(name), online=online)
    config = read_json(folder / CONFIG)
    kind = str(config.get("_class_name"))
    if kind not in _KINDS:
        raise ValueError(f"{folder / CONFIG}: got the class {kind!r}, expected {alternatives(_KINDS)}")
    key, shape = _KINDS[kind]
    require(_COMMON, config, folder / CONFIG)
    require(shape, config, folder / CONFIG)
    levels = len(config[key])
    if not 1 <= levels <= _DEEPEST:
        raise ValueError(f"{folder / CONFIG}: {key} has {levels} levels, expected 1 to {_DEEPEST}")
    for one, other in (("in_channels", "out_channels"), (key, key.replace("encoder", "decoder"))):
        sizes = [len(x) if isinstance(x, list) else x for x in (config[one], config[other])]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{folder / CONFIG}: it decodes to other images than it encodes: {one} and {other} are "
                f"{sizes[0]} and {sizes[1]}"
            )
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder / WEIGHTS} is missing: expected the weights beside {CONFIG}")
    return Description(
        name=str(name),
        folder=folder,
        config=config,
        channels=int(config["latent_channels"]),
        factor=2 ** (levels - 1),
    )


def _folder(name: str, *, online: bool) -> Path:
    here = Path(name)
    for folder in (here, here / "vae"):
        if (folder / CONFIG).is_file():
            return folder
    plain = name.removeprefix(hub.PREFIX)
    if here.exists() or not hub.is_repository(plain):
        raise ValueError(
            f"{name} holds no autoencoder: expected {CONFIG} and {WEIGHTS}, as diffusers' save_pretrained writes "
            "them; give its folder with --latent"
        )
    return hub.fetch_files(plain, (CONFIG, WEIGHTS), online=online, remedy=_provide(plain))


def _provide(name: str) -> str:
    """How to provide an autoencoder of the Hub."""
    return (
        f"where there is a network, give --latent {name}; elsewhere, download it first with 'hf download {name} "
        f"{CONFIG} {WEIGHTS} --local-dir FOLDER' and give --latent FOLDER"
    )


class Autoencoder:
    """An autoencoder with its weights, on a device."""

    def __init__(self, about: Description, device: torch.device | str = "cpu") -> None:
        self.about, self.device = about, torch.device(device)
        weights = about.folder / WEIGHTS
        self.sha256 = sha256(weights)
        self._network = _built(about, weights).to(self.device).eval().requires_grad_(False)

    def to(self, device: torch.device | str) -> "Autoencoder":
        """Move to another device."""
        self.device = torch.device(device)
        self._network = self._network.to(self.device)
        return self

    @torch.no_grad()
    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mean and standard deviation of the posterior, [B, C, h, w]; no deviation where it is not variational."""
        channels, factor = int(self.about.config["in_channels"]), self.about.factor
        if images.shape[1] not in (1, channels) or images.shape[-2] % factor or images.shape[-1] % factor:
            raise ValueError(
                f"{self.about.name} encodes {channels} channels with sides that are multiples of {factor}, got "
                f"{'×'.join(map(str, images.shape[1:]))}"
            )
        scaled = (2 * images.to(self.device, torch.float32) - 1).expand(-1, channels, -1, -1)
        self._network.use_tiling = self._tiles(images.shape[-2:])
        found = [self._encoded(part) for part in torch.split(scaled, self._batch(scaled.shape[-2:]))]
        deviation = [std for _, std in found if std is not None]
        return torch.cat([mean for mean, _ in found]), torch.cat(deviation) if deviation else None

    def _encoded(self, scaled: Tensor) -> tuple[Tensor, Tensor | None]:
        found = self._network.encode(scaled)
        if hasattr(found, "latents"):
            return found.latents, None
        return found.latent_dist.mean, found.latent_dist.std

    @torch.no_grad()
    def decode(self, z: Tensor) -> Tensor:
        """Images [B, C, H, W] in [0, 1] of latents [B, C, h, w]."""
        if z.shape[1] != self.about.channels:
            raise ValueError(f"{self.about.name} decodes {self.about.channels} channels, got {z.shape[1]}")
        size = [side * self.about.factor for side in z.shape[-2:]]
        self._network.use_tiling = self._tiles(size)
        parts = torch.split(z.to(self.device, torch.float32), self._batch(size))
        images = torch.cat([self._network.decode(part).sample for part in parts])
        if not bool(images.isfinite().all()):
            raise ValueError(f"{self.about.name}: decoded images are not finite; the weights or the latents are bad")
        return ((images + 1) / 2).clamp(0, 1)

    def _tiles(self, size: Sequence[int]) -> bool:
        """Whether to code in tiles. Those of diffusers' tiny one are for 4 channels alone, and it needs none."""
        return max(size) > TILE and self.about.config["_class_name"] == "AutoencoderKL"

    def _batch(self, size: Sequence[int]) -> int:
        """Images at a time: about a megapixel on a CPU, sixteen on a GPU."""
        pixels = (16 if self.device.type == "cuda" else 1) << 20
        return max(1, pixels // (size[0] * size[1]))


def _built(about: Description, weights: Path) -> Any:
    """The network of a config with its tensors; the two are compared before memory is taken."""
    kind = getattr(need("diffusers", f"the autoencoder {about.name}", "diffusers"), str(about.config["_class_name"]))
    tensors = _tensors(weights)
    require_finite(tensors, str(weights))
    try:
        with torch.device("meta"):
            trial = kind.from_config(about.config)
            _code_once(trial, about)
    except Exception as error:  # of diffusers, which does not check what it is given
        raise ValueError(f"{about.folder / CONFIG}: diffusers cannot use it ({one_line(error)})") from None
    check_shapes(f"{about.folder}: {CONFIG} describes another network than {WEIGHTS}", tensors, trial.state_dict())
    network = kind.from_config(about.config)
    network.load_state_dict({name: value.float() for name, value in tensors.items()})
    network.tile_sample_min_size, network.tile_latent_min_size = TILE, TILE // about.factor
    return network


def _code_once(network: Any, about: Description) -> None:
    """The shapes of an image through encoder and decoder, on the device meta: a bad config fails here."""
    image = torch.empty(1, int(about.config["in_channels"]), 8 * about.factor, 8 * about.factor)
    found = network.encode(image)
    z = found.latents if hasattr(found, "latents") else found.latent_dist.mean
    decoded = network.decode(z).sample
    if z.shape != (1, about.channels, 8, 8) or decoded.shape != image.shape:
        shapes = ", ".join(str(list(x.shape)) for x in (image, z, decoded))
        raise ValueError(f"image, latent and decoded image have the shapes {shapes}")


def _tensors(weights: Path) -> dict[str, Tensor]:
    """The tensors; attention layers of older files (query, key, value, proj_attn) under diffusers' names of today."""
    old = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}
    found = {}
    for name, value in get_tensors(weights).items():
        for before, now in old.items() if ".attentions." in name else ():
            name = name.replace(before, now)
        found[name] = value
    return found


def open_autoencoder(name: str | Path, device: torch.device | str = "cpu", *, online: bool = False) -> Autoencoder:
    """The autoencoder in a folder or on the Hub, with its weights."""
    return Autoencoder(describe(name, online=online), device)
