"""The server: one process, loopback unless told otherwise, ended by Ctrl-C with all trainings saved."""

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from anisodiff.studio.app import StudioConfig, create_app
from anisodiff.studio.guard import Access, is_loopback

MOST_CONNECTIONS = 400


def repository_results() -> Path | None:
    """docs/results of the checkout that this package runs from, or of the working folder; None elsewhere."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "docs" / "results" / "README.md").is_file():
            return root / "docs" / "results"
    return None


def access_to(host: str) -> Access:
    """Loopback needs no token; any other address gets a new one."""
    return Access(host=host, token=None if is_loopback(host) else secrets.token_urlsafe(24))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a port in use is an error of one line."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise ValueError(f"--host: got {host!r}, expected an address of this machine") from None
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
        listener.listen(128)  # who asks before the server is ready waits, and is not refused
    except OSError as error:
        listener.close()
        raise ValueError(f"cannot listen on {host}:{port} ({error.strerror}): choose another --port, or 0") from None
    return listener


def address_of(listener: socket.socket, access: Access) -> str:
    """What to open."""
    host, port = access.host, listener.getsockname()[1]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname().lower()
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={access.token}" if access.token else "")


def prepared(config: StudioConfig) -> uvicorn.Server:
    """A server for a socket that listens."""
    settings = uvicorn.Config(
        create_app(config), log_level="warning", access_log=False, server_header=False, date_header=False, ws="none",
        limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=10, timeout_graceful_shutdown=2, proxy_headers=False,
        lifespan="on",
    )  # fmt: skip
    return uvicorn.Server(settings)


def serve(config: StudioConfig, port: int, *, browse: bool, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C."""
    listener = listen(config.access.host, port)
    address = address_of(listener, config.access)
    say(f"anisodiff studio: {address}")
    say(f"runs: {config.runs.resolve()}; Ctrl-C ends the studio and saves its trainings")
    if config.access.token:
        say("Others can reach this address: whoever has the token can use the studio. There is no encryption.")
    server = prepared(config)
    if browse:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    server.run(sockets=[listener])
