"""What each part of ``bench speed`` does: rounds of the same work, ratios formed inside a round."""

from __future__ import annotations

import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ultrafast import _native
from ultrafast.bench import environments, random_model
from ultrafast.bench.catalogue import PEERS
from ultrafast.bench.contest import OURS, assembled
from ultrafast.bench.machine import check_disk, check_memory
from ultrafast.bench.quantiser import Quantiser
from ultrafast.bench.race import Race
from ultrafast.bench.results import DECODE, METRICS, PREFILL, TTFT, Workload
from ultrafast.bench.serving.server import ULTRAFAST
from ultrafast.bench.statistics import Summary, rotation, summarise
from ultrafast.bench.text import text_tokens
from ultrafast.errors import ConfigurationError, EngineError
from ultrafast.models import resources
from ultrafast.models.description import describe
from ultrafast.models.text import open_tokenizer
from ultrafast.weights import open_model
from ultrafast.weights.gguf import open_gguf
from ultrafast.weights.store import KNOWN_MODELS, resolve_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ultrafast.bench.catalogue import Peer
    from ultrafast.bench.contest import Contest, Progress
    from ultrafast.bench.provenance import ModelFile
    from ultrafast.bench.results import Metric, RuntimeSpeed, Skipped

Measurements = dict[str, Summary]
"""Samples by name, with units in the name."""

_LLAMA_CPP: Final = PEERS["llama-cpp"]
_CACHED_MATRIX_BYTES: Final = 256 << 10  # what the second-level cache of nearly every core holds
_ROWS_OF_A_PASS: Final = (4, 8)
_KERNEL_ROWS: Final = 4
_RANDOM_TYPES: Final = {"1.1b": "q4_k_m", "8b": "q4_0"}
_STANDARD: Final = Workload()
_LONG_PROMPT: Final = Workload(ttft_prompt_tokens=8_000, context=8_192)
_LARGE_MODEL: Final = Workload(decode_tokens=32, context=256)
# Answers differ, so no two streams ask for the same rows of anything.
_QUESTIONS: Final = (
    "Why is the sky blue?",
    "Tell me about old Rome.",
    "How do bees make honey?",
    "Write a poem about rain.",
    "What is a prime number?",
    "Describe a day at sea.",
    "Who was Marie Curie?",
    "How does bread rise?",
)


@dataclass(frozen=True)
class Sizes:
    """How much is measured. The defaults are the benchmark; a test of the harness takes less."""

    standard: Workload = _STANDARD
    prompt: Workload = _LONG_PROMPT
    long_rounds: int = 3  # at most, where a round takes minutes
    pass_history_tokens: int = 80
    passes: int = 32
    kernel_positions: int = 2_000
    kernel_seconds: float = 0.3
    history_tokens: int = 2_000
    streams: int = 8
    random_weights: Workload = _LARGE_MODEL


@dataclass
class Stage:
    """What every part works with, and what it leaves beside its measurements."""

    model: ModelFile
    model_path: Path
    peers: Sequence[Peer]
    threads: int
    rounds: int
    sizes: Sizes
    root: Path
    progress: Progress
    runtimes: list[RuntimeSpeed] = field(default_factory=list)  # of the standard part
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def known_model(self) -> str | None:
        """The name that the measured file is known by."""
        return next((known.name for known in KNOWN_MODELS.values() if known.sha256 == self.model.sha256), None)

    @property
    def llama_cpp(self) -> list[Peer]:
        """The one peer of most parts, where it is wanted."""
        return [peer for peer in self.peers if peer is _LLAMA_CPP]

    @property
    def long_rounds(self) -> int:
        """Rounds where each takes long."""
        return min(self.rounds, self.sizes.long_rounds)

    @contextmanager
    def contest(
        self, peers: Sequence[Peer], context: int, *, path: Path | None = None, peer_path: Path | None = None
    ) -> Iterator[Contest]:
        """Our engine and these peers, loaded; who could not be is noted."""
        with assembled(
            peers,
            path or self.model_path,
            threads=self.threads,
            context=context,
            root=self.root,
            progress=self.progress,
            peer_model_path=peer_path,
        ) as contest:
            yield contest
        self.skipped += contest.skipped

    def turns(self, title: str, turns: Mapping[str, Callable[[int], float]]) -> dict[str, list[float]]:
        """One sample of each turn a round, after a round that does not count; another one begins every time."""
        samples: dict[str, list[float]] = {name: [] for name in turns}
        names = list(turns)
        for index in range(self.rounds + 1):
            self.progress(f"{title}: " + (f"round {index} of {self.rounds}" if index else "warm-up"))
            for turn in rotation(len(names), index):
                value = turns[names[turn]](index)
                if index:
                    samples[names[turn]].append(value)
        return samples


