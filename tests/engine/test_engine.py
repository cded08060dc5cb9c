"""The engine over the real default model: answers, endings, neighbours, cancellations."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.models.tiny import TinyShape, write_tiny_model
from ultrafast.engine.engine import MAXIMUM_WAITING_SEQUENCES, Engine
from ultrafast.engine.kv_cache import BlockPool
from ultrafast.engine.messages import GenerationEvent, GenerationRequest, TokenLogprob
from ultrafast.engine.prefix_cache import PrefixCache
from ultrafast.errors import (
    CacheFullError,
    ContextLengthError,
    EngineUnavailableError,
    NonFiniteError,
    RequestError,
)
from ultrafast.models import LoadedModel, load_model
from ultrafast.models.sampling import SamplingParameters
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights.gguf import open_gguf

GREEDY = SamplingParameters(temperature=0.0)
NO_END = SamplingParameters(temperature=0.0, logit_bias={0: -100.0, 2: -100.0})


@dataclass
class Answer:
    """What one choice said, put together from its events."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class Outcome:
    """All answers of a request and its last event."""

    choices: dict[int, Answer] = field(default_factory=lambda: defaultdict(Answer))
    last: GenerationEvent | None = None

    def add(self, event: GenerationEvent) -> None:
        assert self.last is None or self.last.summary is None, "an event after the last"
        answer = self.choices[event.choice]
        assert answer.finish_reason is None, "an event after the end of its choice"
        answer.tokens += event.token_ids
        answer.text += event.text
        answer.logprobs += event.logprobs or []
        answer.finish_reason = event.finish_reason
        self.last = event


@pytest.fixture
def engine(model: LoadedModel, tokenizer: Tokenizer) -> Engine:
    return Engine(model, tokenizer)


def prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", special=True)


