"""``anisodiff data``: prepare images from a folder, an archive or a named set as a dataset."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anisodiff.cli import common
from anisodiff.cli.names import DATASETS, complete_dataset
from anisodiff.notation import nearest

if TYPE_CHECKING:
    from anisodiff.data import Source
    from anisodiff.latent.autoencoder import Autoencoder

app = typer.Typer(
    help="Prepare images for training.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.callback()
def _data() -> None:
    pass


@app.command(epilog=f"Sets known by name: {', '.join(DATASETS)}, hf:OWNER/NAME.")
def prepare(
    name: str = typer.Argument(
        ..., metavar="NAME|PATH", help="Read a named set, a folder, zip, npy or npz.", autocompletion=complete_dataset
    ),
    path: Path | None = typer.Argument(None, help="Read the named set from this path."),
    output: Path = common.output_folder(..., "Write the dataset into this folder."),
    size: int = typer.Option(None, "--size", min=3, help="Set the side in pixels; default: from the images."),
    channels: int = typer.Option(None, "--channels", min=1, help="Set 1 (gray) or 3 (color); default: from images."),
    split: str = typer.Option(None, "--split", help="Choose the part of a named set; default train."),
    max_skipped: int = typer.Option(
        None, "--max-skipped", min=0, help="Skip at most this many bad images; default 10 or 1%."
    ),
    classes: bool = typer.Option(False, "--classes", help="Take each subfolder of a path for a class."),
    latent: str | None = typer.Option(None, "--latent", help="Encode the images, too: FOLDER or OWNER/NAME."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace another dataset in the folder."),
    device: str = common.DEVICE,
    as_json: bool = common.JSON,
) -> None:
    """Decode, crop and resize all images of a set into one memory-mapped array with a fingerprint.

    Example: anisodiff data prepare cifar10 cifar-10-python.tar.gz --output cifar10

    Your own images: anisodiff data prepare photos/ --output photos-64 --size 64

    With latents: anisodiff data prepare photos/ --output photos-256 --size 256 --latent stabilityai/sd-vae-ft-mse
    """
    from anisodiff.data import prepare as prepare_images

    autoencoder = None if latent is None else _autoencoder(latent, device)  # before hours of preparing
    source = _source(name, path, split, labels=classes)
    with common.progress("preparing") as tick:
        made = prepare_images(
            source, output, size=size, channels=channels, max_skipped=max_skipped, overwrite=overwrite, progress=tick
        )
    dataset = made.dataset
    latents = None
    if autoencoder is not None:
        from anisodiff.latent.encoding import encode

        with common.progress("encoding") as tick:
            latents = encode(dataset, autoencoder, tick)
    if as_json:
        facts = {
            "path": str(dataset.path), "made": made.made, "images": len(dataset), "channels": dataset.channels,
            "size": list(dataset.size), "classes": list(dataset.classes),
            "fingerprint": dataset.fingerprint, "skipped": dataset.meta["skipped"],
            "latents": None if latents is None else latents.meta,
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=2))
        return
    for line in (made.message, *dataset.blurred()):
        typer.echo(line)
    for skipped in dataset.meta["skipped"]:
        typer.echo(f"  skipped {skipped['name']}: {skipped['reason']}")
    if latents is not None:
        channels, height, width = latents.rows.shape[3:]
        typer.echo(f"latents {channels}×{height}×{width} of {latents.meta['autoencoder']}")
        common.wrote(latents.path)
    common.wrote(dataset.path)


def _autoencoder(name: str, device: str) -> "Autoencoder":
    from anisodiff.latent.autoencoder import open_autoencoder
    from anisodiff.runtime.devices import pick_device

    return open_autoencoder(name, pick_device(device), online=True)


def _source(name: str, path: Path | None, split: str | None, *, labels: bool) -> "Source":
    """A named set at its path, or the images at a path."""
    from anisodiff.data import NAMED, named_source, open_source

    there = Path(name).exists()
    if name in NAMED or name.startswith("hf:") or (path is not None and not there):
        return named_source(name, path, split=split or "train")
    if not there and "/" not in name:
        raise ValueError(f"{name} is neither a path nor a dataset; {nearest(name, NAMED, 'hf:OWNER/NAME')}")
    if path is not None:
        raise ValueError(
            f"{name} is a path: expected no second one, got {path}; or a name first ({', '.join(NAMED)})"
        )
    if split is not None:
        raise ValueError(f"--split is for sets given by name, got a path, {name}; give the folder of that part alone")
    return open_source(name, labels=labels)
