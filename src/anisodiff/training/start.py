"""The weights that a run starts from with ``--from``: those of another run, or a published network."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from anisodiff.io.checkpoint import find
from anisodiff.networks import NCSNppConfig, load_score_sde
from anisodiff.networks.ncsnpp import NAME as NCSNPP
from anisodiff.networks.published import widened
from anisodiff.registry import TRAINED, model_of
from anisodiff.statistics import SpectralStatistics
from anisodiff.training.config import TrainConfig, completed
from anisodiff.training.model import Plan, load_model, stripped
from anisodiff.training.setup import completed_network, describe


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """The first weights of a run, with what else it can reuse."""

    tensors: Mapping[str, Tensor]
    """Weights and frozen buffers of the network, by its own names."""
    statistics: SpectralStatistics | None
    """If process and data are those of the new run."""
    prior: dict[str, Tensor] | None
    about: dict[str, Any]
    """For config.json."""
    words: str
    """For the terminal."""


def load_start(path: str | Path, plan: Plan, about: Mapping[str, Any]) -> InitialWeights:
    """The EMA weights of a run, a checkpoint, or a file of score_sde_pytorch, for the run that ``about`` describes.

    The network must be the same, but for its dropout, and for a second output, which then starts at 0.
    """
    return _from_published(Path(path), plan) if Path(path).is_file() else _from_run(path, plan, about)


def check_start(path: str | Path, plan: Plan) -> None:
    """Refuse weights that do not fit the network of a run, before hours of preparing its images."""
    if Path(path).is_file():
        _from_published(Path(path), plan)
    else:
        saved = find(path)
        _require_same(path, saved.meta, plan)
        load_model(saved)


def network_keys(path: str | Path, process: str) -> dict[str, Any]:
    """The keys of a config that a run of ``process`` needs to continue with the network of a run or a checkpoint."""
    saved = find(path).meta
    _require_same_model(path, saved, process)
    keys = ("size", "channels", "network", "parameterization", "channel_pca")
    return {key: saved["config"][key] for key in keys if key in saved["config"]}


def _from_published(path: Path, plan: Plan) -> InitialWeights:
    if plan.config.parameterization != "ve":
        raise ValueError(
            f"{path} is a file, so a network as published, which gives F(2u − 1, ln σ)/σ; "
            f"got parameterization={plan.config.parameterization!r}, set parameterization=ve"
        )
    network, info = load_score_sde(path, _ncsnpp_config(plan, path))
    also = "; its second output begins with 0" if info.outputs_added else ""
    return InitialWeights(
        tensors=network.state_dict(),
        statistics=None,
        prior=None,
        about={"file": path.name, "step": info.step, "weights": info.weights},
        words=f"starting from the averaged weights in {path}, after step {info.step}{also}",
    )


def _ncsnpp_config(plan: Plan, path: str | Path) -> NCSNppConfig:
    """The configuration of the run's network, where it has to be an NCSN++."""
    if plan.network.name != NCSNPP:
        raise ValueError(f"cannot start from {path}: that needs an NCSN++, got network {plan.network.name!r}")
    return NCSNppConfig(**plan.network.arguments)


def _from_run(path: str | Path, plan: Plan, about: Mapping[str, Any]) -> InitialWeights:
    saved = find(path)
    widens = _require_same(path, saved.meta, plan)
    begun = load_model(saved)
    ours, theirs = plan.config, begun.plan.config
    network = stripped(saved.tensors("model"), "network.")
    latents = [{key: value for key, value in one.latent.items() if key != "autoencoder"} for one in (theirs, ours)]
    same_images = begun.meta["data"]["fingerprint"] == about["data"]["fingerprint"]  # wherever they lie
    same = same_images and begun.meta["process"] == about["process"] and latents[0] == latents[1]
    also = "; its output was for score and drift together" if theirs.learns == "reverse_drift" != ours.learns else ""
    if latents[0].get("sha256") != latents[1].get("sha256"):
        also += "; it was trained on " + ("latents of another autoencoder" if latents[0] else "pixels")
    return InitialWeights(
        tensors=widened(network, _ncsnpp_config(plan, path)) if widens else network,
        statistics=begun.model.statistics if same else None,
        prior=begun.prior if same else None,
        about={
            **{key: begun.meta[key] for key in ("step", "images", "process", "data")},
            "model": saved.codes["model.safetensors"],
        },
        words=f"starting from the weights of {path}, after {begun.meta['images']} images{also}",
    )


def _require_same(path: str | Path, saved: Mapping[str, Any], plan: Plan) -> bool:
    """Refuse weights that do not fit the run; whether its network has outputs, or classes, that the old one lacks."""
    _require_same_model(path, saved, str(plan.config.process["preset"]))
    more = _require_same_network(path, saved["network"], describe(plan, None)["network"], plan)
    theirs = TrainConfig.from_dict(completed(saved["config"]))
    for key in ("parameterization", "channel_pca"):
        had, got = getattr(theirs, key), getattr(plan.config, key)
        if had != got:
            raise ValueError(f"cannot start from {path}: its network has {key} {had!r}, got {got!r}; set {key}={had}")
    return more


def _require_same_model(path: str | Path, saved: Mapping[str, Any], process: str) -> None:
    """Refuse a network that was trained to predict something else than ``process`` needs."""
    before = saved["config"].get("process")
    trained = str(before.get("preset") if isinstance(before, Mapping) else before)
    if process in TRAINED and trained in TRAINED and model_of(trained) is not model_of(process):
        raise ValueError(
            f"cannot start from {path}: it was trained with {trained}, whose network does not predict what that of "
            f"{process} predicts"
        )


def _require_same_network(path: str | Path, saved: Mapping[str, Any], new: Mapping[str, Any], plan: Plan) -> bool:
    """Refuse another network; whether the new one has more outputs, or classes, that the old one lacks."""
    old = completed_network(saved)
    before, outputs = old.get("out_channels"), new["out_channels"]
    more = before is not None and outputs == 2 * before
    added = old.get("classes", 0) == 0 < new.get("classes", 0) and plan.network.name == NCSNPP
    free = ("dropout", *(["out_channels"] if more else []), *(["classes"] if added else []))
    if 2 * outputs == before:
        remedy = "set learns=score_and_drift" if plan.process.learns_drift else "start from a model that learns one"
        raise ValueError(
            f"cannot start from {path}: its network has two outputs per channel, the score and the drift, and this "
            f"run learns one; {remedy}"
        )
    different = [key for key in new if key not in free and old.get(key) != new[key]]
    if "image_size" in different and "image_size" in old:
        sides, latents = (old["image_size"], new["image_size"]), bool(plan.config.latent)
        remedy = f"; set size={sides[0]}, or prepare them in that size"
        raise ValueError(
            f"cannot start from {path}: its network is for {sides[0]}×{sides[0]}, and these "
            f"{'latents' if latents else 'images'} are {sides[1]}×{sides[1]}{'' if latents else remedy}"
        )
    if different:
        each = "; ".join(f"{key} is {old.get(key)!r} there and {new[key]!r} here" for key in different)
        raise ValueError(f"cannot start from {path}: its network differs: {each}")
    return more or added