def standard_load(stage: Stage) -> str:
    """What ``standard`` does."""
    work = stage.sizes.standard
    return (
        f"decode of {work.decode_tokens} tokens after {work.decode_prompt_tokens}, prefill of {work.prefill_tokens}, "
        f"TTFT of {work.ttft_prompt_tokens}; the read bandwidth of {stage.threads} threads before every decode round"
    )


def standard(stage: Stage) -> Measurements:
    """Every runtime on the same file; ours against the memory's bandwidth."""
    work = stage.sizes.standard
    with stage.contest(stage.peers, work.context) as contest:
        race = Race(contest, text_tokens(stage.model_path), work, stage.rounds, stage.progress, bandwidth=True)
        race.run()
        stage.runtimes = race.runtimes()
    return _figures(stage.runtimes) | _against_bandwidth(race, contest)


def prompt_load(stage: Stage) -> str:
    """What ``prompt`` does."""
    return f"{stage.long_rounds} rounds of the pass over {stage.sizes.prompt.ttft_prompt_tokens:,} tokens"


def prompt(stage: Stage) -> Measurements:
    """TTFT of a long prompt."""
    work = stage.sizes.prompt
    with stage.contest(stage.llama_cpp, work.context) as contest:
        text = text_tokens(stage.model_path)
        race = Race(contest, text, work, stage.long_rounds, stage.progress, metrics=(TTFT,))
        race.run()
        return _figures(race.runtimes())


def passes_load(stage: Stage) -> str:
    """What ``pass`` does."""
    sizes = stage.sizes
    return (
        f"{sizes.passes} passes over 4, and over 8, tokens of one sequence after {sizes.pass_history_tokens}, the best "
        f"token found after each row; {sizes.passes} tokens one by one after the same"
    )


def passes(stage: Stage) -> Measurements:
    """The time of a pass as verifying drafts takes it, and llama.cpp's of one token."""
    sizes = stage.sizes
    text = text_tokens(stage.model_path)
    history = sizes.pass_history_tokens

    def excerpt(index: int) -> list[int]:
        return text.prompt(history + max(_ROWS_OF_A_PASS), index)

    with stage.contest(stage.llama_cpp, sizes.standard.context) as contest:
        workers = {contestant.name: contestant.worker for contestant in contest.contestants}

        def verify(rows: int, index: int) -> float:
            tokens = excerpt(index)
            drafts = tokens[history : history + rows]
            return workers[OURS].verify(tokens[:history], drafts, sizes.passes).seconds / sizes.passes

        def decode(name: str, index: int) -> float:
            return workers[name].decode(excerpt(index)[:history], sizes.passes).seconds / sizes.passes

        turns = {f"pass_of_{rows}_seconds": partial(verify, rows) for rows in _ROWS_OF_A_PASS}
        samples = stage.turns("pass", turns | {f"{name}_token_seconds": partial(decode, name) for name in workers})
    for name in workers:
        for rows in _ROWS_OF_A_PASS:
            ratios = _ratios(samples[f"pass_of_{rows}_seconds"], samples[f"{name}_token_seconds"])
            samples[f"pass_of_{rows}_over_{name}_token"] = ratios
    return _summaries(samples)


def kernels_load(stage: Stage) -> str:
    """What ``kernels`` does."""
    return (
        f"one pinned thread: the first layer's projection of the heads, up to {_CACHED_MATRIX_BYTES >> 10} KiB of it, "
        f"times {_KERNEL_ROWS} tokens; the attention of the heads that share their keys for {_KERNEL_ROWS} rows at "
        f"{stage.sizes.kernel_positions:,} tokens; each for {stage.sizes.kernel_seconds:g} s a round"
    )


