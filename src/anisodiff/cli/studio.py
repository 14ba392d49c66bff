"""``anisodiff studio``: the local web page."""

from pathlib import Path

import typer

from anisodiff.cli import common

PORT = 8642


def studio(
    runs: Path = typer.Argument(Path(), help="Show the runs of this folder; default: the current one."),
    port: int = typer.Option(PORT, "--port", min=0, max=65535, help="Listen on this port; 0: any free one."),
    host: str = typer.Option("127.0.0.1", "--host", help="Listen on this address; all but localhost need a token."),
    results: Path = typer.Option(None, "--results", help="Show the pages of this folder; default docs/results."),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page in a browser."),
    device: str = common.DEVICE,
) -> None:
    """Open the studio: design processes, generate, paint, watch runs, read results.

    Example: anisodiff studio

    Only this machine can reach it. Nothing is sent anywhere; no internet is needed.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ValueError("the studio needs fastapi and uvicorn: pip install 'anisodiff[studio]'") from None
    from anisodiff.runtime.devices import pick_device
    from anisodiff.studio.app import StudioConfig
    from anisodiff.studio.server import access_to, repository_results, serve

    if not runs.is_dir():
        raise ValueError(f"no such folder: {runs}; expected one that holds runs, or shall")
    if results is not None and not results.is_dir():
        raise ValueError(f"no such folder: {results}; expected one of Markdown pages, such as docs/results")
    config = StudioConfig(
        runs=runs, results=results or repository_results(), device=str(pick_device(device)), access=access_to(host)
    )
    serve(config, port, browse=browser, say=typer.echo)
