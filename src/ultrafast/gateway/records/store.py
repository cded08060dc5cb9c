"""All that the server keeps, behind one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from ultrafast.gateway.configuration import PriceSettings
from ultrafast.gateway.records.capacity import CapacityOverrides
from ultrafast.gateway.records.database import Database
from ultrafast.gateway.records.directory import DATABASE_FILE, DirectoryLock
from ultrafast.gateway.records.ledger import CANCELLED, SUCCEEDED, LedgerEntry, LedgerWriter
from ultrafast.gateway.records.prices import PriceTable, TokenCounts
from ultrafast.gateway.records.projects import UNNAMED, Identity, Key, Project, Registry
from ultrafast.gateway.records.usage import DEFAULT_DIMENSIONS, UsageRow, prune, read_usage
from ultrafast.gateway.tiers import DEFAULT_TIER

_FLUSH_SECONDS = 10.0


class Records:
    """Projects, keys, capacity and the ledger of one data directory, held by this process alone.

    ``identify`` and ``record`` are for the event loop: they wait for nothing. Everything else may wait for the disk
    and is for another thread (``asyncio.to_thread``); it is safe in any.
    """

    def __init__(self, directory: Path, *, prices: PriceSettings, record_text: bool) -> None:
        self._lock = DirectoryLock(directory)
        try:
            self._database = Database(directory / DATABASE_FILE)
            try:
                self._registry = Registry(self._database)
                self._capacity = CapacityOverrides(self._database)
            except BaseException:
                self._database.close()
                raise
        except BaseException:
            self._lock.close()
            raise
        self.configure(prices, record_text=record_text)
        self._writer = LedgerWriter(self._database)

    @classmethod
    def open(cls, directory: Path, *, prices: PriceSettings | None = None, record_text: bool = False) -> Records:
        """Open ``directory``, made where it is missing.

        Raises DirectoryInUseError where another process holds it, ConfigurationError where it cannot be used: its
        disk is full, it cannot be written to, its file is damaged or of a newer version.
        """
        return cls(directory, prices=prices or PriceSettings(), record_text=record_text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what the ledger still waits for, and let others have the directory; safe twice."""
        self._writer.close()
        self._database.close()
        self._lock.close()

    def configure(self, prices: PriceSettings, *, record_text: bool) -> None:
        """Bill and keep texts as told from now on. Raises ConfigurationError for an impossible price."""
        self._prices = PriceTable(prices)
        self._record_text = record_text

    # Projects and keys

    def identify(self, secret: bytes) -> Identity | None:
        """Whose key ``secret`` is, as things stand now; None where it opens nothing."""
        return self._registry.identify(secret)

    def projects(self) -> list[Project]:
        """Every project, the first one first."""
        return self._registry.projects()

    def project(self, name: str) -> Project:
        """The project of this name or id. Raises NotFoundError."""
        return self._registry.project(name)

    def create_project(self, name: str, default_tier: str = DEFAULT_TIER) -> Project:
        """A new project, outside the preview. Raises RequestError for a name that is taken or no name."""
        return self._registry.create_project(name, default_tier)

    def set_default_tier(self, project: str, tier: str) -> Project:
        """Let a project's requests that say nothing of their tier have this one. Raises RequestError."""
        return self._registry.set_default_tier(project, tier)

    def grant_preview(self, project: str) -> Project:
        """Let a project into the preview. Raises NotFoundError."""
        return self._registry.set_preview(project, member=True)

    def revoke_preview(self, project: str) -> Project:
        """Take a project out of the preview. Raises NotFoundError."""
        return self._registry.set_preview(project, member=False)

    def keys(self) -> list[Key]:
        """Every key, also those that are revoked; no secret is among what is known of them."""
        return self._registry.keys()

    def create_key(self, project: str, name: str = UNNAMED) -> tuple[Key, str]:
        """A new key and its secret, which is shown now or never. Raises RequestError or NotFoundError."""
        return self._registry.create_key(project, name)

    def adopt_key(self, secret: str, name: str = "environment") -> Key:
        """Let the server's own key open, as one of the first project, until the process ends.

        Raises ConfigurationError for one that was revoked.
        """
        return self._registry.adopt_key(secret, name)

    def revoke_key(self, key_id: str) -> bool:
        """Let a key open nothing from now on; whether it did until now. Raises NotFoundError or RequestError."""
        return self._registry.revoke_key(key_id)

    def on_revoked(self, function: Callable[[str], None]) -> None:
        """Call ``function`` with the id of every key that is revoked: on the event loop this is called on, if any."""
        self._registry.revoked.add(function)

    # Capacity

    def capacity(self) -> dict[str, int]:
        """Slots by tier, where an operator set them."""
        return self._capacity.slots()

    def set_capacity(self, tier: str, slots: int | None) -> None:
        """Give a tier so many slots; with None it has what is configured again. Raises RequestError."""
        self._capacity.set(tier, slots)

    def on_capacity(self, function: Callable[[str, int | None], None]) -> None:
        """Call ``function`` with every tier and slots that are set: on the event loop this is called on, if any."""
        self._capacity.changed.add(function)

    # Ledger

    def record(self, entry: LedgerEntry) -> LedgerEntry:
        """Put ``entry`` into the ledger, soon, and return it with its cost.

        Only what was answered costs anything: a refusal, or an answer that an error ended, is free.
        """
        cost = 0
        if entry.tier_served is not None and entry.outcome in (SUCCEEDED, CANCELLED):
            output = entry.completion_tokens + entry.rejected_prediction_tokens
            tokens = TokenCounts(entry.prompt_tokens, entry.cached_tokens, output)
            cost = self._prices.cost(entry.model, entry.tier_served, tokens)
        texts = (entry.prompt_text, entry.answer_text) if self._record_text else (None, None)
        priced = msgspec.structs.replace(
            entry, cost=cost, currency=self._prices.currency, prompt_text=texts[0], answer_text=texts[1]
        )
        self._writer.append(priced)
        return priced

    def usage(
        self,
        by: Sequence[str] = DEFAULT_DIMENSIONS,
        *,
        since: float | None = None,
        until: float | None = None,
    ) -> list[UsageRow]:
        """Sums over the ledger, what was recorded just now included. Raises RequestError for an unknown dimension."""
        self._writer.flush(_FLUSH_SECONDS)
        return read_usage(self._database, by, since, until)

    def prune(self, before: float) -> int:
        """Delete from the ledger what began before a time; how many requests that was."""
        self._writer.flush(_FLUSH_SECONDS)
        return prune(self._database, before)
