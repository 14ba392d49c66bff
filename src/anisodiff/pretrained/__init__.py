"""Models that ship with the package: one folder each, a checkpoint without state, with its model card (README.md)."""

from pathlib import Path

_HERE = Path(__file__).parent

SHIPPED = tuple(sorted(folder.name for folder in _HERE.iterdir() if (folder / "manifest.json").is_file()))
"""Their names, accepted wherever a checkpoint is."""


def shipped(name: str | Path) -> Path | None:
    """The folder of a shipped model; None for other names, and where the working directory has such a folder."""
    return _HERE / str(name) if str(name) in SHIPPED and not Path(name).exists() else None
