"""The event loop's thread keeps off engines' cores; what it starts does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ultrafast.backends import placement

PLACES = hasattr(os, "sched_getaffinity")
pytestmark = pytest.mark.skipif(not PLACES, reason="this system does not let a thread choose its processors")
TWO = pytest.mark.skipif(PLACES and len(os.sched_getaffinity(0)) < 2, reason="one processor: there is no other")
SHOW = "import os; print(sorted(os.sched_getaffinity(0)))"


@pytest.fixture
def allowed() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    yield before
    assert os.sched_getaffinity(0) == before


@TWO
def test_a_core_is_left_until_the_last_engine_gives_it_back(allowed: set[int]) -> None:
    core = min(allowed)
    placement.take([core])
    placement.take([core])
    assert os.sched_getaffinity(0) == allowed - {core}
    placement.give_back([core])
    assert os.sched_getaffinity(0) == allowed - {core}
    placement.give_back([core])
    assert os.sched_getaffinity(0) == allowed


def test_with_no_core_left_it_runs_anywhere(allowed: set[int]) -> None:
    placement.take(sorted(allowed))
    assert os.sched_getaffinity(0) == allowed
    placement.give_back(sorted(allowed))


@TWO
def test_processes_and_threads_can_do_without(allowed: set[int]) -> None:
    core = min(allowed)
    placement.take([core])
    found = []

    def look() -> None:
        placement.leave()
        found.append(os.sched_getaffinity(0))

    try:
        with placement.anywhere():
            shown = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, check=True, text=True).stdout
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert shown.strip() == str(sorted(allowed))
        assert found == [allowed]
        assert os.sched_getaffinity(0) == allowed - {core}
    finally:
        placement.give_back([core])


def test_nothing_taken_changes_nothing(allowed: set[int]) -> None:
    placement.take([])
    assert os.sched_getaffinity(0) == allowed
    placement.leave()
    assert os.sched_getaffinity(0) == allowed
    with placement.anywhere():
        assert os.sched_getaffinity(0) == allowed
    placement.give_back([])
    assert os.sched_getaffinity(0) == allowed


def test_a_system_that_forbids_it_is_no_error(allowed: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(pid: int, cpus: object) -> None:
        raise PermissionError

    with monkeypatch.context() as forbidden:
        forbidden.setattr(os, "sched_setaffinity", forbid)
        placement.take([min(allowed)])
        placement.give_back([min(allowed)])
    assert os.sched_getaffinity(0) == allowed
