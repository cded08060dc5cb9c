"""Host and Origin (FAULTS row 12)."""

from __future__ import annotations

import pytest

from ultrafast.gateway.failures import HttpError
from ultrafast.gateway.hosts import HostPolicy, is_loopback


def status(policy: HostPolicy, *hosts: str, origin: str | None = None) -> int:
    headers = [(b"host", host.encode("latin-1")) for host in hosts]
    if origin is not None:
        headers.append((b"origin", origin.encode("latin-1")))
    try:
        policy.check(headers)
    except HttpError as error:
        return int(error.status)
    return 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_loopback_every_loopback_name_is_ours(host: str) -> None:
    policy = HostPolicy(host)
    for name in ("localhost", "LocalHost:8000", "127.0.0.1:8000", "[::1]:8000", "127.0.0.1:1"):
        assert status(policy, name) == 200


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.168.1.5",
        "[::2]:8000",
        "localhost,evil.example",
        "%6cocalhost",
        "localhost.",
        "2130706433",
        "0x7f.1",
    ],
)
def test_foreign_hosts_are_refused(name: str) -> None:
    assert status(HostPolicy("127.0.0.1"), name) == 403


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":8000",
        "localhost:abc",
        "localhost:99999",
        "localhost:65536",
        "localhost:99999999",
        "localhost:-1",
        "localhost:+80",
        "localhost: 80",
        "localhost:80:80",
        "localhost:²",
        "localhost@evil.example",
        "user@localhost",
        "localhost/",
        "localhost:8000/../",
        "http://localhost",
        " localhost",
        "local host",
        "local\u00a0host",
        "local%host",
        "[::1",
        "::1",
        "[::1]8000",
    ],
)
def test_malformed_hosts_are_a_malformed_request(name: str) -> None:
    for policy in (HostPolicy("127.0.0.1"), HostPolicy("0.0.0.0")):
        assert status(policy, name) == 400


@pytest.mark.parametrize("port", ["", ":", ":0", ":1", ":8000", ":65535", ":00080"])
def test_any_port_is_ours(port: str) -> None:
    """One that is forwarded or published differs from the one that is bound."""
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert status(HostPolicy("127.0.0.1"), name + port) == 200


def test_exactly_one_host_is_needed() -> None:
    policy = HostPolicy("127.0.0.1")
    assert status(policy) == 400
    assert status(policy, "localhost", "localhost") == 400


def test_bound_to_every_address_any_literal_is_ours_but_no_foreign_name() -> None:
    for bound in ("0.0.0.0", "::"):
        policy = HostPolicy(bound)
        for name in ("192.168.1.5:8000", "[fe80::1]:8000", "localhost"):
            assert status(policy, name) == 200
        assert status(policy, "evil.example") == 403


def test_further_hosts() -> None:
    policy = HostPolicy("127.0.0.1", ["Proxy.Example"])
    assert status(policy, "proxy.example") == 200
    assert status(policy, "other.example") == 403


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:8000", 200),
        ("https://localhost:8000", 200),
        ("http://localhost:3000", 403),
        ("http://127.0.0.1:8000", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("file://localhost:8000", 403),
        ("http://localhost:8000.evil.example", 403),
    ],
)
def test_an_origin_must_be_our_own(origin: str, expected: int) -> None:
    assert status(HostPolicy("127.0.0.1"), "localhost:8000", origin=origin) == expected


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.5", "example.com", "", "localhost.evil.example"]))
