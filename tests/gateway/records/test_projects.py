"""Projects, keys and the preview (FAULTS rows 13 and 14)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest

from tests.gateway.records.entries import entry
from ultrafast.errors import ConfigurationError, NotFoundError, RequestError
from ultrafast.gateway.configuration import PriceSettings
from ultrafast.gateway.records.projects import Project
from ultrafast.gateway.records.store import Records

HOSTILE = (
    b"",
    b"uf-",
    b"' OR 1=1 --",
    b"\xff\xfe\x00",
    b"x" * 1_000_000,
    b"%",
    b"*",
)


def test_the_first_project_is_there_and_in_the_preview(records: Records) -> None:
    (project,) = records.projects()
    assert (project.name, project.default_tier, project.in_preview) == ("default", "default", True)
    assert project.id.startswith("proj_")


def test_later_projects_are_not_in_the_preview_and_outlive_the_process(records: Records, directory: Path) -> None:
    created = records.create_project("team-a", "flex")
    assert (created.default_tier, created.in_preview) == ("flex", False)
    assert records.project("team-a") == records.project(created.id) == created
    records.grant_preview("team-a")
    records.revoke_preview("default")
    changed = records.set_default_tier("team-a", "ultrafast")
    assert changed == Project(created.id, "team-a", created.created, "ultrafast", True)
    kept = records.projects()
    records.close()
    with Records.open(directory) as again:
        assert again.projects() == kept
        assert [project.in_preview for project in kept] == [False, True]


@pytest.mark.parametrize(
    "name", ["", " ", "two words", "-option", ".hidden", "a/b", "..", "a\n", "ü", "proj_x", "x" * 65, "\x00", "\udc80"]
)
def test_names_that_are_none(records: Records, name: str) -> None:
    with pytest.raises(RequestError, match="a project's name must be") as caught:
        records.create_project(name)
    assert len(name) < 2 or repr(name)[1:-1] not in str(caught.value)
    assert len(records.projects()) == 1


def test_what_is_taken_or_unknown(records: Records) -> None:
    records.create_project("x" * 64)
    with pytest.raises(RequestError, match="already") as taken:
        records.create_project("default")
    assert taken.value.code == "already_exists"
    with pytest.raises(RequestError, match="must be one of: ultrafast, priority, default, flex"):
        records.create_project("other", "gold")
    for call in (records.grant_preview, records.revoke_preview, records.project, records.create_key):
        with pytest.raises(NotFoundError, match="no such project") as unknown:
            call("nobody")
        assert unknown.value.status == 404
    with pytest.raises(NotFoundError, match="no such key"):
        records.revoke_key("key_x")
    for name in ("", "x" * 65, "line\nline", "\x1b[31m"):
        with pytest.raises(RequestError, match="a key's name must be"):
            records.create_key("default", name)


def test_a_key_opens_and_only_its_hash_is_kept(records: Records, directory: Path) -> None:
    key, secret = records.create_key("default", "laptop")
    assert secret.startswith("uf-")
    assert len(secret) > 40
    assert key.hint == secret[-4:]
    assert key.revoked is None
    identity = records.identify(secret.encode())
    assert identity is not None
    assert (identity.project, identity.key_id) == (records.projects()[0], key.id)
    records.close()
    content = b"".join(path.read_bytes() for path in directory.iterdir())
    assert hashlib.sha256(secret.encode()).digest() in content
    assert secret.encode() not in content
    assert secret[3:].encode() not in content
    with Records.open(directory) as again:
        assert again.identify(secret.encode()) == identity
        assert again.keys() == [key]


def test_near_misses_open_nothing(records: Records) -> None:
    _, secret = records.create_key("default")
    key = secret.encode()
    near = (
        key[:-1],
        key + b"x",
        key + b"\n",
        b" " + key,
        key.upper(),
        key.swapcase(),
        key[::-1],
        key.replace(b"-", b"_"),
    )
    digests = (hashlib.sha256(key).digest(), hashlib.sha256(key).hexdigest().encode())
    for guess in (*near, *digests, *HOSTILE):
        assert records.identify(guess) is None
    assert records.identify(key) is not None


def test_a_revoked_key_opens_nothing_ever_again(records: Records, directory: Path) -> None:
    key, secret = records.create_key("default")
    other, other_secret = records.create_key("default")
    told: list[str] = []
    records.on_revoked(told.append)
    assert records.revoke_key(key.id) is True
    assert records.identify(secret.encode()) is None
    assert records.revoke_key(key.id) is False
    assert told == [key.id]
    assert records.identify(other_secret.encode()) is not None
    known = records.keys()
    assert [key.revoked is None for key in known] == [False, True]
    records.close()
    with Records.open(directory) as again:
        assert again.identify(secret.encode()) is None
        assert again.identify(other_secret.encode()) is not None
        assert again.keys() == known
        assert other in known
        with pytest.raises(ConfigurationError, match="was revoked"):
            again.adopt_key(secret)


def test_changes_act_on_the_next_request(records: Records) -> None:
    records.create_project("team")
    _, secret = records.create_key("team")

    def project() -> Project:
        identity = records.identify(secret.encode())
        assert identity is not None
        return identity.project

    assert not project().in_preview
    records.grant_preview("team")
    assert project().in_preview
    records.set_default_tier("team", "priority")
    assert project().default_tier == "priority"
    records.revoke_preview("team")
    assert not project().in_preview


def test_the_servers_own_key_is_of_the_first_project_and_in_memory_only(records: Records, directory: Path) -> None:
    records.create_project("team")
    key = records.adopt_key("a-key-of-the-operators-own")
    assert (key.id, key.project, key.hint) == ("key_environment", records.projects()[0].id, "-own")
    identity = records.identify(b"a-key-of-the-operators-own")
    assert identity is not None
    assert identity.project.in_preview
    assert records.keys() == [key]
    with pytest.raises(RequestError, match="the server's own key"):
        records.revoke_key(key.id)
    records.close()
    with Records.open(directory) as again:
        assert again.identify(b"a-key-of-the-operators-own") is None
        assert again.adopt_key("short").hint == ""  # four letters of five would tell it


def test_the_servers_own_key_may_be_one_of_a_project(records: Records) -> None:
    records.create_project("team")
    key, secret = records.create_key("team")
    assert records.adopt_key(secret) == key
    identity = records.identify(secret.encode())
    assert identity is not None
    assert identity.project.name == "team"
    assert records.revoke_key(key.id)


async def test_a_subscriber_of_an_event_loop_is_called_on_it(records: Records) -> None:
    key, _ = records.create_key("default")
    loop = asyncio.get_running_loop()
    told: asyncio.Future[tuple[str, object]] = loop.create_future()
    records.on_revoked(lambda key_id: told.set_result((key_id, asyncio.get_running_loop())))
    await asyncio.to_thread(records.revoke_key, key.id)
    assert await asyncio.wait_for(told, 5) == (key.id, loop)


def test_a_subscriber_whose_loop_has_ended_disturbs_nobody(records: Records) -> None:
    key, _ = records.create_key("default")

    async def subscribe() -> None:
        records.on_revoked(lambda _: pytest.fail("nobody is there"))

    asyncio.run(subscribe())
    assert records.revoke_key(key.id)


def test_no_key_and_no_prompt_is_in_any_text(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key, secret = records.create_key("default")
    canary = "canary-of-a-prompt"
    bad = entry(prompt_text=canary + "\udc80", answer_text=canary, prompt_tokens=2**70)
    records.configure(PriceSettings(), record_text=True)
    records.record(bad)
    records.usage()
    identity = records.identify(secret.encode())
    shown = caplog.text + repr([key, identity, records.keys(), records.projects(), bad, records, records.__dict__])
    assert "an entry of the ledger cannot be written" in caplog.text
    assert secret not in shown
    assert canary not in shown
