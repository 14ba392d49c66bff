"""``anisodiff balance``: measure where a model's residual leans on its own samples, and keep the correction."""

from pathlib import Path

import typer

from anisodiff.cli import common


def balance(
    checkpoint: Path = typer.Argument(..., help="A run's folder (its newest checkpoint), or a checkpoint's."),
    trajectories: int = typer.Option(512, "--trajectories", "-n", min=2, help="Samples it is measured on."),
    steps: int = typer.Option(50, "--steps", min=3, help="Evaluations of the network for each."),
    batch: int | None = typer.Option(None, "--batch", min=1, help="Of these, so many at a time."),
    device: str = common.DEVICE,
) -> None:
    """Measure the balance of a model; `sample` and `evaluate --from` then use it.

    Samples of a network that is not trained to the end are flatter than the data: on states of its own making it
    takes structure for noise. The balance takes that lean out of its residual, frequency by frequency. No images are
    needed.

    Example: anisodiff balance run && anisodiff sample run --out samples
    """
    from anisodiff.generation.balancing import balance_checkpoint

    with common.progress("trajectories") as tick:
        found, place = balance_checkpoint(
            checkpoint, device=device, trajectories=trajectories, steps=steps, batch=batch, progress=tick
        )
    low, high = float(found.score.min()), float(found.score.max())
    typer.echo(f"lean of the score's residual: {low:+.3f} to {high:+.3f} over {len(found.times)} times")
    common.wrote(place)
