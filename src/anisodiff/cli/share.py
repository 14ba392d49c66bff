"""``anisodiff share``: a model with its card, as a folder or on the Hugging Face Hub."""

from pathlib import Path

import typer

from anisodiff.cli import common


def share(
    checkpoint: Path = common.CHECKPOINT,
    out: Path | None = common.output_folder(None, "Write the model and its card into this new folder."),
    push: str | None = typer.Option(None, "--push", metavar="OWNER/NAME", help="Push it to the Hugging Face Hub."),
    report: Path | None = typer.Option(None, "--report", help="Put the numbers of an evaluate --json file in."),
    samples: int = typer.Option(16, "--samples", min=0, max=256, help="Draw this many samples; 0: none."),
    private: bool = typer.Option(False, "--private", help="Create the repository as a private one."),
    trust_code: bool = common.TRUST,
    latent: str | None = common.LATENT,
    device: str = common.DEVICE,
) -> None:
    """Write a model without its training state, with a model card and samples; or push it to the Hub.

    Example: anisodiff share run --out faces-64 --report report.json

    The Hub: anisodiff share run --push you/faces-64, then anywhere: anisodiff sample hub:you/faces-64
    """
    from anisodiff.cli.evaluate import read_report
    from anisodiff.generation import load

    if (out is None) == (push is None):
        raise ValueError("say where to write the model, once: --out FOLDER, or --push OWNER/NAME")
    numbers = "" if report is None else read_report(report).table()
    generator = load(
        checkpoint, device, trust_code=trust_code, latent=latent, say=lambda line: typer.echo(line, err=True)
    )
    if out is not None:
        common.wrote(generator.save_pretrained(out, numbers=numbers, samples=samples))
    elif push is not None:
        typer.echo(f"pushed {generator.push_to_hub(push, numbers=numbers, samples=samples, private=private or None)}")
