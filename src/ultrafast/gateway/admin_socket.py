"""The Unix socket of the operator's interface: whoever may open the file may give orders, so its owner alone may."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from starlette.types import ASGIApp

from ultrafast.errors import ConfigurationError, storage_reason
from ultrafast.gateway.protocol import QuietServer
from ultrafast.gateway.records.directory import unusable

MAXIMUM_PATH_BYTES = 103  # of a socket's address, on the system that takes the fewest
_BACKLOG = 16


@contextlib.asynccontextmanager
async def serving_admin(application: ASGIApp, path: Path) -> AsyncIterator[None]:
    """Serve ``application`` on a socket at ``path`` meanwhile; who holds the data directory calls this, nobody else.

    Raises ConfigurationError where the socket cannot be made.
    """
    with _listening(path) as listener:
        server = QuietServer(application)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    if len(os.fsencode(path)) > MAXIMUM_PATH_BYTES:
        raise unusable(path, f"a socket's path has at most {MAXIMUM_PATH_BYTES} bytes")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _remove_stale(path)
            # From its first instant: connecting asks for the right to write.
            mask = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(mask)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise unusable(path, storage_reason(error)) from None
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove what a server that was killed left: its lock is ours, so it does not run."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{path} is in the way of the server's socket: remove it")
    path.unlink()
