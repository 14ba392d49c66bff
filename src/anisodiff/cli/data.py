"""``anisodiff data``: images from anywhere into one prepared dataset."""

import json
from pathlib import Path

import typer

from anisodiff.cli import common
from anisodiff.data import NAMED, Source, named_source, open_source
from anisodiff.data import prepare as prepare_images

app = typer.Typer(help="Prepare images for training.", no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def _data() -> None:
    pass


@app.command()
def prepare(
    name: str = typer.Argument(..., metavar="NAME|PATH", help=f"{', '.join(NAMED)}, hf:NAME; or a folder, zip, npz."),
    path: Path | None = typer.Argument(None, help="Where a set given by name lies."),
    output: Path = typer.Option(..., "--output", "-o", help="Folder for the prepared dataset."),
    size: int = typer.Option(None, "--size", min=3, help="Side in pixels; without it one that suits is picked."),
    channels: int = typer.Option(None, "--channels", min=1, help="1: grayscale, 3: color; without it what suits."),
    split: str = typer.Option(None, "--split", help="Part of a set given by name; without it train."),
    max_skipped: int = typer.Option(
        None, "--max-skipped", min=0, help="So many unreadable images are left out; without it 10 or 1 %."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace another dataset in the folder."),
    as_json: bool = typer.Option(False, "--json", help="Print the facts as JSON."),
) -> None:
    """Decode, crop and resize all images of a set into one memory-mapped array with a fingerprint.

    Example: anisodiff data prepare cifar10 cifar-10-python.tar.gz --output cifar10

    Your own images: anisodiff data prepare photos/ --output photos-64 --size 64
    """
    source = _source(name, path, split)
    with common.progress("preparing") as tick:
        made = prepare_images(
            source, output, size=size, channels=channels, max_skipped=max_skipped, overwrite=overwrite, progress=tick
        )
    dataset = made.dataset
    if as_json:
        facts = {
            "path": str(dataset.path), "made": made.made, "images": len(dataset), "channels": dataset.channels,
            "size": list(dataset.size), "fingerprint": dataset.fingerprint, "skipped": dataset.meta["skipped"],
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(made.message)
    for skipped in dataset.meta["skipped"]:
        typer.echo(f"  left out {skipped['name']}: {skipped['reason']}")
    common.wrote(dataset.path)


def _source(name: str, path: Path | None, split: str | None) -> Source:
    """A set by its name and place, or whatever lies at a path."""
    if name in NAMED or name.startswith("hf:"):
        return named_source(name, path, split=split or "train")
    if not Path(name).exists():
        try:
            return named_source(name, path)
        except ValueError as error:  # says which names there are
            raise ValueError(f"there is no {name}, and as a name: {error}") from None
    if path is not None:
        raise ValueError(
            f"{name} is a path: expected no second one, got {path}; or a name first ({', '.join(NAMED)})"
        )
    if split is not None:
        raise ValueError(f"--split is for sets given by name, got a path, {name}; give the folder of that part alone")
    return open_source(name)
