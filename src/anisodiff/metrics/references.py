"""A reference from its name: ``NAME/SPLIT``, a path of images, or a statistics file.

A named set is looked for at the path given, then in the cache, then at its default place; each step is reported.
Once found it is kept in the cache as a prepared dataset, checked against its fingerprint whenever it is used.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from anisodiff.data import NAMED, is_dataset, named_source, open_dataset, prepare
from anisodiff.io.images import Fit
from anisodiff.metrics.cache import is_statistics, load_statistics
from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.images import ImageSet, Source, image_set
from anisodiff.metrics.protocol import Settings
from anisodiff.metrics.statistics import Context, ImageStatistics
from anisodiff.training import run_folder

REFUSED = "another resolution is refused"
FIXED = ("cifar10", "fashion-mnist")  # recognized by content, in any packing


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A set to compare with: its name, its images or statistics, and their path."""

    name: str
    split: str
    content: ImageSet | ImageStatistics
    path: Path | None = None

    @property
    def images(self) -> ImageSet | None:
        return self.content if isinstance(self.content, ImageSet) else None


def as_reference(source: Source | ImageStatistics | Reference, fit: Fit | None = None) -> Reference:
    """Any images, or their statistics; ``fit`` brings images of a path to a shape."""
    if isinstance(source, Reference):
        return source
    content = source if isinstance(source, ImageStatistics) else image_set(source, fit=fit)
    split = content.split if isinstance(content, ImageStatistics) else ""
    path = Path(source) if isinstance(source, str | Path) else None
    return Reference(name=content.name, split=split, content=content, path=path)


def _run_of(model: Path) -> tuple[Path, run_folder.RunDescription | None]:
    """The folder of a model's run, and the run where the folder describes one."""
    folder = run_folder.folder_of_run(model)
    known = (folder / run_folder.NAME).is_file() or (folder / "checkpoints").is_dir()
    return folder, run_folder.read_run(folder) if known else None


def own_images(model: Path) -> tuple[Path, Path | None]:
    """The images that the run of a model (its folder, or a checkpoint in it) was trained on, and those kept aside."""
    remedy = "give a reference (--reference NAME/SPLIT or PATH)"
    model = model.resolve()
    folder, run = _run_of(model)
    if run is None or run.data is None:
        raise ValueError(f"{model.name} does not say which images it was trained on: {remedy}")
    for path in filter(None, (run.data, run.heldout)):
        if not path.exists():
            raise ValueError(f"{path}, named in {folder}/{run_folder.NAME}, is not there: {remedy}")
    return run.data, run.heldout


def own_fit(samples: Path, size: tuple[int, int], channels: int) -> Fit:
    """What brings other images to the shape of samples; of a run as its own images were, with their crop."""
    _, run = _run_of(samples.resolve())
    place = None if run is None else run.data
    meta = open_dataset(place).meta if place is not None and is_dataset(place) else None
    return fit_like(meta, size, channels)


def fit_like(meta: Mapping[str, Any] | None, size: tuple[int, int], channels: int) -> Fit:
    """A fit to this shape, with the crop of a prepared dataset, where its meta.json says one."""
    known = (meta or {}).get("identity", {}).get("fit") or {}
    return Fit(size=size, channels=1 if channels == 1 else 3, crop=known.get("crop"))


def _name_and_split(text: str) -> tuple[str, str]:
    parts = text.split("/")
    least = 2 if text.startswith("hf:") else 1  # hf:OWNER/NAME has a slash of its own
    if len(parts) > least:
        return "/".join(parts[:-1]), parts[-1]
    return text, "train"


def _discard_damaged(place: Path, context: Context) -> None:
    """Remove a copy in the cache that is not what its fingerprint says."""
    if is_dataset(place):
        try:
            open_dataset(place, verify=True)
        except ValueError as error:
            context.say(f"{error}; removed from the cache")
            shutil.rmtree(place, ignore_errors=True)


def _named(text: str, data: Path | None, fit: Fit, context: Context) -> Reference:
    say, size = context.say, fit.size
    name, split = _name_and_split(text)
    label = f"{name}/{split}"
    if data is not None and is_dataset(data):
        fixed = named_source(name, data, split=split).identity() if name in FIXED else None
        dataset = open_dataset(data)
        if fixed is None or dataset.meta["identity"]["source"] != fixed:
            raise ValueError(f"{data} is a prepared dataset, but not of {label}: give it as --reference {data}")
        own = replace(fit, size=dataset.size)  # `evaluate` refuses another size
        return Reference(name=name, split=split, content=image_set(data, name=name, fit=own), path=data)
    stem = f"{name.replace('/', '-').replace(':', '-')}-{split}-"
    place = context.cache / "references" / f"{stem}{size[0]}x{size[1]}"
    _discard_damaged(place, context)
    if data is None and is_dataset(place):
        say(f"{label}: reading the cached {place}")
        found = place
    else:
        if data is None:
            say(f"{label}: not in the cache ({place})")
            at_hand = sorted(p.name.removeprefix(stem).replace("x", "×") for p in place.parent.glob(f"{stem}*"))
            if at_hand:
                ours = f"{size[0]}×{size[1]}"
                raise ValueError(f"samples are {ours}, {label} is available as {', '.join(at_hand)}: {REFUSED}")
        try:
            source = named_source(name, data, split=split)
        except ValueError as error:
            if data is None and name in NAMED:
                raise ValueError(f"{label} is not available ({error}); give --data PATH") from error
            raise
        shape = source.shape or (3, *size)
        if shape[1:] != size:
            ours, theirs = (f"{h}×{w}" for h, w in (size, shape[1:]))
            raise ValueError(f"samples are {ours}, the reference {label} is {theirs}: {REFUSED}")
        say(f"{label}: preparing {source.describe()}")
        tick = partial(context.progress, f"preparing {label}")
        made = prepare(source, place, size=size, channels=shape[0], overwrite=True, progress=tick)
        say(f"{label}: {made.message}")
        found = made.dataset.path
    return Reference(name=name, split=split, content=image_set(found, name=name, fit=fit), path=found)


def check_reference(text: str, data: Path | None) -> bool:
    """Whether ``text`` is to be taken as a name; refuses what is neither that nor a path."""
    there, named = Path(text).exists(), text.startswith("hf:") or text.split("/")[0] in NAMED
    if named and (data is not None or not there):
        return True
    if data is not None:
        raise ValueError(f"--data is the path of a named set; {text} is not one ({', '.join(NAMED)}, hf:NAME)")
    if not there:
        raise ValueError(f"{text}: neither a path nor a named set ({', '.join(NAMED)}, hf:NAME; with /SPLIT)")
    return False


def open_reference(
    text: str,
    *,
    fit: Fit,
    network: FeatureNetwork,
    settings: Settings | None = None,
    data: Path | None = None,
    context: Context | None = None,
) -> Reference:
    """``cifar10/train``, a prepared dataset, folder, zip, npz or npy, or a file of statistics made with ``network``.

    ``fit`` brings images to the shape of the samples; a named set has its size. ``data`` is the path of a named set.
    """
    if check_reference(text, data):
        return _named(text, data, fit, context or Context())
    path = Path(text)
    known = load_statistics(path, network, settings) if is_statistics(path) else path
    return replace(as_reference(known, fit), path=path)
