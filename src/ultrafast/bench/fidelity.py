"""Fidelity: how close our engine's distributions are to a float32 forward pass of the same weights, and llama.cpp's."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ultrafast.bench import provenance
from ultrafast.bench.catalogue import DEFAULT_PEERS
from ultrafast.bench.contest import OURS, assembled, check_peers
from ultrafast.bench.divergence import Divergence
from ultrafast.bench.lock import exclusive
from ultrafast.bench.results import Bar, ClearMargins, FidelityResult, RuntimeFidelity, Text
from ultrafast.bench.text import DEFAULT_TEXT, text_tokens
from ultrafast.errors import ConfigurationError, EngineError
from ultrafast.models import resources
from ultrafast.reference.decoder import ReferenceModel
from ultrafast.weights import open_model
from ultrafast.weights.store import cache_directory, resolve_model

if TYPE_CHECKING:
    from ultrafast.bench.contest import Contest, Contestant, Progress
    from ultrafast.bench.divergence import Float32
    from ultrafast.weights.store import Progress as PullProgress

SEQUENCE_TOKENS = 512
DEFAULT_TOKENS = 20_480
PERPLEXITY_TOLERANCE = 0.006
KL_RATIO_LIMIT = 1.05
CLEAR_MARGIN = 1.0  # logits: the reference's token is then at least 2.7 times as likely as any other
_LLAMA_CPP = "llama-cpp"


@dataclass(frozen=True)
class FidelityOptions:
    """``tokens`` of a shipped ``text`` are scored, in sequences of 512; the other fields as for speed."""

    text: str = DEFAULT_TEXT
    model: str | None = None
    peers: tuple[str, ...] = DEFAULT_PEERS
    threads: int | None = None
    tokens: int = DEFAULT_TOKENS
    command: str = "ultrafast bench fidelity"


def run_fidelity(
    options: FidelityOptions, *, progress: Progress, pull_progress: PullProgress | None = None
) -> FidelityResult:
    """Score the text with the reference, our engine and the peers.

    Raises:
        ConfigurationError: an option is wrong, a peer gives no logits, or another benchmark is running.
        ModelError: the model cannot be had or used.
        EngineError: our own engine failed. A failing peer is left out and named in the result.
    """
    peers = check_peers(options.peers)
    if mute := [peer.name for peer in peers if not peer.gives_logits]:
        raise ConfigurationError(f"{', '.join(mute)} gives no logits, so its fidelity cannot be measured")
    location = resolve_model(options.model, progress=pull_progress)
    threads = options.threads or resources.default_threads()
    root = cache_directory() / "bench"
    with exclusive(root):
        text = text_tokens(location.path, options.text)
        sequences = text.sequences(SEQUENCE_TOKENS)[: max(1, math.ceil(options.tokens / SEQUENCE_TOKENS))]
        progress("describing the machine, measuring its read bandwidth")
        circumstances = provenance.gather(options.command, location.name, location.path, threads)
        with assembled(
            peers, location.path, threads=threads, context=SEQUENCE_TOKENS, root=root, progress=progress
        ) as contest:
            divergences = score(contest, location.path, sequences, progress)
            runtimes = [_runtime(contestant, divergences[contestant.name]) for contestant in contest.contestants]
            clear = clear_margins({runtime.name: divergences[runtime.name] for runtime in runtimes})
            skipped = contest.skipped
    predicted = len(sequences) * (SEQUENCE_TOKENS - 1)
    return FidelityResult(
        provenance=circumstances,
        text=Text(text.file_name, text.sha256, len(sequences), SEQUENCE_TOKENS, predicted),
        reference_perplexity=divergences[OURS].reference_perplexity(),
        runtimes=runtimes,
        skipped=skipped,
        bars=bars(runtimes, clear),
        clear=clear,
    )


def score(contest: Contest, model_path: Path, sequences: list[list[int]], progress: Progress) -> dict[str, Divergence]:
    """Compare every runtime with the reference, sequence by sequence, so that few logits are held at once.

    One sequence's logits are 100 MB for a vocabulary of 49,152: they travel through a temporary file and are dropped.
    """
    divergences = {contestant.name: Divergence() for contestant in contest.contestants}
    with open_model(model_path) as source, tempfile.TemporaryDirectory() as folder:
        reference = ReferenceModel.from_source(source)
        exchange = Path(folder) / "logits"
        for number, tokens in enumerate(sequences, start=1):
            progress(f"scoring: sequence {number} of {len(sequences)}")
            expected = reference.logits(tokens)
            for contestant in list(contest.contestants):
                try:
                    contestant.worker.score(tokens, exchange)
                    logits = _read_logits(exchange, contestant.name, expected)
                except EngineError as error:
                    if contestant.name == OURS:
                        raise
                    contest.drop(contestant, str(error))
                    continue
                divergences[contestant.name].add(expected, logits, tokens)
    return divergences


def clear_margins(divergences: dict[str, Divergence]) -> ClearMargins:
    """How often each runtime's most likely token is another one, ours first, where the reference's lead is clear."""
    ours = next(iter(divergences.values()))
    clear = ours.clear(CLEAR_MARGIN)
    reference_tops, our_tops = ours.reference_tops()[clear], ours.tops()[clear]
    tops = {name: divergence.tops()[clear] for name, divergence in divergences.items()}
    return ClearMargins(
        threshold=CLEAR_MARGIN,
        positions=int(clear.sum()),
        margin_noise={name: divergence.margin_noise() for name, divergence in divergences.items()},
        unlike_reference={name: int((top != reference_tops).sum()) for name, top in tops.items()},
        unlike_ours={name: int((top != our_tops).sum()) for name, top in tops.items()},
    )


def bars(runtimes: list[RuntimeFidelity], clear: ClearMargins) -> list[Bar]:
    """Our promises: perplexity close to the reference's, its token where its lead is clear, and, if llama.cpp took
    part, the same token as it there and a divergence not above its own.
    """
    ours = runtimes[0]
    result = [
        Bar("perplexity against the reference's", PERPLEXITY_TOLERANCE, abs(ours.perplexity_ratio - 1)),
        Bar("clear positions with another top token than the reference's", 0, clear.unlike_reference[ours.name]),
    ]
    for runtime in runtimes:
        if runtime.name == _LLAMA_CPP:
            different = clear.unlike_ours[runtime.name]
            result += [
                Bar("mean KL divergence ÷ llama.cpp's", KL_RATIO_LIMIT, ours.mean_kl / runtime.mean_kl),
                Bar("clear positions with another top token than llama.cpp's", 0, different),
            ]
    return result


def _read_logits(path: Path, name: str, expected: Float32) -> Float32:
    logits = np.fromfile(path, dtype=np.float32)
    if logits.size != expected.size:
        raise EngineError(f"{name}: logits of another vocabulary")
    logits = logits.reshape(expected.shape)
    if not np.isfinite(logits).all():
        raise EngineError(f"{name}: logits that are not finite")
    return logits


def _runtime(contestant: Contestant, divergence: Divergence) -> RuntimeFidelity:
    kl = divergence.all_kl()
    perplexity = divergence.perplexity()
    return RuntimeFidelity(
        name=contestant.name,
        versions=contestant.report.versions,
        detail=contestant.report.detail,
        perplexity=perplexity,
        perplexity_ratio=perplexity / divergence.reference_perplexity(),
        mean_kl=float(kl.mean()),
        mean_kl_standard_error=float(kl.std() / math.sqrt(kl.size)),
        percentile_99_kl=float(np.percentile(kl, 99)),
        maximum_kl=float(kl.max()),
        top1_agreement=divergence.top1_agreement(),
    )
