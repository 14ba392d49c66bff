"""Models that ship with the package: one folder each, a checkpoint without state, with its card (README.md)."""

from pathlib import Path

_HERE = Path(__file__).parent

SHIPPED = tuple(sorted(folder.name for folder in _HERE.iterdir() if (folder / "manifest.json").is_file()))
"""Their names, good wherever a checkpoint is asked for."""


def shipped(name: str | Path) -> Path | None:
    """The folder of a model by its name; a folder of that name in the working directory comes first."""
    return _HERE / str(name) if str(name) in SHIPPED and not Path(name).exists() else None
