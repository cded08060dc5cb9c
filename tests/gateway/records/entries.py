"""Ledger entries for tests."""

from __future__ import annotations

import itertools
from typing import Any

from ultrafast.gateway.records.ledger import LedgerEntry

_numbers = itertools.count()


def entry(**values: Any) -> LedgerEntry:
    """A request that was answered; what matters to a test is given."""
    usual: dict[str, Any] = {
        "request_id": f"req_{next(_numbers)}",
        "started": 1_800_000_000.0,
        "project": "proj_x",
        "key_id": "key_x",
        "model": "model",
        "tier_asked": None,
        "tier_served": "default",
        "backend": "local",
        "status": 200,
        "outcome": "ok",
        "finish_reason": "stop",
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 10,
    }
    return LedgerEntry(**(usual | values))
