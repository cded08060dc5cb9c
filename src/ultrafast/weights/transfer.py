"""Talking to the hub: one repository's listing, and its files one by one, each checked, each going on after a cut."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self
from urllib.parse import urlsplit

# Read when the library is imported: without it, requests would tell which other programs are installed here.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import httpx2
from huggingface_hub import HfApi, get_hf_file_metadata, get_session, get_token, hf_hub_url
from huggingface_hub.errors import (
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]  # documented, but not listed

from ultrafast.errors import ConfigurationError, DownloadError, ModelNotFoundError
from ultrafast.weights.cache import Progress

TIMEOUT_SECONDS: Final = 30.0
MAX_FILES: Final = 20_000
MAX_TRIES: Final = 5  # in a row that bring nothing
FIRST_PAUSE_SECONDS: Final = 0.5  # doubled each time

# Whatever goes wrong becomes one line of ours; the library's warnings would stand beside it, some with addresses.
logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

_CHUNK_BYTES: Final = 1 << 18
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_PLAIN: Final = re.compile(r"[A-Za-z0-9 ._+-]{1,40}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of one revision; by the hub's convention ``etag`` is its SHA-256 (large files) or git's SHA-1 of it."""

    name: str
    url: str
    byte_count: int
    etag: str

    @property
    def partial_name(self) -> str:
        """The name under which it grows; another version of the file has another."""
        return hashlib.sha256(f"{self.name} {self.etag} {self.byte_count}".encode()).hexdigest()[:40]

    def is_at(self, path: Path) -> bool:
        """Whether the file at ``path`` is this one."""
        try:
            return path.stat().st_size == self.byte_count and self.matches(path)
        except FileNotFoundError:
            return False

    def matches(self, path: Path) -> bool:
        """Whether a file of the right size has the hash that the hub named; one of no known kind proves nothing."""
        if re.fullmatch(r"[0-9a-f]{64}", self.etag):
            digests = [hashlib.sha256()]
        elif re.fullmatch(r"[0-9a-f]{40}", self.etag):
            # git's, which has the size before the content; mirrors are met that name the plain one.
            digests = [hashlib.sha1(start, usedforsecurity=False) for start in (b"blob %d\0" % self.byte_count, b"")]
        else:
            return True
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                for digest in digests:
                    digest.update(chunk)
        return any(digest.hexdigest() == self.etag for digest in digests)


