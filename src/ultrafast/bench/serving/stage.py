"""What every part works with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ultrafast.bench.serving.client import Client
from ultrafast.errors import EngineError

if TYPE_CHECKING:
    from ultrafast.bench.contest import Progress
    from ultrafast.bench.serving.client import Reply
    from ultrafast.bench.serving.prompts import Prompts
    from ultrafast.bench.serving.server import Server

Measurements = dict[str, list[float]]
"""Samples by name, with units in the name, in the order in which they were taken."""

ULTRAFAST = "ultrafast"
_SEED = 5


@dataclass(frozen=True)
class Sizes:
    """How much is measured. The defaults are the benchmark; a test of the harness takes less."""

    rounds: int = 5
    context: int = 2048
    stream_tokens: int = 256
    stream_loads: int = 6
    stream_rounds: int = 3  # of each load
    crowd: int = 16  # what the engine runs at once, beside the reserved slots
    history_tokens: int = 1000
    short_samples: int = 40
    blocks: int = 8
    probes_per_block: int = 30
    refusals: int = 300
    window_seconds: float = 4.0
    lead_seconds: float = 4.0  # before the span of an overload that counts: as long as an answer takes
    overload_seconds: float = 12.0
    overload_rounds: int = 5


@dataclass
class Stage:
    """A server that runs, a client to it, and what to ask."""

    model_path: Path
    threads: int
    sizes: Sizes
    server: Server
    prompts: Prompts
    progress: Progress
    random: Random = field(default_factory=lambda: Random(_SEED))  # noqa: S311 - arrivals, no secret

    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(self.server.port, self.server.key)

    async def ultrafast(self, body: dict[str, Any], *, key: str | None = None) -> Reply:
        """Ask at the tier ultrafast; raises ``EngineError`` where the answer is not whole or not of that tier."""
        reply = await self.client.ask(body | {"service_tier": ULTRAFAST}, key=key)
        reply.engine_account()
        if reply.service_tier != ULTRAFAST:
            raise EngineError(f"the server answered at the tier {reply.service_tier}, not {ULTRAFAST}")
        return reply

    async def settle(self) -> None:
        """Give the server a moment to be idle after a load."""
        await asyncio.sleep(0.5)