def run(engine: Engine, *requests: GenerationRequest) -> list[Outcome]:
    outcomes: dict[str, Outcome] = {request.request_id: Outcome() for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for request_id, event in engine.step():
            outcomes[request_id].add(event)
    assert engine.take_failures() == []
    assert_idle(engine)
    return list(outcomes.values())


def assert_idle(engine: Engine) -> None:
    status = engine.status
    assert (status.waiting, status.running, status.free_blocks) == (0, 0, status.block_count)
    assert engine._choices == {}
    assert engine._requests == {}


def test_an_answer(engine: Engine, tokenizer: Tokenizer) -> None:
    request = GenerationRequest("a", prompt(tokenizer, "What is the capital of France?"), GREEDY, 40)
    (outcome,) = run(engine, request)
    answer = outcome.choices[0]
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert answer.tokens[-1] in tokenizer.end_ids
    assert answer.text == tokenizer.decode(answer.tokens[:-1])
    assert outcome.last is not None
    summary = outcome.last.summary
    assert summary is not None
    assert summary.prompt_tokens == len(request.prompt_tokens)
    assert summary.completion_tokens == summary.passes == len(answer.tokens)
    assert summary.ttft_seconds == pytest.approx(summary.queue_seconds + summary.prefill_seconds)
    assert summary.decode_seconds > 0


def test_waiting_begins_before_the_engine_hears_of_it(engine: Engine, tokenizer: Tokenizer) -> None:
    engine.add(GenerationRequest("a", prompt(tokenizer, "Hello"), GREEDY, 1), waited_seconds=1.5)
    ((_, event),) = engine.step()
    assert event.summary is not None
    assert 1.5 <= event.summary.queue_seconds < 2.5
    assert event.summary.prefill_seconds < 1.0


def test_ignoring_the_end(engine: Engine, tokenizer: Tokenizer) -> None:
    question = prompt(tokenizer, "What is the capital of France?")
    (outcome,) = run(engine, GenerationRequest("a", question, GREEDY, 40, ignore_end=True))
    answer = outcome.choices[0]
    assert len(answer.tokens) == 40
    assert answer.finish_reason == "length"
    assert set(answer.tokens) & tokenizer.end_ids
    assert answer.text == tokenizer.decode(answer.tokens)


def test_the_context_ends_an_answer(engine: Engine, model: LoadedModel, tokenizer: Tokenizer) -> None:
    tokens = (prompt(tokenizer, "sea and sky " * 300))[: model.context - 5]
    (outcome,) = run(engine, GenerationRequest("a", tokens, NO_END, 1000))
    assert outcome.choices[0].finish_reason == "length"
    assert len(outcome.choices[0].tokens) == 5
    engine.add(GenerationRequest("b", tokens + [5] * 4, NO_END, 1000))
    with pytest.raises(ContextLengthError):
        engine.add(GenerationRequest("c", tokens + [5] * 5, NO_END, 1))
    engine.cancel("b")
    assert_idle(engine)


BAD = {
    "empty prompt": {"prompt_tokens": []},
    "negative id": {"prompt_tokens": [5, -1]},
    "id beyond": {"prompt_tokens": [49152]},
    "bias beyond": {"sampling": SamplingParameters(logit_bias={49152: 1.0})},
    "bias negative": {"sampling": SamplingParameters(logit_bias={-1: 1.0})},
    "bias not finite": {"sampling": SamplingParameters(logit_bias={1: float("nan")})},
    "temperature not finite": {"sampling": SamplingParameters(temperature=float("nan"))},
    "temperature negative": {"sampling": SamplingParameters(temperature=-1.0)},
    "seed beyond": {"sampling": SamplingParameters(seed=1 << 64)},
    "no tokens": {"max_tokens": 0},
    "negative tokens": {"max_tokens": -5},
    "no choices": {"choices": 0},
    "no such tier": {"tier": "platinum"},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD.keys())
def test_what_cannot_run_is_refused_whole(engine: Engine, change: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        engine.add(msgspec.structs.replace(GenerationRequest("a", [5], GREEDY, 5), **change))
    assert_idle(engine)


def test_an_id_in_use_is_refused_and_its_owner_lives(engine: Engine) -> None:
    request = GenerationRequest("a", [5], GREEDY, 5)
    engine.add(request)
    with pytest.raises(RequestError):
        engine.add(request)
    assert engine.status.waiting == 1


def test_too_many_waiting_are_refused(engine: Engine) -> None:
    for index in range(MAXIMUM_WAITING_SEQUENCES):
        engine.add(GenerationRequest(str(index), [5], GREEDY, 5))
    with pytest.raises(EngineUnavailableError):
        engine.add(GenerationRequest("one more", [5], GREEDY, 5))
    engine.add(GenerationRequest("another tier", [5], GREEDY, 1, tier="ultrafast"))
    assert engine.status.waiting_by_tier["default"] == MAXIMUM_WAITING_SEQUENCES
    for index in range(MAXIMUM_WAITING_SEQUENCES):
        engine.cancel(str(index))
    engine.cancel("another tier")
    assert_idle(engine)


def test_stop_strings_across_tokens(engine: Engine, tokenizer: Tokenizer) -> None:
    tokens = prompt(tokenizer, "Count from one to ten.")
    (whole,) = run(engine, GenerationRequest("a", tokens, GREEDY, 40))
    text = whole.choices[0].text
    for start in range(0, len(text) - 4, 20):
        stop = text[start : start + 4]
        (cut,) = run(engine, GenerationRequest("a", tokens, GREEDY, 40, stop=["\x00never", stop]))
        assert cut.choices[0].text == text[: text.find(stop)]
        assert cut.choices[0].finish_reason == "stop"


def test_logprobs_are_those_of_the_raw_distribution(engine: Engine, tokenizer: Tokenizer) -> None:
    tokens = prompt(tokenizer, "What is the capital of France?")
    plain = SamplingParameters(temperature=0.0, top_logprobs=5)
    (greedy,) = run(engine, GenerationRequest("a", tokens, plain, 12, logprobs=True))
    for entry, token in zip(greedy.choices[0].logprobs, greedy.choices[0].tokens, strict=False):
        assert entry.token_id == token == entry.top[0].token_id
        assert entry.token_bytes == tokenizer.token_bytes(token)
        assert entry.logprob == entry.top[0].logprob
        values = [top.logprob for top in entry.top]
        assert values == sorted(values, reverse=True)
        assert sum(np.exp(values)) <= 1 + 1e-5
    biased = msgspec.structs.replace(plain, logit_bias={260: 100.0}, top_logprobs=3)
    (forced,) = run(engine, GenerationRequest("a", tokens, biased, 1, logprobs=True))
    (entry,) = forced.choices[0].logprobs
    assert entry.token_id == 260
    assert [top.token_id for top in entry.top] == [top.token_id for top in greedy.choices[0].logprobs[0].top[:3]]
    assert entry.logprob < 0


def test_choices_differ_by_their_number_only(engine: Engine, tokenizer: Tokenizer) -> None:
    tokens = prompt(tokenizer, "Write a sentence.")
    sampling = SamplingParameters(seed=11)
    (many,) = run(engine, GenerationRequest("a", tokens, sampling, 12, 20))
    assert sorted(many.choices) == list(range(20))
    assert len({tuple(answer.tokens) for answer in many.choices.values()}) > 10
    (one,) = run(engine, GenerationRequest("a", tokens, sampling, 12))
    assert one.choices[0].tokens == many.choices[0].tokens
    assert many.last is not None
    assert many.last.summary is not None
    assert many.last.summary.completion_tokens == sum(len(answer.tokens) for answer in many.choices.values())


def test_neighbours_and_chunks_change_nothing(engine: Engine, tokenizer: Tokenizer) -> None:
    requests = [
        GenerationRequest(
            str(index),
            prompt(tokenizer, text),
            SamplingParameters(temperature=0.7 * (index % 2), seed=index, repetition_penalty=1.1),
            10 + index,
            logprobs=index % 3 == 0,
        )
        for index, text in enumerate(["Hi", "sea " * 150, "Why?", "x", "Tell me about the moon. " * 12, "One"])
    ]
    alone = [run(engine, request)[0] for request in requests]
    engine.forget_prefixes()
    together = run(engine, *requests)
    assert [outcome.choices for outcome in together] == [outcome.choices for outcome in alone]
    engine.forget_prefixes()
    engine._scheduler.costs.prefill_rows_alone = 7
    engine._scheduler.costs.prefill_rows_beside_decode = 3
    chunked = run(engine, *requests)
    assert [outcome.choices for outcome in chunked] == [outcome.choices for outcome in alone]


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 300))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_aborts_leave_nothing_behind(engine: Engine, tokenizer: Tokenizer, seed: int) -> None:
    """FAULTS rows 18 and 19: whoever is left has the tokens it would have had alone."""
    source = random.Random(seed)
    survivor = GenerationRequest("survivor", prompt(tokenizer, "Hi"), SamplingParameters(seed=5), 12)
    (expected,) = run(engine, survivor)
    engine.forget_prefixes()
    outcome = Outcome()
    engine.add(survivor)
    alive: list[str] = []
    for number in range(20):
        if source.random() < 0.4:
            length = source.choice([1, 5, 40, 200])
            request = GenerationRequest(f"r{number}", [source.randrange(49152) for _ in range(length)], GREEDY, 20, 2)
            engine.add(request)
            alive.append(request.request_id)
        if alive and source.random() < 0.5:
            engine.cancel(alive.pop(source.randrange(len(alive))))
        for request_id, event in engine.step():
            if request_id == "survivor":
                outcome.add(event)
    for request_id in alive:
        engine.cancel(request_id)
    while engine.has_work:
        for _, event in engine.step():
            outcome.add(event)
    assert outcome.choices == expected.choices
    assert_idle(engine)


