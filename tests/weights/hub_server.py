"""A small hub on this machine: the requests that huggingface_hub makes, and the faults that a network has.

``Hub`` answers at ``http://127.0.0.1:PORT``; large files are redirected to a store at another origin
(``http://localhost:PORT``), as the real hub does. Every request is recorded with its ``Authorization``.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_canary_0123456789"
LARGE = 200  # bytes from which a file is kept in the store


@dataclass
class Repository:
    """Files, and who may read them: ``access`` is public, private, gated or disabled."""

    files: dict[str, bytes]
    access: str = "public"
    license: str = "apache-2.0"


@dataclass
class Request:
    method: str
    host: str
    path: str
    authorization: str | None
    range: str | None


@dataclass
class Faults:
    """What goes wrong with transfers of a file, by its name."""

    cuts: dict[str, list[int]] = field(default_factory=dict)  # bytes after which each transfer in turn breaks off
    statuses: dict[str, list[int]] = field(default_factory=dict)  # answered in turn before the file is
    contents: dict[str, bytes] = field(default_factory=dict)  # sent in place of the file's own
    ignore_ranges: bool = False
    wrong_ranges: bool = False
    listing: bytes | None = None  # sent in place of any listing


class Hub:
    """The server; use it as a context. ``url`` is the endpoint."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.faults = Faults()
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def transfers(self, name: str) -> list[Request]:
        """The requests for the content of a file."""
        return [one for one in self.requests if one.method == "GET" and one.path.endswith("/" + name)]


def etag_of(content: bytes) -> str:
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.server_hub
        host = (self.headers["Host"] or "").partition(":")[0]
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(Request(self.command, host, path, self.headers["Authorization"], self.headers["Range"]))
        if host == "localhost":  # the store: addresses are signed, nothing else is asked
            repository, _, name = path.removeprefix("/store/").partition("//")
            self._send_file(name, hub.repositories[repository].files[name])
        elif path.startswith("/api/models/"):
            self._listing(path.removeprefix("/api/models/"))
        else:
            repository, _, rest = path[1:].partition("/resolve/")
            self._resolve(repository, rest.partition("/")[2])

    def _refused(self, name: str) -> bool:
        repository = self.server_hub.repositories.get(name)
        token = self.headers["Authorization"]
        if token is not None and token != f"Bearer {TOKEN}":
            self._send(401, **{"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None or (repository.access == "private" and token is None):
            self._send(401 if token is None else 404, **{"X-Error-Code": "RepoNotFound"})
        elif repository.access == "gated":
            self._send(401 if token is None else 403, **{"X-Error-Code": "GatedRepo"})
        elif repository.access == "disabled":
            self._send(403, **{"X-Error-Message": "Access to this resource is disabled."})
        else:
            return False
        return True

    def _listing(self, name: str) -> None:
        if self._refused(name) if self.server_hub.repositories.get(name, Repository({})).access != "gated" else False:
            return
        repository = self.server_hub.repositories[name]
        listing = {
            "id": name,
            "modelId": name,
            "sha": REVISION,
            "cardData": {"license": repository.license},
            "siblings": [{"rfilename": file, "size": len(content)} for file, content in repository.files.items()],
        }
        body = self.server_hub.faults.listing
        self._send(200, json.dumps(listing).encode() if body is None else body, **{"Content-Type": "application/json"})

    def _resolve(self, repository: str, name: str) -> None:
        if self._refused(repository):
            return
        content = self.server_hub.repositories[repository].files.get(name)
        if content is None:
            self._send(404, **{"X-Error-Code": "EntryNotFound"})
        elif len(content) >= LARGE:
            self._send(
                302,
                Location=f"http://localhost:{self.server_hub.port}/store/{repository}//{name}",
                **{"X-Linked-Etag": f'"{etag_of(content)}"', "X-Linked-Size": str(len(content))},
                **{"X-Repo-Commit": REVISION, "ETag": '"of-the-redirect"'},
            )
        else:
            self._send_file(name, content)

    def _send_file(self, name: str, content: bytes) -> None:
        faults = self.server_hub.faults
        headers = {"ETag": f'"{etag_of(content)}"', "X-Repo-Commit": REVISION}
        if self.command == "HEAD":
            self._send(200, length=len(content), **headers)
            return
        if waiting := faults.statuses.get(name):
            self._send(waiting.pop(0))
            return
        content = faults.contents.get(name, content)
        status, start = 200, 0
        if (wanted := self.headers["Range"]) and not faults.ignore_ranges:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            shown = 0 if faults.wrong_ranges else start
            headers["Content-Range"] = f"bytes {shown}-{len(content) - 1}/{len(content)}"
            status = 206
        cuts = faults.cuts.get(name)
        if cuts:
            self._send(status, content[start : start + cuts.pop(0)], length=len(content) - start, **headers)
            self.close_connection = True
        else:
            self._send(status, content[start:], **headers)

    def _send(self, status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("X-HF-Warning", "unauthenticated; You are sending unauthenticated requests")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
