"""Networks of diffusers with the call of `networks.base.Network`: `UNet2DModel` and `DiTTransformer2DModel`.

    F(x, c) = model(x, timestep = time_scale·c, class_labels = labels)

The last layer starts at 0, so that training starts from the Wiener filter. Dropout is keyed, as in NCSN++: without
keys there is none. Labels are 0 … classes − 1, and ``classes`` is the null label.
"""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anisodiff.extras import need
from anisodiff.networks.base import NetworkSpec, seeded
from anisodiff.networks.dropout import keyed_mask, layer_key

TIME_SCALE = 100.0
"""Timesteps per unit of the noise level: as fine as the Fourier features of NCSN++, 2π·16 radians."""
_MOST = {"num_layers": 256, "layers_per_block": 64, "num_attention_heads": 256, "attention_head_dim": 1024}


class _Kind(NamedTuple):
    """The differences between the models."""

    last: str
    """The output layer."""
    labels: str
    """The argument with the number of labels."""
    fixed: Mapping[str, Any]
    """Arguments that cannot be changed."""


KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "UNet2DModel": _Kind(
            "conv_out", "num_class_embeds",
            {"time_embedding_type": "positional", "class_embed_type": None, "num_train_timesteps": None},
        ),
        "DiTTransformer2DModel": _Kind("proj_out_2", "num_embeds_ada_norm", {"norm_type": "ada_norm_zero"}),
    }
)  # fmt: skip


class KeyedDropout(nn.Module):
    """Dropout of x[B,C,H,W] or x[B,N,C] by the keys that `DiffusersNetwork` sets; none without keys."""

    key: Tensor | None = None

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate, self.layer = rate, layer

    def forward(self, x: Tensor) -> Tensor:
        if self.key is None or self.rate == 0:
            return x
        shape = tuple(x.shape[1:]) if x.dim() == 4 else (x.shape[2], x.shape[1], 1)
        kept = keyed_mask(layer_key(self.key, self.layer), (shape[0], shape[1], shape[2]), self.rate)
        kept = kept if x.dim() == 4 else kept.squeeze(3).transpose(1, 2)
        return torch.where(kept, x / (1 - self.rate), torch.zeros((), dtype=x.dtype, device=x.device))


class DiffusersNetwork(nn.Module):
    """A model of diffusers with the call of `networks.base.Network`; the model itself is ``model``."""

    def __init__(self, model: nn.Module, kind: _Kind, *, classes: int, time_scale: float, null: int | None) -> None:
        super().__init__()
        self.model, self.classes, self.time_scale, self.null = model, classes, time_scale, null
        with torch.no_grad():
            for weight in model.get_submodule(kind.last).parameters():
                weight.zero_()
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Dropout):
                    parent.register_module(name, KeyedDropout(child.p, 0))
            if hasattr(parent, "dropout_prob"):
                parent.__dict__["dropout_prob"] = 0.0  # labels are dropped outside, from the run's own keys
        self._dropouts = [module for module in model.modules() if isinstance(module, KeyedDropout)]
        for layer, module in enumerate(self._dropouts):
            module.layer = layer

    def forward(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        if labels is not None and not self.classes:
            raise ValueError("labels: the network has no classes; build it with network.classes=N")
        if labels is None and self.null is not None:
            labels = torch.full((len(x),), self.null, device=x.device)
        for dropout in self._dropouts:
            dropout.key = dropout_key
        out: Tensor = self.model(x, self.time_scale * noise_level, class_labels=labels, return_dict=False)[0]
        return out


def diffusers_spec(
    name: str, size: tuple[int, int], inputs: int, outputs: int, keys: Mapping[str, Any]
) -> NetworkSpec:
    """``diffusers:CLASS``: the arguments of the class are keys, and so are ``classes`` and ``time_scale``."""
    label = name.partition(":")[2]
    kind, model = KINDS[label], getattr(need("diffusers", f"network {name}", "diffusers"), label)
    ours = {"in_channels", "out_channels", "sample_size", kind.labels, *kind.fixed}
    parameters = inspect.signature(model.__init__).parameters
    known = {key: p.default for key, p in parameters.items() if key not in ours and p.default is not p.empty}
    own = {"classes": 0, "time_scale": TIME_SCALE}
    for key in keys:
        if key not in known and key not in own:
            raise ValueError(f"network: {name} has no {key!r}; valid: {', '.join([*own, *known])}")
    arguments = {"in_channels": inputs, "out_channels": outputs, "sample_size": list(size), **own, **known, **keys}

    def make(given: Mapping[str, Any], generator: torch.Generator, recompute: bool) -> nn.Module:
        with seeded(generator):
            return _built(model, kind, given, recompute)

    _check_bounds(arguments)
    try:
        fits = _fits(arguments)
        with torch.device("meta"):
            _built(model, kind, arguments, False)
    except Exception as error:  # diffusers raises many kinds
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"network {name}: diffusers refuses its arguments ({reason})") from error
    if fits:
        raise ValueError(f"network {name}: got images of {size[0]}×{size[1]}, expected {fits}")
    return NetworkSpec(name=name, arguments=arguments, recomputes=True, make=make)


def _check_bounds(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments, possibly from an untrusted file, that would take too much time or memory to build."""
    for key, value in arguments.items():
        values = value if isinstance(value, list | tuple) else (value,)
        most = _MOST.get(key, 65_536)
        if len(values) > 16 or any(isinstance(v, int | float) and not 0 <= v <= most for v in values):
            raise ValueError(f"network.{key}: got {value!r}, expected numbers from 0 to {most}, at most 16 of them")
    for key in ("classes", "num_layers", "layers_per_block"):
        if key in arguments and (isinstance(arguments[key], bool) or not isinstance(arguments[key], int)):
            raise ValueError(f"network.{key}: got {arguments[key]!r}, expected a whole number")


def _fits(arguments: Mapping[str, Any]) -> str:
    """The image sizes that the arguments require, if these images are others; diffusers checks later."""
    height, width = arguments["sample_size"]
    if "patch_size" in arguments:
        patch = arguments["patch_size"]
        tokens = height // patch * (width // patch)
        if tokens * arguments["num_attention_heads"] * arguments["attention_head_dim"] > 2**28:
            return f"fewer tokens than {tokens}: set a larger patch_size"
        return "" if height == width and not height % patch else f"squares of a multiple of patch_size = {patch}"
    halved = len(arguments["block_out_channels"]) - 1
    return f"sides that are multiples of {2**halved}" if height % 2**halved or width % 2**halved else ""


def _built(model: Any, kind: _Kind, given: Mapping[str, Any], recompute: bool) -> DiffusersNetwork:
    arguments = {**given, **kind.fixed}
    classes, scale = int(arguments.pop("classes")), float(arguments.pop("time_scale"))
    if "patch_size" in arguments:  # DiT adds the row of the null label itself
        arguments |= {"sample_size": arguments["sample_size"][0], kind.labels: classes}
        null: int | None = classes
    else:
        arguments |= {kind.labels: classes + 1 if classes else None}
        null = classes or None
    made = model(**arguments)
    if recompute:
        made.enable_gradient_checkpointing()
    return DiffusersNetwork(made, kind, classes=classes, time_scale=scale, null=null)
