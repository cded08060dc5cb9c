"""Load: clients that ask again as soon as they are answered, and requests that arrive whatever comes of the last."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from ultrafast.bench.serving.client import Client, Exchange, Reply

_PAUSE_SECONDS = 0.1  # after a refusal


class Crowd:
    """A closed loop: one client per element of ``bodies``, which makes its next request."""

    def __init__(self, client: Client, bodies: Sequence[Callable[[], dict[str, Any]]]) -> None:
        self.exchanges: list[Exchange] = []
        self._client = client
        self._ending = False
        self._current: list[Exchange | None] = [None] * len(bodies)
        self._first: list[Exchange] = []
        self._tasks = [asyncio.create_task(self._loop(index, body)) for index, body in enumerate(bodies)]

    async def begun(self, count: int | None = None) -> None:
        """Return when so many clients, or all, have had their first token."""
        wanted = len(self._tasks) if count is None else count
        while sum(exchange.begun.done() for exchange in self._first) < wanted:
            for task in self._tasks:
                if task.done():
                    task.result()  # raises what ended it
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Leave at once."""
        self._ending = True
        for exchange in self._current:
            if exchange is not None:
                exchange.cancel()
        # Only now: cancelling a task also cancels the future it waits for, and its exchange would look ended.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def finish(self) -> None:
        """Ask no more, and wait for what is under way."""
        self._ending = True
        await asyncio.gather(*self._tasks)

    def replies(self) -> list[Reply]:
        """What came until now."""
        return [exchange.reply() for exchange in self.exchanges]

    async def _loop(self, index: int, body: Callable[[], dict[str, Any]]) -> None:
        while not self._ending:
            exchange = await self._client.start(body())
            if self._current[index] is None:
                self._first.append(exchange)
            self._current[index] = exchange
            self.exchanges.append(exchange)
            await exchange.done
            if not exchange.reply().token_times:
                await asyncio.sleep(_PAUSE_SECONDS)


async def arrivals(
    client: Client, body: Callable[[], dict[str, Any]], *, rate: float, seconds: float, random: random.Random
) -> list[Reply]:
    """An open loop: Poisson arrivals of ``rate`` a second for so long; returns when every answer has ended."""
    tasks: list[asyncio.Task[Reply]] = []
    due, end = time.perf_counter(), time.perf_counter() + seconds
    while True:
        due += random.expovariate(rate)
        if due > end:
            break
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(client.ask(body())))
    return list(await asyncio.gather(*tasks))


def tokens_between(replies: Iterable[Reply], start: float, end: float) -> int:
    """Tokens that came in a span of time."""
    return sum(start < moment <= end for reply in replies for moment in reply.token_times)


def longest_wait(replies: Iterable[Reply], start: float, end: float) -> float:
    """The longest that an answer, once begun, made its reader wait for a token, of waits that touch the span."""
    waits = (after - before for reply in replies for before, after in reply.waits() if after > start and before < end)
    return max(waits, default=0.0)


def goodput(replies: Iterable[Reply], start: float, end: float, *, ttft_seconds: float, wait_seconds: float) -> float:
    """Tokens a second, in a span of time, of complete answers that kept what their tier promises."""
    good = [reply for reply in replies if _is_good(reply, ttft_seconds, wait_seconds)]
    return tokens_between(good, start, end) / (end - start)


def _is_good(reply: Reply, ttft_seconds: float, wait_seconds: float) -> bool:
    if reply.usage is None or not reply.token_times or reply.ttft_seconds > ttft_seconds:
        return False
    return all(after - before <= wait_seconds for before, after in reply.waits())
