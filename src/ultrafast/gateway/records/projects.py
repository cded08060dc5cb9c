"""Projects and their keys: kept in the database, and in memory for the look-up that every request begins with."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import insert, select, update

from ultrafast.errors import ConfigurationError, NotFoundError, RequestError
from ultrafast.gateway.records.database import Database, keys, projects
from ultrafast.gateway.records.limits import ALREADY_EXISTS, MAXIMUM_NAME_LETTERS
from ultrafast.gateway.records.subscribers import Subscribers
from ultrafast.gateway.tiers import DEFAULT_TIER, TIERS

FIRST_PROJECT: Final = "default"
KEY_PREFIX: Final = "uf-"
UNNAMED: Final = "unnamed"

_PROJECT_PREFIX: Final = "proj_"
_KEY_ID_PREFIX: Final = "key_"
_ID_BYTES: Final = 12
_SECRET_BYTES: Final = 32
_HINT_LETTERS: Final = 4
_LONG_ENOUGH_FOR_A_HINT: Final = 20  # of a short key that a person chose, four letters tell too much
_PROJECT_NAME: Final = re.compile(rf"(?!{_PROJECT_PREFIX})[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAXIMUM_NAME_LETTERS - 1}}}")


@dataclass(frozen=True, slots=True)
class Project:
    """Who is served and billed. ``default_tier`` is what a request gets that says nothing of its tier."""

    id: str
    name: str
    created: int
    default_tier: str
    in_preview: bool


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a project, without its secret: ``hint`` are the secret's last letters, ``revoked`` is when."""

    id: str
    project: str  # its id
    name: str
    created: int
    hint: str
    revoked: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose request it is, as things stood when it came."""

    project: Project
    key_id: str


class Registry:
    """All projects and keys. Reading is for any thread and never touches the database; changes exclude each other."""

    def __init__(self, database: Database) -> None:
        """Read them; the first project, ``default``, is made where there is none, a member of the preview."""
        self.revoked: Subscribers[str] = Subscribers()
        self._database = database
        self._changing = threading.Lock()
        self._projects: dict[str, Project] = {}  # by id, in the order they were made
        self._keys: dict[str, Key] = {}
        self._by_digest: dict[bytes, Key] = {}  # those that open; a digest tells a guesser nothing of its key
        with database.reading() as connection:
            for row in connection.execute(select(projects).order_by(projects.c.number)):
                self._projects[row.id] = Project(row.id, row.name, row.created, row.default_tier, bool(row.in_preview))
            for row in connection.execute(select(keys).order_by(keys.c.number)):
                key = Key(row.id, row.project, row.name, row.created, row.hint, row.revoked)
                self._keys[key.id] = key
                if key.revoked is None:
                    self._by_digest[row.digest] = key
        if not self._projects:
            self._add_project(FIRST_PROJECT, DEFAULT_TIER, in_preview=True)
        self._adopted: set[str] = set()  # ids of keys that are in memory only

    def identify(self, secret: bytes) -> Identity | None:
        """Whose key ``secret`` is, None where it opens nothing."""
        key = self._by_digest.get(hashlib.sha256(secret).digest())
        return None if key is None else Identity(self._projects[key.project], key.id)

    def projects(self) -> list[Project]:
        """Every project, the first one first."""
        return list(self._projects.values())

    def project(self, name: str) -> Project:
        """The project of this name or id. Raises NotFoundError."""
        for project in self.projects():
            if name in (project.name, project.id):
                return project
        raise NotFoundError("there is no such project: ultrafast projects list shows them", param="project")

    def create_project(self, name: str, default_tier: str) -> Project:
        """A new project, outside the preview. Raises RequestError for a name that is taken or no name."""
        if not _PROJECT_NAME.fullmatch(name):
            raise RequestError(
                f"a project's name must be 1 to {MAXIMUM_NAME_LETTERS} letters, digits, dots, hyphens and underscores, "
                f"begin with a letter or a digit, and not with {_PROJECT_PREFIX}",
                param="name",
            )
        _check_tier(default_tier)
        with self._changing:
            if any(project.name == name for project in self.projects()):
                raise RequestError("there is a project of that name already", param="name", code=ALREADY_EXISTS)
            return self._add_project(name, default_tier, in_preview=False)

    def set_default_tier(self, name: str, tier: str) -> Project:
        """Let a project's requests that say nothing of their tier have this one. Raises RequestError."""
        _check_tier(tier)
        return self._change(name, default_tier=tier)

    def set_preview(self, name: str, *, member: bool) -> Project:
        """Let a project into the preview, or out of it. Raises NotFoundError."""
        return self._change(name, in_preview=member)

    def keys(self) -> list[Key]:
        """Every key, also those that are revoked."""
        return list(self._keys.values())

    def create_key(self, project_name: str, name: str) -> tuple[Key, str]:
        """A new key and its secret, which is shown now or never. Raises RequestError or NotFoundError."""
        if not 0 < len(name) <= MAXIMUM_NAME_LETTERS or not name.isprintable():
            raise RequestError(f"a key's name must be 1 to {MAXIMUM_NAME_LETTERS} printable letters", param="name")
        secret = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        digest = hashlib.sha256(secret.encode()).digest()
        with self._changing:
            key = Key(_new_id(_KEY_ID_PREFIX), self.project(project_name).id, name, _now(), secret[-_HINT_LETTERS:])
            with self._database.writing() as connection:
                connection.execute(
                    insert(keys).values(
                        id=key.id, project=key.project, name=name, created=key.created, digest=digest, hint=key.hint
                    )
                )
            self._keys = self._keys | {key.id: key}
            self._by_digest[digest] = key
        return key, secret

    def adopt_key(self, secret: str, name: str) -> Key:
        """Let the server's own key open, as one of the first project; it is kept in memory only.

        One that is a key of a project already stays what it is. Raises ConfigurationError for one that was revoked.
        """
        digest = hashlib.sha256(secret.encode()).digest()
        with self._changing:
            if known := self._by_digest.get(digest):
                return known
            with self._database.reading() as connection:
                if connection.execute(select(keys.c.id).where(keys.c.digest == digest)).first() is not None:
                    raise ConfigurationError("the server's own key is one that was revoked: choose another")
            hint = secret[-_HINT_LETTERS:] if len(secret) >= _LONG_ENOUGH_FOR_A_HINT else ""
            key = Key(_KEY_ID_PREFIX + name, self.projects()[0].id, name, _now(), hint)
            self._adopted.add(key.id)
            self._keys = {key.id: key} | self._keys
            self._by_digest[digest] = key
        return key

    def revoke_key(self, key_id: str) -> bool:
        """Let a key open nothing from now on; whether it did until now. Raises NotFoundError or RequestError."""
        with self._changing:
            key = self._keys.get(key_id)
            if key is None:
                raise NotFoundError("there is no such key: ultrafast keys list shows them", param="key")
            if key_id in self._adopted:
                raise RequestError("this is the server's own key: start the server with another to end it", param="key")
            if key.revoked is not None:
                return False
            now = _now()
            with self._database.writing() as connection:
                connection.execute(update(keys).where(keys.c.id == key_id).values(revoked=now))
            self._by_digest = {digest: other for digest, other in self._by_digest.items() if other.id != key_id}
            self._keys = self._keys | {key_id: replace(key, revoked=now)}
        self.revoked.tell(key_id)
        return True

    def _add_project(self, name: str, default_tier: str, *, in_preview: bool) -> Project:
        project = Project(_new_id(_PROJECT_PREFIX), name, _now(), default_tier, in_preview)
        with self._database.writing() as connection:
            connection.execute(
                insert(projects).values(
                    id=project.id,
                    name=name,
                    created=project.created,
                    default_tier=default_tier,
                    in_preview=int(in_preview),
                )
            )
        self._projects = self._projects | {project.id: project}
        return project

    def _change(self, name: str, **values: str | bool) -> Project:
        with self._changing:
            changed = replace(self.project(name), **values)  # type: ignore[arg-type]  # its own fields, by their types
            with self._database.writing() as connection:
                connection.execute(update(projects).where(projects.c.id == changed.id).values(**values))
            self._projects = self._projects | {changed.id: changed}
        return changed


def _check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise RequestError(f"'default_tier' must be one of: {', '.join(TIERS)}", param="default_tier")


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(_ID_BYTES)


def _now() -> int:
    return int(time.time())
