"""What a new run begins with when it does not begin with nothing: the weights of another run, or published ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from anisodiff.io.checkpoint import find
from anisodiff.networks import NCSNppConfig, load_score_sde
from anisodiff.networks.published import widened
from anisodiff.statistics import SpectralStatistics
from anisodiff.training.model import Plan, load_model


@dataclass(frozen=True, kw_only=True)
class Start:
    """First weights, with what else can be taken over."""

    tensors: Mapping[str, Tensor]
    """Of the network: weights and frozen frequencies, under its own names."""
    statistics: SpectralStatistics | None
    """Tables of the preconditioning, if they are those of the new run."""
    prior: dict[str, Tensor] | None
    about: dict[str, Any]
    """For config.json."""
    words: str
    """For people."""


def load_start(path: str | Path, plan: Plan, about: Mapping[str, Any]) -> Start:
    """From a run, a checkpoint, or a file of score_sde_pytorch, for the new run that ``about`` describes.

    The network must be the same, but for its dropout, and for a second output, which then begins with 0.
    """
    return _published(Path(path), plan) if Path(path).is_file() else _run(path, plan, about)


def _published(path: Path, plan: Plan) -> Start:
    if plan.config.parameterization != "ve":
        raise ValueError(
            f"{path} is a file, so a network as published, which gives F(2u − 1, ln σ)/σ; "
            f"got parameterization={plan.config.parameterization!r}, set parameterization=ve"
        )
    network, info = load_score_sde(path, NCSNppConfig(**plan.network.arguments))
    also = "; its second output begins with 0" if info.outputs_added else ""
    return Start(
        tensors=network.state_dict(),
        statistics=None,
        prior=None,
        about={"file": path.name, "step": info.step, "weights": info.weights},
        words=f"starting from the averaged weights in {path}, after step {info.step}{also}",
    )


def _run(path: str | Path, plan: Plan, about: Mapping[str, Any]) -> Start:
    saved = find(path)
    begun = load_model(saved)
    old, new = begun.meta["network"], about["network"]
    more = new["out_channels"] == 2 * old["out_channels"]
    free = ("dropout", "out_channels") if more else ("dropout",)
    if 2 * new["out_channels"] == old["out_channels"]:
        raise ValueError(
            f"cannot start from {path}: its network has two outputs a channel, got one; where the drift is learned "
            "set learns=score_and_drift"
        )
    if different := [key for key in new if key not in free and old.get(key) != new[key]]:
        raise ValueError(f"cannot start from another network: {', '.join(different)} differ")
    ours, theirs = plan.config, begun.plan.config
    for key in ("parameterization", "channel_pca"):
        had, got = getattr(theirs, key), getattr(ours, key)
        if had != got:
            raise ValueError(f"cannot start from {path}: its network has {key} {had!r}, got {got!r}; set {key}={had}")
    stored = saved.tensors("model")
    network = {name.removeprefix("network."): value for name, value in stored.items() if name.startswith("network.")}
    same = begun.meta["process"] == about["process"] and (
        begun.meta["data"]["fingerprint"] == about["data"]["fingerprint"]  # wherever the images lie
    )
    also = "; its output was for score and drift together" if theirs.learns == "reverse_drift" != ours.learns else ""
    return Start(
        tensors=widened(network, NCSNppConfig(**plan.network.arguments)) if more else network,
        statistics=begun.model.statistics if same else None,
        prior=begun.prior if same else None,
        about={
            **{key: begun.meta[key] for key in ("step", "images", "process", "data")},
            "model": saved.codes["model.safetensors"],
        },
        words=f"starting from the weights of {path}, after {begun.meta['images']} images{also}",
    )
