"""Trained models by name: one folder each, a checkpoint without state, with its model card (README.md).

Small models ship with the package. Larger ones are in the folder ``models`` of the repository, outside of the wheel.
"""

from pathlib import Path

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parents[2] / "models" if _HERE.parents[1].name == "src" else None

IN_REPOSITORY = ("cifar10-ve-28m",)
"""Names of the larger models."""


def _folders() -> dict[str, Path]:
    larger = [] if _REPOSITORY is None else [_REPOSITORY / name for name in IN_REPOSITORY]
    return {folder.name: folder for folder in (*_HERE.iterdir(), *larger) if (folder / "manifest.json").is_file()}


_FOLDERS = _folders()
SHIPPED = tuple(sorted(_FOLDERS, key=lambda name: (name in IN_REPOSITORY, name)))
"""Names of the models that are here, the small ones first; accepted wherever a checkpoint is."""


def shipped(name: str | Path) -> Path | None:
    """The folder of a model; None for other names, and where the working directory has such a folder."""
    return None if Path(name).exists() else _FOLDERS.get(str(name))
