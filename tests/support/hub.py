"""A stand-in of the Hugging Face Hub on 127.0.0.1: what its client asks to create, upload and download models.

Repositories are in memory: commits of files. Small text goes into the commit itself, tensors and pictures by the
LFS protocol ("basic" transfers), as the real Hub asks for; files are served with the headers that the client checks.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

LARGE = (".safetensors", ".png")


class Hub(ThreadingHTTPServer):
    """The state of the server."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        """owner/name → commit → path → contents; the last commit is main."""
        self.objects: dict[str, bytes] = {}
        """LFS: sha256 → contents."""
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, name: str, files: dict[str, bytes]) -> str:
        """Add files to a repository; the new commit."""
        commits = self.repositories.setdefault(name, {})
        whole = {**(list(commits.values())[-1] if commits else {}), **files}
        code = hashlib.sha1(repr((len(commits), sorted(whole))).encode()).hexdigest()
        commits[code] = whole
        return code


class _Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self, code: int, values: Any = None, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        data = body if values is None else json.dumps(values).encode()
        self.send_response(code)
        for key, value in ({"Content-Type": "application/json"} if values is not None else {}).items():
            self.send_header(key, value)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _asked(self) -> str:
        path = unquote(urlparse(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        self.server.tokens.add(self.headers.get("Authorization"))
        return path

    def do_POST(self) -> None:
        path, body, hub = self._asked(), self._body(), self.server
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given.get('organization') or 'me'}/{given['name']}"
            known = name in hub.repositories
            if not known:
                hub.commit(name, {".gitattributes": b""})
            self._reply(409 if known else 200, {"url": f"{hub.address}/{name}", "id": name, "name": name})
        elif path == "/api/validate-yaml":
            self._reply(200, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/(.+/.+)/preupload/main", path):
            files = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(LARGE) else "regular",
                 "shouldIgnore": False, "oid": None}
                for f in json.loads(body)["files"]
            ]  # fmt: skip
            self._reply(200, {"files": files})
        elif found := re.fullmatch(r"/(.+/.+)\.git/info/lfs/objects/batch", path):
            wanted = [
                {"oid": o["oid"], "size": o["size"], "actions": {"upload": {"href": f"{hub.address}/lfs/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            kind = {"Content-Type": "application/vnd.git-lfs+json"}
            self._reply(200, None, kind, json.dumps({"transfer": "basic", "objects": wanted}).encode())
        elif found := re.fullmatch(r"/api/models/(.+/.+)/commit/main", path):
            files = {}
            for line in body.splitlines():
                item = json.loads(line)
                value = item["value"]
                if item["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif item["key"] == "lfsFile":
                    files[value["path"]] = hub.objects[value["oid"]]
            code = hub.commit(found[1], files)
            url = f"{hub.address}/{found[1]}/commit/{code}"
            self._reply(200, {"commitUrl": url, "commitOid": code, "success": True, "pullRequestUrl": None})
        else:
            self._reply(404, {"error": path})

    def do_PUT(self) -> None:
        path, body = self._asked(), self._body()
        code = hashlib.sha256(body).hexdigest()
        fits = path == f"/lfs/{code}"
        if fits:
            self.server.objects[code] = body
        self._reply(200 if fits else 400, {})

    def do_GET(self) -> None:
        path, hub = self._asked(), self.server
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            commits = hub.repositories.get(found[1], {})
            code = found[3] if found[3] in commits else next(reversed(commits), None)
            if code is None or found[3] not in (None, "main", code):
                self._reply(404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})
            elif found[2] == "tree":
                rows = [
                    {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for file, data in commits[code].items()
                ]
                self._reply(200, rows)
            else:
                names = [{"rfilename": file, "size": len(data)} for file, data in commits[code].items()]
                self._reply(200, {"id": found[1], "modelId": found[1], "sha": code, "siblings": names, "tags": []})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            commits = hub.repositories.get(found[1], {})
            code = found[2] if found[2] in commits else next(reversed(commits), "")
            data = commits.get(code, {}).get(found[3])
            if data is None:
                self._reply(404, {"error": "not found"}, {"X-Error-Code": "EntryNotFound"})
                return
            large = found[3].endswith(LARGE)
            mark = (hashlib.sha256 if large else hashlib.sha1)(data).hexdigest()
            headers = {"ETag": f'"{mark}"', "X-Repo-Commit": code, "Accept-Ranges": "bytes"}
            self._reply(200, None, headers | ({"X-Linked-Etag": f'"{mark}"'} if large else {}), data)
        else:
            self._reply(404, {"error": path})

    do_HEAD = do_GET


@contextmanager
def hub() -> Iterator[Hub]:
    """A running server."""
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
