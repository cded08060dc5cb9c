"""Where the event loop runs: off the cores on which engines' loops run.

Linux wakes the reader of a socket on the writer's core, though another be idle: for every token the gateway would take
the core from the engine, which has just sent it and is about to go on, while the engine's other cores wait for work.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator

from ultrafast.models import resources

_allowed: set[int] = set()  # while some are taken: what the thread was allowed before
_taken: Counter[int] = Counter()


def take(cpus: list[int]) -> None:
    """Keep the calling thread, the event loop's, off these cores until they are given back."""
    global _allowed  # noqa: PLW0603 - a thread has one affinity, whoever asks
    if cpus and not _taken:
        _allowed = os.sched_getaffinity(0)
    _taken.update(cpus)
    _apply()


def give_back(cpus: list[int]) -> None:
    """Undo ``take``."""
    _taken.subtract(cpus)
    for cpu in [cpu for cpu, count in _taken.items() if count <= 0]:
        del _taken[cpu]
    _apply()
    if not _taken:
        _allowed.clear()


@contextlib.contextmanager
def anywhere() -> Iterator[None]:
    """Lift the restriction from the calling thread, so that a process started meanwhile does not inherit it."""
    leave()
    try:
        yield
    finally:
        _apply()


def leave() -> None:
    """Lift the restriction from the calling thread: for one started by the event loop's, which has inherited it."""
    if _allowed:
        resources.run_on(_allowed)


def _apply() -> None:
    if _allowed:
        resources.run_on(_allowed - _taken.keys() or _allowed)
