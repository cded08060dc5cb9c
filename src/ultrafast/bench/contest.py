"""Bring up our engine and its peers on one model file; a peer that cannot take part is left out with one line."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ultrafast.bench import environments
from ultrafast.bench.catalogue import PEERS
from ultrafast.bench.results import Skipped
from ultrafast.bench.worker import Worker
from ultrafast.errors import ConfigurationError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ultrafast.bench.catalogue import Peer
    from ultrafast.bench.worker import LoadReport

    Progress = Callable[[str], None]

OURS = "ultrafast"


@dataclass
class Contestant:
    """A runtime that has the model loaded."""

    name: str
    worker: Worker
    report: LoadReport


@dataclass
class Contest:
    """Everyone who takes part, ours first, and everyone who cannot."""

    contestants: list[Contestant] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def drop(self, contestant: Contestant, reason: str) -> None:
        """Go on without a peer."""
        self.contestants.remove(contestant)
        self.skipped.append(Skipped(contestant.name, reason))


def check_peers(names: Sequence[str]) -> list[Peer]:
    """The peers of these names.

    Raises:
        ConfigurationError: a name is unknown.
    """
    if unknown := [name for name in names if name not in PEERS]:
        raise ConfigurationError(f"{len(unknown)} unknown peer(s); known are: {', '.join(PEERS)}")
    return [PEERS[name] for name in dict.fromkeys(names)]


@contextmanager
def assembled(
    peers: Sequence[Peer],
    model_path: Path,
    *,
    threads: int,
    context: int,
    root: Path,
    progress: Progress,
    peer_model_path: Path | None = None,
) -> Iterator[Contest]:
    """Install what is missing under ``root``, then load the model everywhere; every process ends with the block.

    ``peer_model_path`` is the peers' file where theirs is another one.
    All installing comes before all loading, so that no model waits in memory while a compiler runs.
    """
    contest = Contest()
    ready = []
    peer_path = peer_model_path or model_path
    for peer in peers:
        try:
            ready.append((peer, environments.interpreter(peer.environment, root, progress)))
        except ConfigurationError as error:
            contest.skipped.append(Skipped(peer.name, str(error)))
    with ExitStack() as stack:
        progress("loading the model: ultrafast")
        worker = stack.enter_context(Worker.of_engine())
        contest.contestants.append(Contestant(OURS, worker, worker.load(model_path, threads=threads, context=context)))
        for peer, python in ready:
            progress(f"loading the model: {peer.name}")
            worker = stack.enter_context(Worker.of_peer(peer.name, peer.module, python))
            try:
                report = worker.load(peer_path, threads=threads, context=context, variant=peer.variant)
            except EngineError as error:
                contest.skipped.append(Skipped(peer.name, str(error)))
                continue
            contest.contestants.append(Contestant(peer.name, worker, report))
        yield contest
