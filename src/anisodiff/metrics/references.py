"""A reference from its name: ``NAME/SPLIT``, a path of images, or a statistics file.

A named set is looked for at the path given, then in the cache, then at its default place; each step is reported.
Once found it is kept in the cache as a prepared dataset, checked against its fingerprint whenever it is used.
"""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anisodiff.data import NAMED, is_dataset, named_source, open_dataset, prepare
from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.images import ImageSet, image_set
from anisodiff.metrics.protocol import Settings
from anisodiff.metrics.statistics import is_statistics, load_statistics
from anisodiff.metrics.survey import Context, Survey
from anisodiff.training import run_folder

REFUSED = "another resolution is refused"
FIXED = ("cifar10", "fashion-mnist")  # recognized by content, in any packing


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A set to compare with: its name, its images or statistics, and their path."""

    name: str
    split: str
    content: ImageSet | Survey
    path: Path | None = None

    @property
    def images(self) -> ImageSet | None:
        return self.content if isinstance(self.content, ImageSet) else None


def own_images(model: Path) -> tuple[Path, Path | None]:
    """The images that the run of a model (its folder, or a checkpoint in it) was trained on, and those kept aside."""
    remedy = "give --reference NAME/SPLIT or PATH"
    model = model.resolve()
    folder = model.parent.parent if model.parent.name == "checkpoints" else model
    known = (folder / run_folder.NAME).is_file() or (folder / "checkpoints").is_dir()
    run = run_folder.read_run(folder) if known else None
    if run is None or run.data is None:
        raise ValueError(f"{model.name} does not say which images it was trained on: {remedy}")
    for path in filter(None, (run.data, run.heldout)):
        if not path.exists():
            raise ValueError(f"{path}, named in {folder}/{run_folder.NAME}, is not there: {remedy}")
    return run.data, run.heldout


def is_named(text: str) -> bool:
    """Whether ``text`` is a well-known set, with or without its split."""
    return text.startswith("hf:") or text.split("/")[0] in NAMED


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


def _named(text: str, data: Path | None, size: tuple[int, int], context: Context) -> Reference:
    say = context.say
    name, split = _name_and_split(text)
    label = f"{name}/{split}"
    if data is not None and is_dataset(data):
        fixed = named_source(name, data, split=split).identity() if name in FIXED else None
        if fixed is None or open_dataset(data).meta["identity"]["source"] != fixed:
            raise ValueError(f"{data} is a prepared dataset, but not of {label}: give it as --reference {data}")
        return Reference(name=name, split=split, content=image_set(data, name=name), path=data)
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
    return Reference(name=name, split=split, content=image_set(found, name=name), path=found)


def open_reference(
    text: str,
    *,
    size: tuple[int, int],
    network: FeatureNetwork,
    settings: Settings | None = None,
    data: Path | None = None,
    context: Context | None = None,
) -> Reference:
    """``cifar10/train``, or a prepared dataset, folder, zip or npz, or a file of statistics made with ``network``.

    ``size`` (H, W) is that of the samples: images of a path are brought to it. ``data`` is the path of a named set.
    """
    path = Path(text)
    if is_named(text) and (data is not None or not path.exists()):
        return _named(text, data, size, context or Context())
    if data is not None:
        raise ValueError(f"--data is the path of a named set; {text} is not one ({', '.join(NAMED)}, hf:NAME)")
    if not path.exists():
        raise ValueError(f"{text}: neither a path nor a named set ({', '.join(NAMED)}, hf:NAME; with /SPLIT)")
    if is_statistics(path):
        held = load_statistics(path, network, settings)
        return Reference(name=held.name, split=held.split, content=held, path=path)
    images = image_set(path, size=size)
    return Reference(name=images.name, split="", content=images, path=path)