class Hub:
    """One repository at the hub of ``HF_ENDPOINT``, at one revision. Entering asks for its listing.

    The token (``HF_TOKEN``, or that of ``hf auth login``) goes to the hub itself and nowhere else: a redirect to
    another host does not carry it, and neither does plain HTTP to another machine.
    """

    def __init__(self, repository: str, progress: Progress | None) -> None:
        self.repository = repository
        self.progress = progress
        self.endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ConfigurationError("HF_ENDPOINT must be an http:// or https:// address without a password")
        self.host = parts.hostname
        self.token: str | bool = False
        self._secret = parts.scheme == "https" or self.host in _LOOPBACK
        self.sizes: dict[str, int] = {}
        self.revision = ""
        self.license = ""
        self._total_bytes = self._done_bytes = 0

    def __enter__(self) -> Self:
        with self._explained():
            token = get_token()
            if token and self._secret:
                self.token = token
            elif token and self.progress:
                self.progress.message("HF_ENDPOINT is not https, so no token is sent to it")
            info = HfApi(endpoint=self.endpoint, library_name="ultrafast").model_info(
                self.repository, files_metadata=True, timeout=TIMEOUT_SECONDS, token=self.token
            )
            siblings = info.siblings or []
            if len(siblings) > MAX_FILES or not isinstance(info.sha, str):
                self._strange()
            self.revision = info.sha
            # A listing without sizes still tells what there is; each file's own answer has its size.
            self.sizes = {file.rfilename: file.size or 0 for file in siblings}
            licence = getattr(info.card_data, "license", None)
            self.license = licence if isinstance(licence, str) and _PLAIN.fullmatch(licence) else ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def file(self, name: str) -> RemoteFile:
        """Ask for a file's size and hash."""
        url = hf_hub_url(self.repository, name, revision=self.revision, endpoint=self.endpoint)
        with self._explained():
            metadata = get_hf_file_metadata(
                url,
                token=self.token,
                timeout=TIMEOUT_SECONDS,
                library_name="ultrafast",
                endpoint=self.endpoint,
                retry_on_errors=True,
            )
            if metadata.size is None or metadata.size < 0 or not metadata.etag:
                self._strange()
            return RemoteFile(name, url, metadata.size, metadata.etag)

    def expect(self, total_bytes: int) -> None:
        """What the fetches that follow bring together, for the progress."""
        self._total_bytes, self._done_bytes = total_bytes, 0

    def fetch(self, file: RemoteFile, staging: Path) -> Path:
        """The file, whole and checked, in the directory ``staging``; goes on with what is there of it."""
        staging.mkdir(parents=True, exist_ok=True)
        path = staging / file.partial_name
        idle_tries, pause = 0, FIRST_PAUSE_SECONDS
        while True:
            before = path.stat().st_size if path.exists() else 0
            if before > file.byte_count:
                path.unlink()
                continue
            if before == file.byte_count and path.exists():
                break
            try:
                with self._explained():
                    self._receive(file, path, before)
            except _CutError as cut:
                grew = path.exists() and path.stat().st_size > before
                idle_tries = 0 if grew else idle_tries + 1
                if idle_tries >= MAX_TRIES:
                    raise DownloadError(
                        f"{cut}; what has arrived is kept: the same command goes on from there"
                    ) from cut
                time.sleep(FIRST_PAUSE_SECONDS if grew else pause)
                pause = FIRST_PAUSE_SECONDS if grew else 2 * pause
        if not file.matches(path):
            path.unlink()
            raise DownloadError(f"{file.name} of {self.repository} arrived damaged (another hash than the hub names)")
        self._done_bytes += file.byte_count
        self._advance(0)
        return path

    def _receive(self, file: RemoteFile, path: Path, start: int) -> None:
        headers = {"Accept-Encoding": "identity", "User-Agent": "ultrafast"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if start:
            headers["Range"] = f"bytes={start}-"
        with get_session().stream("GET", file.url, headers=headers, timeout=TIMEOUT_SECONDS) as response:
            hf_raise_for_status(response)
            if response.status_code == httpx2.codes.PARTIAL_CONTENT:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                    self._strange()
            elif response.status_code == httpx2.codes.OK:
                start = 0  # it does not know of ranges, and sends all from the start
            else:
                self._strange()
            with path.open("r+b" if start else "wb") as output:
                output.seek(start)
                received = start
                for chunk in response.iter_raw():
                    received += len(chunk)
                    if received > file.byte_count:
                        output.truncate(0)
                        raise DownloadError(f"{file.name} of {self.repository} is longer than the hub said")
                    output.write(chunk)
                    self._advance(received)
                output.flush()
                os.fsync(output.fileno())
            if received < file.byte_count:
                raise _CutError(f"{self.host} ended the transfer too early")

    def _advance(self, of_this_file: int) -> None:
        if self.progress and self._total_bytes:
            self.progress.advance(min(self._done_bytes + of_this_file, self._total_bytes), self._total_bytes)

    def _strange(self) -> NoReturn:
        raise DownloadError(f"{self.host} does not answer as a hub does; is HF_ENDPOINT right?")

    @property
    def _without_it(self) -> str:
        """What a person has where the hub could not even be asked."""
        return "" if self.revision else "; what is in the cache still serves: 'ultrafast models list'"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the library raises into one line with the way out. None of its own texts: they hold addresses."""
        page = f"{self.endpoint}/{self.repository}"
        try:
            yield
        except GatedRepoError:
            raise DownloadError(
                f"{self.repository} is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account"
            ) from None
        except RemoteEntryNotFoundError:
            raise ModelNotFoundError(f"{self.repository} no longer has a file that it lists") from None
        except RepositoryNotFoundError:
            known = "the token of HF_TOKEN may not read it" if self.token else "HF_TOKEN is not set"
            raise ModelNotFoundError(
                f"{self.host} has no repository {self.repository}, or it is private and {known}"
            ) from None
        except OfflineModeIsEnabled:
            raise DownloadError(f"{self.repository}: HF_HUB_OFFLINE forbids to ask the hub{self._without_it}") from None
        except LocalTokenNotFoundError:
            raise DownloadError(f"{self.repository} needs a token: set HF_TOKEN") from None
        except FileMetadataError:
            self._strange()
        except HfHubHTTPError as error:
            self._explain_status(error.response.status_code, page)
        except httpx2.HTTPError as error:
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                what = f"the hub ({self.host}) cannot be reached: connect to the network and try again"
            elif isinstance(error, httpx2.TimeoutException):
                what = f"{self.host} sent nothing for {TIMEOUT_SECONDS:.0f} s: try again later"
            else:
                what = f"the connection to {self.host} broke: try again"
            raise _CutError(f"{what}{self._without_it}") from None
        except (httpx2.InvalidURL, ValueError, KeyError, TypeError, AttributeError):
            self._strange()

    def _explain_status(self, status: int, page: str) -> NoReturn:
        if status == httpx2.codes.UNAUTHORIZED:
            what = "it refuses the token of HF_TOKEN" if self.token else "it needs a token: set HF_TOKEN"
            raise DownloadError(f"{self.repository}: {what}") from None
        if status == httpx2.codes.FORBIDDEN:
            raise DownloadError(
                f"{self.repository} may not be read with this token: ask for access at {page}"
            ) from None
        if status == httpx2.codes.NOT_FOUND:
            raise ModelNotFoundError(f"{self.host} has no repository {self.repository}") from None
        if status == httpx2.codes.RANGE_NOT_SATISFIABLE:
            self._strange()
        raise _CutError(f"{self.host} answers with an error ({status}); try again later") from None


class _CutError(DownloadError):
    """The transfer broke off; another try may go on."""