def kernels(stage: Stage) -> Measurements:
    """Multiply-adds per second of one core, operands in its cache."""
    instruction_set = _native.instruction_sets()[0]
    seconds, positions = stage.sizes.kernel_seconds, stage.sizes.kernel_positions
    with open_model(stage.model_path) as source:
        shape, tensors = describe(source)
        columns = shape.head_count * shape.head_size
        matrix = tensors.matrix("attn_output", shape.hidden_size, columns, layer=0)
        row_bytes = matrix.byte_count // shape.hidden_size
        rows = min(shape.hidden_size, _CACHED_MATRIX_BYTES // row_bytes)
        weights = np.array(matrix.data[: rows * row_bytes])
    random = np.random.default_rng(0)
    heads, size = shape.head_count // shape.kv_head_count, shape.head_size
    x = random.standard_normal((_KERNEL_ROWS, columns), np.float32)
    query = random.standard_normal((_KERNEL_ROWS, heads, size), np.float32)
    keys, values = (random.standard_normal((positions, size), np.float32) for _ in range(2))

    def linear() -> float:
        rate = _native.kernels.linear_rate(instruction_set, matrix.type_name, weights, rows, columns, x, seconds)
        return rate * x.size * rows / 1e9

    def attention() -> float:
        rate = _native.kernels.attention_rate(instruction_set, query, keys, values, size**-0.5, seconds)
        seen = positions - (_KERNEL_ROWS - 1) / 2  # a row sees no later one
        return rate * 2 * query.size * seen / 1e9

    with ThreadPoolExecutor(1, initializer=resources.run_on, initargs=(resources.allowed_cpus()[:1],)) as core:
        return _summaries(
            stage.turns(
                "kernels",
                {
                    "linear_gmac_per_second": lambda _: core.submit(linear).result(),
                    "attention_gmac_per_second": lambda _: core.submit(attention).result(),
                },
            )
        )


def history_load(stage: Stage) -> str:
    """What ``history`` does."""
    work = stage.sizes.standard
    return f"decode of {work.decode_tokens} tokens after {work.decode_prompt_tokens} and {stage.sizes.history_tokens:,}"


def history(stage: Stage) -> Measurements:
    """Our decode speed with much in the cache, and with little."""
    text = text_tokens(stage.model_path)
    work, length = stage.sizes.standard, stage.sizes.history_tokens
    with stage.contest([], length + work.decode_tokens + 32) as contest:
        worker = contest.contestants[0].worker

        def decode(tokens: int, index: int) -> float:
            return work.decode_tokens / worker.decode(text.prompt(tokens, index), work.decode_tokens).seconds

        samples = stage.turns(
            "history",
            {
                "short_tokens_per_second": partial(decode, work.decode_prompt_tokens),
                "long_tokens_per_second": partial(decode, length),
            },
        )
    samples["long_over_short"] = _ratios(samples["long_tokens_per_second"], samples["short_tokens_per_second"])
    return _summaries(samples)


def batch_load(stage: Stage) -> str:
    """What ``batch`` does."""
    return (
        f"{stage.sizes.streams} questions of a few words at once, and one of them, "
        f"{stage.sizes.standard.decode_tokens} tokens each after the first, from when all have theirs"
    )


def batch(stage: Stage) -> Measurements:
    """All output of streams that are decoded together, and that of one."""
    text = text_tokens(stage.model_path)
    count = stage.sizes.standard.decode_tokens
    tokenizer = open_tokenizer(stage.model_path)
    opening = [] if text.beginning_id is None else [text.beginning_id]
    prompts = [opening + tokenizer.encode(question, special=False) for question in _QUESTIONS[: stage.sizes.streams]]
    with stage.contest([], stage.sizes.standard.context) as contest:
        worker = contest.contestants[0].worker

        def rate(chosen: list[list[int]]) -> float:
            timing = worker.decode_together(chosen, count)
            return len(timing.tokens) / timing.seconds

        samples = stage.turns(
            "batch",
            {
                "alone_tokens_per_second": lambda index: rate([prompts[index % len(prompts)]]),
                "together_tokens_per_second": lambda _: rate(prompts),
            },
        )
    samples["together_over_alone"] = _ratios(samples["together_tokens_per_second"], samples["alone_tokens_per_second"])
    return _summaries(samples)


def q4_0_load(stage: Stage) -> str:
    """What ``q4_0`` does."""
    work = stage.sizes.standard
    return (
        f"decode of {work.decode_tokens} tokens after {work.decode_prompt_tokens}, prefill of {work.prefill_tokens}: "
        "ours of the file itself, llama.cpp's of the Q4_0 that its quantiser writes of it"
    )


def q4_0(stage: Stage) -> Measurements:
    """Our engine on the file as it is, llama.cpp on its own fastest type of it."""
    if stage.model_path.is_dir():
        raise ConfigurationError("llama.cpp quantises GGUF files only; name one with --model")
    size, work = stage.model_path.stat().st_size, stage.sizes.standard
    python = environments.interpreter(_LLAMA_CPP.environment, stage.root, stage.progress)
    quantiser = Quantiser(python, stage.model_path, stage.threads)
    with tempfile.TemporaryDirectory() as folder:
        check_disk(Path(folder), size)
        file = Path(folder) / "model.gguf"
        stage.progress("quantising to Q4_0")
        if refusal := quantiser.write(quantiser.file_types()["Q4_0"], file).refusal:
            raise EngineError(f"llama.cpp's quantiser: {refusal}")
        sizes = {f"{OURS}_file_bytes": [float(size)], "llama-cpp_file_bytes": [float(file.stat().st_size)]}
        with stage.contest([_LLAMA_CPP], work.context, peer_path=file) as contest:
            text = text_tokens(stage.model_path)
            race = Race(contest, text, work, stage.rounds, stage.progress, metrics=(DECODE, PREFILL))
            race.run()
            return _summaries(sizes) | _figures(race.runtimes())


def random_weights_load(stage: Stage, size: str) -> str:
    """What the parts of random weights do."""
    work, shape = stage.sizes.random_weights, random_model.SHAPES[size]
    return (
        f"{shape.parameter_count() / 1e9:.2f} billion random weights as {_RANDOM_TYPES[size].upper()}: decode of "
        f"{work.decode_tokens} tokens after {work.decode_prompt_tokens}, the read bandwidth before every round"
    )


def random_weights(stage: Stage, size: str) -> Measurements:
    """Decode of a model too large for any cache."""
    shape, weight_type, work = random_model.SHAPES[size], _RANDOM_TYPES[size], stage.sizes.random_weights
    needed = shape.file_bytes(weight_type) + random_model.METADATA_BYTES
    with tempfile.TemporaryDirectory() as folder:
        check_disk(Path(folder), needed)
        check_memory(3 * needed)  # the file, our layout of it, llama.cpp's
        path = Path(folder) / f"random-{size}-{weight_type}.gguf"
        with open_gguf(resolve_model(None).path) as vocabulary:
            random_model.write_random_model(path, shape, weight_type, vocabulary, stage.progress)
        with stage.contest(stage.llama_cpp, work.context, path=path) as contest:
            rounds = stage.long_rounds if size == "8b" else stage.rounds
            race = Race(contest, text_tokens(path), work, rounds, stage.progress, metrics=(DECODE,), bandwidth=True)
            race.run()
            file_bytes = {"file_bytes": [float(path.stat().st_size)]}
            return _summaries(file_bytes) | _figures(race.runtimes()) | _against_bandwidth(race, contest)


def start_load(_: Stage) -> str:
    """What ``start`` does."""
    return "a fresh process of `ultrafast run` with a question of a few words, from its start to its first text"


def start(stage: Stage) -> Measurements:
    """From nothing to a first token; the disk is warm."""
    return _summaries(
        stage.turns("start", {"start_to_first_token_seconds": lambda index: _first_token_seconds(stage, index)})
    )


def _first_token_seconds(stage: Stage, index: int) -> float:
    question = _QUESTIONS[index % len(_QUESTIONS)]
    options = ["--model", str(stage.model_path), "--threads", str(stage.threads), "--temperature", "0"]
    command = [*ULTRAFAST, "run", question, *options, "--max-tokens", "8"]
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - started
        _, errors = process.communicate()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise EngineError(f"ultrafast run: {lines[-1][:300] if lines else f'ended with code {process.returncode}'}")
    return seconds


def _figures(runtimes: Sequence[RuntimeSpeed]) -> Measurements:
    """A race's samples, and how many times better ours was in the same round."""

    def of(runtime: RuntimeSpeed, found: dict[str, Summary]) -> list[tuple[Metric, Summary]]:
        return [(metric, found[metric.key]) for metric in METRICS if metric.key in found]

    own = {f"{run.name}_{metric.key}": each for run in runtimes for metric, each in of(run, run.measurements)}
    gains = {
        f"{metric.title.lower()}_gain_over_{run.name}": each
        for run in runtimes
        for metric, each in of(run, run.speedup)
    }
    return own | gains


def _against_bandwidth(race: Race, contest: Contest) -> Measurements:
    """How near decoding comes to what reading all weights for every token would take."""
    rates = race.runtimes()[0].measurements[DECODE.key].samples
    byte_count = float(contest.contestants[0].report.weight_bytes_per_token)
    shares = [rate * byte_count / bandwidth for rate, bandwidth in zip(rates, race.bandwidth_samples, strict=True)]
    return _summaries(
        {
            "weights_per_token_bytes": [byte_count],
            "read_bandwidth_bytes_per_second": race.bandwidth_samples,
            "bandwidth_share": shares,
            "time_over_limit": [1 / share for share in shares],
        }
    )


def _ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(first, second, strict=True)]


def _summaries(samples: Mapping[str, Sequence[float]]) -> Measurements:
    return {name: summarise(values) for name, values in samples.items()}
