"""Before the first step: checks of data and device, latents, and the description of a run."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anisodiff.data import Dataset
from anisodiff.data.latents import Latents, LatentScale, open_latents
from anisodiff.io import records
from anisodiff.io.checkpoint import find
from anisodiff.io.tensor_files import sha256
from anisodiff.latent.autoencoder import WEIGHTS, Autoencoder, Description
from anisodiff.latent.autoencoder import describe as describe_autoencoder
from anisodiff.latent.codec import check_same
from anisodiff.latent.encoding import encode
from anisodiff.networks import NCSNppConfig
from anisodiff.networks.ncsnpp import NAME as NCSNPP
from anisodiff.notation import counted
from anisodiff.runtime.progress import Progress, no_progress
from anisodiff.training.config import FREE, TrainConfig, completed
from anisodiff.training.model import Plan
from anisodiff.version import __version__

_FEW = 100  # images


def check_data(config: TrainConfig, dataset: Dataset) -> None:
    """The images must be what the network is built for."""
    got, expected = (dataset.channels, *dataset.size), (config.channels, *config.size)
    if got != expected:
        raise ValueError(
            f"the data are {'×'.join(map(str, got))} (channels, height, width), the recipe expects "
            f"{'×'.join(map(str, expected))}; --set size=… channels=…, or prepare the data anew"
        )
    if config.classes and config.classes != dataset.classes:
        names = ", ".join(dataset.classes[:4]) + ", …" * (len(dataset.classes) > 4)
        raise ValueError(
            f"classes: the run has {len(config.classes)} ({config.classes[0]}, …), the data {len(dataset.classes)} "
            f"({names or 'no labels'}); set classes=auto in a new run"
        )


def with_classes(config: TrainConfig, dataset: Dataset) -> TrainConfig:
    """The config with the names of the data's classes, where it is to read them there."""
    if not config.asks_classes:
        return config
    if len(dataset.classes) < 2:
        what = "no labels" if dataset.labels is None else "one class"
        raise ValueError(
            f"classes: {dataset.path} has {what}; expected two subfolders of images or more, or labels of a set; "
            "prepare it with --classes, or set classes=none"
        )
    return replace(config, classes=dataset.classes)


