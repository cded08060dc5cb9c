"""Who wants to know of a change, told where it may act."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec

Parameters = ParamSpec("Parameters")


class Subscribers(Generic[Parameters]):
    """Functions to call at a change.

    One that was added on a running event loop is called on that loop, soon; any other in the thread of the change.
    """

    def __init__(self) -> None:
        self._functions: list[tuple[asyncio.AbstractEventLoop | None, Callable[Parameters, None]]] = []

    def add(self, function: Callable[Parameters, None]) -> None:
        """Call ``function`` from now on."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        self._functions.append((loop, function))

    def tell(self, *arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        """Call each of them."""
        for loop, function in self._functions:
            if loop is None:
                function(*arguments, **named)
            else:
                with contextlib.suppress(RuntimeError):  # the loop has ended, and its subscriber with it
                    loop.call_soon_threadsafe(partial(function, *arguments, **named))
