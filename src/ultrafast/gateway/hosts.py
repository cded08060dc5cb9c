"""Which ``Host`` and ``Origin`` a request may carry: the defence against DNS rebinding and cross-site requests.

A page in a browser can be made to resolve its own name to this server's address, but cannot change the ``Host`` it
then sends. So only names we are bound to are served. An address literal is safe where we are bound to every address:
no name was resolved.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus

from ultrafast.gateway.failures import Headers, HttpError

# RFC 3986: an address in brackets or a name (which may hold more letters than any of ours), and perhaps a port.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|(?:[a-z0-9._~!$&'()*+,;=-]|%[0-9a-f]{2})+)(?::([0-9]{0,5}))?", re.ASCII)
_MAXIMUM_PORT = 65535
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether binding to ``host`` keeps the server on this machine."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


@lru_cache(maxsize=64)  # nearly always the same one
def _name_of(host: str) -> str | None:
    """The name in a ``Host`` header; None where it is not a name with or without a port."""
    match = _HOST.fullmatch(host)
    return None if match is None or int(match[2] or 0) > _MAXIMUM_PORT else match[1]


class HostPolicy:
    """The names of a server bound to ``bound_host``, and whatever further names its operator gives it."""

    def __init__(self, bound_host: str, further_hosts: Iterable[str] = ()) -> None:
        address = _address(bound_host)
        names = {f"[{address}]" if address is not None and address.version == 6 else bound_host.lower()}
        self._any_address = address is not None and address.is_unspecified
        if is_loopback(bound_host) or self._any_address:
            names |= _LOOPBACK_NAMES
        if not is_loopback(bound_host):
            names.add(socket.gethostname().lower())
        self._names = frozenset(names) | frozenset(host.lower() for host in further_hosts)

    def check(self, headers: Headers) -> None:
        """Raise HttpError (400, 403) unless ``Host`` is ours and ``Origin`` absent or the same."""
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1:
            raise HttpError(HTTPStatus.BAD_REQUEST, "the request needs exactly one Host header", code="invalid_host")
        host = hosts[0].decode("latin-1").lower()
        name = _name_of(host)
        if name is None:
            raise HttpError(
                HTTPStatus.BAD_REQUEST, "the Host header is not a host name with or without a port", code="invalid_host"
            )
        if not self._allows(name):
            raise HttpError(HTTPStatus.FORBIDDEN, "this server does not serve that host name", code="host_not_allowed")
        for header, value in headers:
            if header == b"origin" and value.decode("latin-1").lower() not in (f"http://{host}", f"https://{host}"):
                raise HttpError(
                    HTTPStatus.FORBIDDEN, "requests from other origins are refused", code="origin_not_allowed"
                )

    def _allows(self, name: str) -> bool:
        # Any port: one that is forwarded or published need not be ours.
        return name in self._names or (self._any_address and _address(name) is not None)
