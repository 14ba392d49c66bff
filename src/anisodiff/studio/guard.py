"""What stands before every request: who may ask, from which page, how much, and what the answer may load.

- **Host** must be an address of this server: a name that an attacker points here (DNS rebinding) is refused.
- **Origin**, where the browser sends one, must be this page; so must what it says in Sec-Fetch-Site.
- **X-Client**: every request but those for pages and pictures carries it. Another site cannot send such a header
  without asking first, and is never answered.
- **Token**: on an address that others can reach, a cookie that ``/?token=…`` sets; without it nothing is served.
- **Sizes**: bodies are counted as they arrive.
"""

import hmac
import ipaddress
import re
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

LARGEST_BODY = 24 << 20
"""Bytes of any request; a picture is the largest."""
COOKIE = "anisodiff-studio"
ONCE = (b"host", b"origin", b"sec-fetch-site", b"x-client")
"""Headers that are judged: with two of them, a proxy and this server could mean different ones."""
HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
CLIENT = re.compile(r"[A-Za-z0-9_-]{8,64}")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
OTHER_PAGE = "requests of other pages are refused: enter the address in the browser yourself"
_TOO_LARGE = f"the request is larger than {LARGEST_BODY >> 20} MB"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may ask: the address that is listened on, and the token that others need."""

    host: str = "127.0.0.1"
    token: str | None = None

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.token:
            raise ValueError(f"{self.host} can be reached by others: a token is needed")

    def admits(self, name: str) -> bool:
        """Whether a Host, without its port, names this server."""
        if is_loopback(self.host):
            return name in _LOOPBACK
        if name in (self.host, socket.gethostname().lower()):
            return True
        try:  # a number cannot be rebound
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.host in ("0.0.0.0", "::")


class TooLarge(Exception):
    """A body beyond its limit; the application answers it."""


class Guard:
    """The ASGI application behind all checks."""

    def __init__(self, app: Any, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse, or pass on with the headers of every answer."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return None
        if scope["type"] != "http":
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        told = [name for name, _ in scope["headers"] if name in ONCE]
        once = b"host" in told and len(set(told)) == len(told)
        status, words = self._refusal(scope, headers) if once else (400, "expected one Host, and one Origin at most")
        if status:
            extra = self._admission(scope) if status == 401 else {}
            return await _answer(send, 303 if extra else status, "" if extra else words, extra)

        async def counted() -> Any:
            message = await receive()
            counted.seen += len(message.get("body", b""))  # type: ignore[attr-defined]
            if counted.seen > LARGEST_BODY:  # type: ignore[attr-defined]
                raise TooLarge(_TOO_LARGE)
            return message

        counted.seen = 0  # type: ignore[attr-defined]

        async def sealed(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name.decode("latin-1").lower() for name, _ in message["headers"]}
                more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k not in own]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self.app(scope, counted, sealed)
        return None

    def _refusal(self, scope: Any, headers: dict[str, str]) -> tuple[int, str]:
        """A status and a line; 0 where all is well."""
        host = headers.get("host", "")
        if not self.access.admits(_name(host)):
            return 403, "this address is not the studio's: open the one that it printed"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, OTHER_PAGE
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, OTHER_PAGE
        if self.access.token and not self._known(headers.get("cookie", "")):
            return 401, "open the address with the token that the studio printed"
        if _size(headers) > LARGEST_BODY:
            return 413, _TOO_LARGE
        if scope["method"] not in ("GET", "HEAD") and not CLIENT.fullmatch(headers.get("x-client", "")):
            return 403, "the header X-Client is missing: use the page"
        return 0, ""

    def _known(self, cookie: str) -> bool:
        try:
            held = SimpleCookie(cookie).get(COOKIE)
        except CookieError:
            return False
        return held is not None and _equal(held.value, self.access.token or "")

    def _admission(self, scope: Any) -> dict[str, str]:
        """The cookie, for who opens the address with the right token."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] != "/" or scope["method"] != "GET" or not _equal(given, self.access.token or ""):
            return {}
        return {"location": "/", "set-cookie": f"{COOKIE}={self.access.token}; HttpOnly; SameSite=Strict; Path=/"}


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _name(host: str) -> str:
    """A Host without its port, which an SSH tunnel may change; empty where it is malformed."""
    found = HOST.fullmatch(host)
    return found.group(1).strip("[]").lower() if found else ""


def _size(headers: dict[str, str]) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() and len(text) < 16 else LARGEST_BODY + 1


async def _answer(send: Any, status: int, words: str, extra: dict[str, str]) -> None:
    body = f"{words}\n".encode()
    fields = {**HEADERS, "content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **extra}
    named = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": body})
