"""Reuse of prefixes by the engine: what is computed once is not computed again, and no answer changes by a bit."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tests.engine.test_engine import GREEDY, NO_END, Outcome, assert_idle, prompt, run
from tests.models.tiny import write_tiny_model
from ultrafast.engine.engine import Engine
from ultrafast.engine.kv_cache import BlockPool
from ultrafast.engine.messages import GenerationRequest, Summary
from ultrafast.engine.prefix_cache import PrefixCache
from ultrafast.models import LoadedModel, load_model
from ultrafast.models.sampling import SamplingParameters
from ultrafast.tokens.tokenizer import Tokenizer

PENALISED = SamplingParameters(
    temperature=0.8, seed=3, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4, top_logprobs=3
)


def summary_of(outcome: Outcome) -> Summary:
    assert outcome.last is not None
    assert outcome.last.summary is not None
    return outcome.last.summary


@pytest.fixture
def engine(model: LoadedModel, tokenizer: Tokenizer) -> Engine:
    return Engine(model, tokenizer)


def alone(model: LoadedModel, tokenizer: Tokenizer, request: GenerationRequest) -> Outcome:
    """The answer of an engine that has seen nothing else."""
    (outcome,) = run(Engine(model, tokenizer), request)
    assert summary_of(outcome).cached_tokens == 0
    return outcome


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
def test_the_next_turn_computes_only_what_is_new(
    engine: Engine, model: LoadedModel, tokenizer: Tokenizer, sampling: SamplingParameters
) -> None:
    history: list[int] = []
    computed = 0
    turns: list[tuple[GenerationRequest, Outcome]] = []
    for number, question in enumerate(["Name three rivers.", "Which one is the longest?", "Why?"]):
        tokens = [*history, *prompt(tokenizer, question)]
        request = GenerationRequest(f"{number}", tokens, sampling, 24, logprobs=True)
        rows = engine.status.rows
        (outcome,) = run(engine, request)
        summary = summary_of(outcome)
        assert summary.cached_tokens == computed
        answer = outcome.choices[0].tokens
        assert engine.status.rows - rows == len(tokens) - summary.cached_tokens + len(answer) - 1
        computed = len(tokens) + len(answer) - 1  # nothing follows the last token, so it was never fed
        history = [*tokens, *answer]
        turns.append((request, outcome))
    assert len(history) > 3 * model.block_tokens
    for request, outcome in turns:
        assert outcome.choices == alone(model, tokenizer, request).choices


def test_the_same_prompt_again_computes_one_row(engine: Engine, tokenizer: Tokenizer) -> None:
    tokens = prompt(
        tokenizer, "Tell me about the sea and the sky, the wind and the rain, the sand and the stones. " * 2
    )
    for length in (1, 2, 32, 33):
        request = GenerationRequest("a", tokens[:length], NO_END, 1)
        engine.forget_prefixes()
        (first,) = run(engine, request)
        (again,) = run(engine, request)
        assert summary_of(first).cached_tokens == 0
        assert summary_of(again).cached_tokens == length - 1
        assert first.choices == again.choices


def test_choices_and_parts_in_the_middle(engine: Engine, model: LoadedModel, tokenizer: Tokenizer) -> None:
    """Prompts that part inside a block, and all choices of one request, have what they have in common."""
    story = tokenizer.encode("The old captain looked at the sea for a long time. " * 5)
    first = GenerationRequest("a", [*story, 100, 101, 102], PENALISED, 8)
    second = GenerationRequest("b", [*story, 200, 201], PENALISED, 8, choices=5, logprobs=True)
    run(engine, first)
    rows = engine.status.rows
    (outcome,) = run(engine, second)
    assert summary_of(outcome).cached_tokens == len(story)
    assert engine.status.rows - rows <= 5 * (2 + 7)
    assert outcome.choices == alone(model, tokenizer, second).choices


def test_a_cancelled_prompt_goes_on_where_it_was(engine: Engine, model: LoadedModel, tokenizer: Tokenizer) -> None:
    engine._scheduler.costs.prefill_rows_alone = 50
    tokens = tokenizer.encode("sea and sky " * 60)[:150]
    request = GenerationRequest("a", tokens, GREEDY, 8)
    engine.add(request)
    engine.step()  # just one: after it the engine sets its own pace
    account = engine.cancel("a")
    assert_idle(engine)
    computed = engine.status.rows
    assert computed == 50
    assert account is not None
    assert (account.prompt_tokens, account.cached_tokens, account.completion_tokens) == (computed, 0, 0)
    assert account.prefill_seconds > 0 == account.ttft_seconds
    (outcome,) = run(engine, request)
    assert summary_of(outcome).cached_tokens == computed
    assert outcome.choices == alone(model, tokenizer, request).choices


@pytest.mark.parametrize("choices", [1, 3])
def test_what_was_computed_is_told_of_whoever_is_given_up(engine: Engine, tokenizer: Tokenizer, choices: int) -> None:
    """Waiting, with a part of the prompt done, and with some tokens; once, and no more than that."""
    tokens = tokenizer.encode("sea and sky " * 60)[:150]
    run(engine, GenerationRequest("before", tokens[:40], GREEDY, 1))
    request = GenerationRequest("a", tokens, NO_END, 20, choices)

    engine.add(request)
    waiting = engine.cancel("a")
    assert waiting is not None
    assert (waiting.prompt_tokens, waiting.cached_tokens, waiting.completion_tokens) == (0, 0, 0)
    assert (waiting.prefill_seconds, waiting.decode_seconds) == (0, 0)

    engine._scheduler.costs.prefill_rows_alone = 50
    engine.add(request)
    engine.step()
    begun = engine.cancel("a")
    assert begun is not None
    assert (begun.prompt_tokens, begun.cached_tokens, begun.completion_tokens) == (90, 40, 0)

    engine.add(request)
    events = [event for _ in range(8) for _, event in engine.step()]
    decoding = engine.cancel("a")
    assert decoding is not None
    assert (decoding.prompt_tokens, decoding.cached_tokens) == (150, 90)
    assert decoding.completion_tokens == len(events) > 0
    assert engine.cancel("a") is None
    assert_idle(engine)


def test_kept_blocks_are_given_to_who_needs_them(engine: Engine, model: LoadedModel, tokenizer: Tokenizer) -> None:
    engine._scheduler.admission.cache = PrefixCache(BlockPool(model.context // model.block_tokens, model.block_tokens))
    request = GenerationRequest("a", prompt(tokenizer, "Hi"), GREEDY, 8)
    (first,) = run(engine, request)
    run(engine, GenerationRequest("all", [300] * (model.context - 2), NO_END, 2))
    (again,) = run(engine, request)
    assert summary_of(again).cached_tokens == 0
    assert again.choices == first.choices


def test_reuse_can_be_forgotten(engine: Engine, tokenizer: Tokenizer) -> None:
    request = GenerationRequest("a", prompt(tokenizer, "Hi"), GREEDY, 4)
    run(engine, request)
    engine.forget_prefixes()
    (outcome,) = run(engine, request)
    assert summary_of(outcome).cached_tokens == 0


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 300))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_conversations(tokenizer: Tokenizer, tmp_path: Path, seed: int) -> None:
    """Several conversations at once that branch, are cancelled and stop, in a cache too small to keep them all."""
    source = random.Random(seed)
    model = load_model(write_tiny_model(tmp_path / "tiny.gguf", "Q8_0"), context=256, threads=2)
    try:
        engine = Engine(model, tokenizer)
        engine._scheduler.admission.cache = PrefixCache(BlockPool(source.choice([8, 16, 30]), model.block_tokens))
        requests: dict[str, GenerationRequest] = {}
        outcomes: dict[str, Outcome] = {}
        conversations: list[list[int]] = [[]]
        alive: set[str] = set()
        number = 0
        while number < 40 or engine.has_work:
            if number < 40 and source.random() < 0.3:
                request = random_request(source, f"{number}", source.choice(conversations))
                number += 1
                engine.add(request)
                requests[request.request_id] = request
                outcomes[request.request_id] = Outcome()
                alive.add(request.request_id)
            if alive and source.random() < 0.03:
                gone = source.choice(sorted(alive))
                alive.remove(gone)
                engine.cancel(gone)
            for request_id, event in engine.step():
                outcome = outcomes[request_id]
                outcome.add(event)
                if event.summary is not None:
                    alive.remove(request_id)
                    conversations.append([*requests[request_id].prompt_tokens, *outcome.choices[0].tokens])
        assert engine.take_failures() == []
        assert_idle(engine)
        whole = [request_id for request_id, outcome in outcomes.items() if outcome.last and outcome.last.summary]
        assert sum(summary_of(outcomes[request_id]).cached_tokens for request_id in whole) > 0
        for request_id in whole:
            assert outcomes[request_id].choices == alone(model, tokenizer, requests[request_id]).choices
    finally:
        model.close()


def random_request(source: random.Random, request_id: str, conversation: list[int]) -> GenerationRequest:
    """Goes on from anywhere in ``conversation``."""
    kept = conversation[: source.choice([len(conversation), source.randint(0, len(conversation))])][:150]
    tokens = [*kept, *(source.randrange(77) for _ in range(source.randint(1, 25)))]
    sampling = msgspec.structs.replace(
        source.choice([GREEDY, PENALISED, SamplingParameters(seed=source.randrange(100))]), top_logprobs=2
    )
    end = msgspec.structs.replace(sampling, logit_bias={2: 3.0})
    stop = [" "] if source.random() < 0.3 else []
    return GenerationRequest(
        request_id, tokens, end, source.randint(1, 40), source.choice([1, 1, 1, 2]), stop, source.random() < 0.5
    )
