"""``anisodiff autoencoder``: train an autoencoder on one's own images, and measure what it loses."""

from pathlib import Path

import typer

from anisodiff.cli import common
from anisodiff.notation import counted

app = typer.Typer(
    help="Train an autoencoder, or measure one.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.callback()
def _autoencoder() -> None:
    pass


@app.command()
def train(
    data: Path = typer.Option(..., "--data", help="Read a dataset, a folder or zip of images."),
    output: Path = common.output_folder(Path("autoencoder"), "Write the autoencoder into this folder."),
    size: int = typer.Option(None, "--size", min=8, help="Set the side in pixels; default: from the images."),
    overrides: list[str] = typer.Option([], "--set", help="Override a key, e.g. --set factor=4; repeatable."),
    images: int = typer.Option(None, "--images", min=1, help="Train for this many images; default 1,000,000."),
    device: str = common.DEVICE,
) -> None:
    """Train a small KL autoencoder. It may be killed at any moment; run the same command again to resume.

    Example: anisodiff autoencoder train --data photos/ --output autoencoder --set factor=8 --set channels=4

    Then: anisodiff train --data photos/ --latent autoencoder --output run
    """
    from functools import partial

    from anisodiff.data import guess, is_dataset, open_dataset, open_source, prepare
    from anisodiff.processes.config import check_keys
    from anisodiff.runtime.devices import pick_device
    from anisodiff.runtime.progress import stages
    from anisodiff.training.autoencoder import AutoencoderConfig, train_autoencoder

    keys = common.settings(overrides) | ({} if images is None else {"images": images})
    config = AutoencoderConfig(**check_keys(keys, tuple(AutoencoderConfig.__dataclass_fields__), "autoencoder"))
    if size is not None and is_dataset(data):
        raise ValueError(f"--size: {data} is prepared already; leave it out, or give the images themselves")

    with stages(common.console) as tell:
        if is_dataset(data):
            dataset = open_dataset(data)
        else:
            source = open_source(data)
            seen = guess(source)
            sides = [side // config.factor * config.factor for side in seen.size] if size is None else [size, size]
            config.network(seen.channels, (sides[0], sides[1]))  # refused before hours of preparing
            made = prepare(
                source, output / "data", size=(sides[0], sides[1]), channels=seen.channels,
                progress=partial(tell, "preparing the images"),
            )  # fmt: skip
            dataset = made.dataset
            common.say(made.message)
        for line in dataset.blurred():
            common.say(line)
        outcome = train_autoencoder(
            dataset, output, config, device=pick_device(device), say=common.say, progress=partial(tell, "training")
        )
    loss = "" if outcome.loss is None else f", loss {outcome.loss:.4f}"
    typer.echo(f"{'finished' if outcome.finished else 'stopped'} after {outcome.images:,} images{loss}")
    common.wrote(output)
    if not outcome.finished:
        raise typer.Exit(130)


@app.command()
def reconstruct(
    autoencoder: str = typer.Argument(..., help="Load an autoencoder: FOLDER or OWNER/NAME."),
    data: Path = typer.Option(..., "--data", help="Read a prepared dataset."),
    out: Path = common.output_folder(Path("reconstructions"), "Write the images into this folder."),
    n: int = typer.Option(None, "--n", min=1, help="Reconstruct the first N images; default all."),
    as_json: bool = common.JSON,
    device: str = common.DEVICE,
) -> None:
    """Encode and decode images, and print what is lost. Run the same command again to make what is missing.

    Example: anisodiff autoencoder reconstruct autoencoder --data run/heldout --out reconstructions

    Then: anisodiff evaluate reconstructions --reference run/heldout
    """
    import json

    from anisodiff.data import open_dataset
    from anisodiff.latent.autoencoder import open_autoencoder
    from anisodiff.latent.reconstruction import reconstruct as write
    from anisodiff.runtime.devices import pick_device

    opened, dataset = open_autoencoder(autoencoder, pick_device(device), online=True), open_dataset(data)
    with common.progress("reconstructing") as tick:
        found = write(dataset, opened, out, n, tick)
    if as_json:
        typer.echo(json.dumps({"images": found.images, "made": found.made, "psnr": found.psnr, "path": str(out)}))
        return
    typer.echo(f"{counted(found.images, 'image')} ({found.made} made now): PSNR {found.psnr:.2f} dB in the mean")
    common.wrote(out)
