"""From a path, or from the name of a well-known set and a path, to a source."""

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from anisodiff import notation
from anisodiff.data.arrays import array_file
from anisodiff.data.cifar10 import Cifar10
from anisodiff.data.external import HuggingFace, Lsun
from anisodiff.data.idx import DEBIAN, FashionMnist
from anisodiff.data.source import Pictures, Source, classes_of, pictures
from anisodiff.io.archives import existing, open_zip
from anisodiff.io.picture_files import is_picture, list_pictures

CELEBA_SPLITS = {"train": (1, 162770), "valid": (162771, 182637), "test": (182638, 202599), "all": (1, 202599)}
IMAGENET_SPLITS = {"train", "val", "valid", "validation", "test"}


def open_source(path: str | Path, *, labels: bool = False) -> Source:
    """A folder or zip of pictures, an .npy or .npz file, an LMDB, or a packed CIFAR-10: told apart by content.

    With `labels` the folder of a picture is its class.
    """
    path = existing(path, "a folder of images, a zip, an .npy or .npz file")
    if path.is_dir():
        return Lsun(path) if (path / "data.mdb").is_file() else pictures(path, labels=labels)
    try:
        with path.open("rb") as file:
            head = file.read(6)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror}): check its permissions") from error
    if head == b"\x93NUMPY":
        return array_file(path)
    if head.startswith(b"PK"):
        with open_zip(path) as archive:
            names = archive.namelist()
        arrays = bool(names) and all(name.endswith(".npy") for name in names)
        return array_file(path) if arrays else pictures(path, labels=labels)
    if path.suffix in (".npz", ".zip"):
        with open_zip(path):  # raises, with the reason
            pass
    if head.startswith(b"\x1f\x8b") or path.suffix in (".tar", ".tgz"):
        return Cifar10(path=path)
    if is_picture(path.name):
        raise ValueError(f"{path} is one image: give the folder that holds your images")
    raise ValueError(f"{path} starts with {head!r}: expected a folder of images, a zip, an .npy or .npz file")


def celeba(path: str | Path, split: str = "train") -> Pictures:
    """The aligned CelebA faces (218×178) from a folder or zip; center crop 140, then 64² (Song et al. 2021).

    Splits are the official ones, by the number in the file name (000001.jpg).
    """
    if split not in CELEBA_SPLITS:
        raise ValueError(f"got split={split!r}: expected one of {', '.join(CELEBA_SPLITS)}")
    first, last = CELEBA_SPLITS[split]
    files = list_pictures(existing(path, "a folder or zip of CelebA's aligned faces"))

    def wanted(name: str) -> bool:
        stem = PurePosixPath(name).stem
        return stem.isdecimal() and first <= int(stem) <= last

    faces = files.only(wanted)
    if not len(faces):
        raise ValueError(
            f"{path} holds no face of CelebA's split {split}: expected {first:06d}.jpg to {last:06d}.jpg"
        )
    return Pictures(files=faces, shape=(3, 64, 64), crop=140, expect=(178, 218))


def imagenet(path: str | Path, split: str = "train") -> Pictures:
    """ImageNet as class folders below a folder named as the split, or, for `train`, given directly; labels sorted."""
    files = list_pictures(existing(path, "ImageNet's folder"))
    tops = {name.split("/")[0] for name in files.names}
    if split not in tops and (split != "train" or tops & IMAGENET_SPLITS):
        # else the splits themselves would pass for classes
        held = ", ".join(sorted(tops)[:4])
        raise ValueError(f"{path} has no folder {split!r} with pictures: expected that of the split; it holds {held}")
    under = split if split in tops else ""
    files = files.only(lambda name: not under or name.startswith(f"{under}/"))
    return Pictures(files=files, under=under, classes=classes_of(files, under))


def _lsun(path: Path, split: str) -> Source:
    if split != "train":
        raise ValueError(f"--split {split}: a folder of LSUN holds one split, the one in its name; leave --split out")
    return Lsun(path)


NAMED: Mapping[str, Callable[[Path, str], Source]] = MappingProxyType(
    {
        "cifar10": lambda path, split: Cifar10(path=path, split=split),
        "fashion-mnist": lambda path, split: FashionMnist(path=path, split=split),
        "celeba": celeba,
        "imagenet": imagenet,
        "lsun": _lsun,
    }
)


def named_source(name: str, path: str | Path | None = None, *, split: str = "train") -> Source:
    """A well-known set by name, from where it lies: see `NAMED`; `hf:OWNER/NAME` asks Hugging Face.

    Only Fashion-MNIST has a usual place (Debian's), so only it can do without a path.
    """
    if name.startswith("hf:"):
        return HuggingFace(name=name[3:], split=split)
    if name not in NAMED:
        raise ValueError(f"unknown dataset {name!r}; {notation.nearest(name, NAMED, 'hf:OWNER/NAME')}")
    if path is None and name == "fashion-mnist":
        path = existing(DEBIAN, "Fashion-MNIST (Debian: apt install dataset-fashion-mnist)")
    if path is None:
        raise ValueError(f"{name} is not downloaded for you: say where its folder or archive lies")
    return NAMED[name](Path(path), split)