def with_latents(
    config: TrainConfig,
    dataset: Dataset,
    device: torch.device,
    progress: Progress = no_progress,
    *,
    start: str | Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[TrainConfig, Latents | None]:
    """The config with the scale of its latents, and the latents; they are encoded where they are missing.

    A run from the weights of ``start`` has the scale of that run, unless its autoencoder is another one: a state
    means to the network what it meant before. Any other run has the scale of its own images.
    """
    if not config.latent:
        return config, None
    code = config.latent.get("sha256")
    latents = None if code is None else open_latents(dataset, code)
    known = dict(config.latent)
    if latents is None:
        about = find_autoencoder(config)
        for line in other_size(about, config.size):
            say(line)
        autoencoder = Autoencoder(about, device)
        if code not in (None, autoencoder.sha256):
            raise ValueError(
                f"latent: {about.name} has other weights than the autoencoder of this run; give the place of the "
                "right ones with --latent, or begin a new run"
            )
        latents = encode(dataset, autoencoder, progress)
        known |= {**about.as_keys(), "sha256": autoencoder.sha256, "scale": list(about.scale)}
    kept = _scale(known)
    # a run that continues keeps its scale; its images may have been encoded again on a machine that rounds otherwise
    if kept is None or (start is None and not kept.near(latents.scale)):
        kept = _scale_of(start, known["sha256"]) or latents.scale
    known |= {"mean": list(kept.mean), "std": list(kept.std)}
    return replace(config, latent=known), replace(latents, scale=kept)


def _scale(latent: Mapping[str, Any]) -> LatentScale | None:
    return LatentScale(tuple(latent["mean"]), tuple(latent["std"])) if {"mean", "std"} <= set(latent) else None


def _scale_of(start: str | Path | None, code: str) -> LatentScale | None:
    """The scale of the run ``start``, if it was trained on latents of the autoencoder with this sha256."""
    if start is None or Path(start).is_file():
        return None
    latent = TrainConfig.from_dict(find(start).meta["config"]).latent
    return _scale(latent) if latent.get("sha256") == code else None


def other_size(about: Description, size: tuple[int, int]) -> list[str]:
    """What to say of an autoencoder that was trained on images of another size."""
    side = about.config.get("sample_size")
    if not isinstance(side, int) or side == max(size):
        return []
    return [
        f"the autoencoder was trained on images of {side}×{side} (sample_size in its config.json), these are "
        f"{size[0]}×{size[1]}: it may lose more of them; 'anisodiff autoencoder reconstruct' measures what is lost"
    ]


def find_autoencoder(config: TrainConfig) -> Description:
    """The autoencoder of a config with latents, which must be on this machine; one of other latents is refused."""
    about = describe_autoencoder(config.latent["autoencoder"], online=False)
    check_same(config.latent, about)
    return about


def prepare_device(config: TrainConfig, device: torch.device) -> list[str]:
    """Set torch's global switches; returns what of the config does not apply here."""
    if device.type == "cuda":
        # TF32 for convolutions only: the DCT of the preconditioning is a matrix product and needs all of float32
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = not config.deterministic
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        return []
    wanted = [word for word, on in (("bf16", config.precision == "bf16"), ("compile", config.compile)) if on]
    if not wanted:
        return []
    return [f"on a {device.type} without {' and '.join(wanted)}: the network runs as it is, in float32"]


def notes(config: TrainConfig, count: int | None, *, at_most: bool = False, done: int = 0) -> list[str]:
    """What is allowed but hardly intended: a warm-up longer than the run, ``count`` images that are few.

    ``at_most``: of ``count`` files some may not be decoded. ``done``: images that the run has seen already.
    """
    said, seen = [], config.images_seen
    if done < seen < config.warm_up:
        whole = "" if seen == config.images else f" ({seen} in whole batches)"
        said.append(
            f"the warm-up of {config.warm_up} images is longer than the run of {config.images}{whole}: the learning "
            f"rate ends at {config.lr * seen / config.warm_up:.2g}, not {config.lr:g}; try --set warm_up={seen // 20}"
        )
    if seen > done and count is not None and count < max(_FEW, config.batch):
        less = f", fewer than the {config.batch} of a batch" if count < config.batch else ""
        few = f"{'up to ' * at_most}{counted(count, 'image')}{less}"
        said.append(f"{few}: the model will memorize them; thousands are needed to make new ones")
    return said


@contextmanager
def memory_in_one_line(config: TrainConfig, world: int = 1) -> Iterator[None]:
    """Lack of memory as one line, with a remedy that changes no result: the run can be resumed with it."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        finer = [n for n in range(config.accumulation + 1, config.batch + 1) if config.batch % (n * world) == 0]
        remedy = "use a smaller network or smaller images" if config.recompute else "--set recompute=true"
        if finer:
            remedy = f"--set accumulation={finer[0]} or more: smaller parts of the same batch"
        raise MemoryError(
            f"not enough memory for {config.batch // (world * config.accumulation)} images at a time; {remedy}"
        ) from error


def describe(plan: Plan, dataset: Dataset | None) -> dict[str, Any]:
    """What config.json says of a run, at every step; without a dataset nothing of the data."""
    described = {
        "version": __version__,
        "config": plan.config.to_dict(),
        "process": plan.process.identity(),
        "network": {"name": plan.network.name, **plan.network.arguments},
        "model": plan.kind.__name__,
        "data": {}
        if dataset is None
        else {
            "fingerprint": dataset.fingerprint,
            "images": len(dataset),
            "source": str(dataset.meta.get("source", "")),
            **_labels(plan.config, dataset),
        },
        "threads": torch.get_num_threads(),
        "start": None,  # or what the first weights were taken from
    }
    plain: dict[str, Any] = json.loads(json.dumps(described))  # lists for tuples, as they will be read back
    return plain


def _labels(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    """What a run that learns classes says of its labels: a fingerprint, and how many images each class has."""
    if not config.classes or dataset.labels is None:
        return {}
    counts = np.bincount(dataset.labels, minlength=len(config.classes))
    return {"labels": dataset.labels_fingerprint, "class_counts": counts.tolist()}


def other_threads(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What another number of threads means: sums are cut into other parts."""
    before, now = saved.get("threads"), wanted["threads"]
    if before in (None, now):
        return []
    return [
        f"trained with {before} threads so far, now with {now}: losses round differently from here on; for the same "
        f"bits as without a stop set OMP_NUM_THREADS={before}"
    ]


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What keeps a run from being resumed as another, one line per difference."""
    # process and network are compared as resolved: two notations of one process are equal
    old, new = (
        {key: record.get(key, {}) for key in ("process", "config", "network", "model", "data")}
        for record in (saved, wanted)
    )
    old["config"], old["network"] = completed(old["config"]), completed_network(old["network"])
    free = (
        *(f"config.{key}" for key in (*FREE, "process", "network")), "data.images", "data.source",
        "data.class_counts", "config.latent.autoencoder",
    )  # fmt: skip
    return [line.removeprefix("config.") for line in records.differences(old, new, may_change=free)]


_OTHER = ("process", "network", "model", "data", "latent")
"""What makes it another run; any other key is a setting of the same."""


def refuse_other(run: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to continue a run as another, with a single reason where one suffices."""
    different = differences(saved, wanted)
    if not different:
        return
    if not any(line.startswith(_OTHER) for line in different):
        raise ValueError(
            f"{run} was begun with other settings: {'; '.join(different)}; choose another folder, or start a new run "
            f"from its weights with --from {run}"
        )
    before, now = (_preset(record["config"]) for record in (saved, wanted))
    different.sort(key=lambda line: line.startswith(("process.", "network.")))  # these may follow from the others
    why = f"another run: {'; '.join(different)}"
    if before != now and any(line.startswith("process.") for line in different):
        why = f"a run of {before}, not of {now}"
    elif all(line.startswith("data.fingerprint") for line in different):
        why = f"a run on other images ({saved['data'].get('source') or 'not named'})"
    raise ValueError(f"{run} holds {why}; choose another folder")


def _preset(config: Mapping[str, Any]) -> Any:
    process = config.get("process")
    return process.get("preset") if isinstance(process, Mapping) else process


def with_images_of(saved: Mapping[str, Any], config: TrainConfig) -> TrainConfig:
    """The config with what only the images tell, classes and latents, as a saved run has it: none are read now."""
    if config.asks_classes and saved["config"].get("classes"):
        config = replace(config, classes=tuple(saved["config"]["classes"]))
    if not config.latent or "sha256" in config.latent:
        return config
    code = sha256(find_autoencoder(config).folder / WEIGHTS)
    return replace(config, latent={**saved["config"].get("latent", {}), **config.latent, "sha256": code})


def completed_network(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A network as it was saved: a key of NCSN++ that did not exist yet was at its default."""
    if saved.get("name") != NCSNPP:
        return dict(saved)
    defaults: dict[str, Any] = json.loads(json.dumps(asdict(NCSNppConfig())))
    return {**defaults, **saved}