def test_a_long_prompt_does_not_stall_a_stream(engine: Engine, tokenizer: Tokenizer) -> None:
    engine._scheduler.costs.prefill_rows_beside_decode = 16
    engine.add(GenerationRequest("stream", prompt(tokenizer, "Hi"), NO_END, 40))
    engine.step()
    engine.add(GenerationRequest("long", [5] * 400, NO_END, 2))
    for _ in range(20):
        assert "stream" in [request_id for request_id, _ in engine.step()]
    engine.cancel("stream")
    engine.cancel("long")
    assert_idle(engine)


def test_the_loop_costs_little_beside_the_model(engine: Engine, model: LoadedModel, tokenizer: Tokenizer) -> None:
    """What Python adds to a decode step of one stream, the native call taken out: below 150 µs."""
    inside = 0.0
    native_step = model.step

    def timed(*arguments: object) -> object:
        nonlocal inside
        started = time.perf_counter()
        try:
            return native_step(*arguments)  # type: ignore[arg-type]
        finally:
            inside += time.perf_counter() - started

    engine.add(GenerationRequest("a", prompt(tokenizer, "Hi"), NO_END, 200))
    overheads = []
    model.step = timed  # type: ignore[method-assign,assignment]
    try:
        while engine.has_work:
            inside = 0.0
            started = time.perf_counter()
            engine.step()
            overheads.append(time.perf_counter() - started - inside)
    finally:
        del model.step
    # What other programs of the machine take is no cost of ours: the quickest tenth shows the loop itself.
    assert sorted(overheads)[len(overheads) // 10] < 150e-6


def test_a_value_that_is_not_finite_ends_its_own_request_only(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "F32")
    poisoned = 7
    with open_gguf(path) as file:
        row = file.tensors["token_embd.weight"].data.reshape(TinyShape.vocabulary_size, -1)[poisoned].tobytes()
    content = path.read_bytes()
    assert content.count(row) == 1
    path.write_bytes(content.replace(row, np.full(TinyShape.hidden_size, np.nan, np.float32).tobytes()))

    model = load_model(path, context=256, threads=2)
    try:
        engine = Engine(model, tokenizer)
        never = SamplingParameters(temperature=0.0, logit_bias={poisoned: -1e9})
        sound = GenerationRequest("sound", [5, 6, 9] * 20, never, 20, ignore_end=True)
        (alone,) = run(engine, sound)
        outcome = Outcome()
        engine.add(sound)
        engine.add(GenerationRequest("poisoned", [5, 6, poisoned, 9], never, 20, 3, ignore_end=True))
        failures = []
        while engine.has_work:
            for request_id, event in engine.step():
                assert request_id == "sound"
                outcome.add(event)
            failures += engine.take_failures()
        assert [request_id for request_id, _ in failures] == ["poisoned"]
        assert isinstance(failures[0][1], NonFiniteError)
        assert outcome.choices == alone.choices
        assert_idle(engine)
    finally:
        model.close()


@pytest.mark.parametrize("end", ["length", "cancel"])
def test_a_pause_is_no_cost_of_the_step_before(model: LoadedModel, tokenizer: Tokenizer, end: str) -> None:
    now = 0.0
    engine = Engine(model, tokenizer, clock=lambda: now)
    for _ in range(2):
        engine.add(GenerationRequest("a", [5], NO_END, 3 if end == "length" else 100))
        for _ in range(3):
            now += 0.001
            engine.step()
        engine.cancel("a")
        assert_idle(engine)
        now += 100.0
    assert 0.0 < engine._scheduler.costs.decode_seconds(1) < 0.002


def test_warming_up_leaves_nothing_behind(engine: Engine) -> None:
    engine.warm_up()
    assert_idle(engine)
    costs = engine._scheduler.costs
    assert 1 <= costs.prefill_rows_beside_decode <= costs.prefill_rows_alone <= costs.max_rows
    assert costs.decode_seconds(1) > 0.0


def test_what_no_cache_could_hold_is_refused(tokenizer: Tokenizer, model: LoadedModel) -> None:
    engine = Engine(model, tokenizer)
    engine._scheduler.admission.cache = PrefixCache(BlockPool(2, model.block_tokens))
    with pytest.raises(CacheFullError):
        engine.add(GenerationRequest("a", [5] * 100, GREEDY, 10))
