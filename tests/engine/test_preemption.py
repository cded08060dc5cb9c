"""Preempted and resumed on the real default model: no bit of an answer changes, whatever comes between."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tests.engine.test_engine import GREEDY, NO_END, Outcome, assert_idle, prompt, run
from tests.engine.test_prefix_reuse import PENALISED, random_request, summary_of
from tests.models.tiny import write_tiny_model
from ultrafast.engine.engine import Engine
from ultrafast.engine.kv_cache import BlockPool
from ultrafast.engine.messages import GenerationRequest
from ultrafast.engine.prefix_cache import PrefixCache
from ultrafast.engine.scheduler import Scheduler
from ultrafast.models import LoadedModel, load_model
from ultrafast.models.sampling import SamplingParameters
from ultrafast.tokens.tokenizer import Tokenizer

SAMPLED = SamplingParameters(temperature=0.9, top_p=0.95, seed=12, top_logprobs=4)


def small_engine(model: LoadedModel, tokenizer: Tokenizer, *, slots: int, blocks: int = 40) -> Engine:
    engine = Engine(model, tokenizer)
    engine._scheduler = Scheduler(
        PrefixCache(BlockPool(blocks, model.block_tokens)),
        max_sequences=slots,
        max_rows=model.max_rows,
    )
    return engine


def step_until(engine: Engine, outcome: Outcome, tokens: int) -> None:
    while len(outcome.choices[0].tokens) < tokens:
        for request_id, event in engine.step():
            if request_id == "flex":
                outcome.add(event)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("is_forgotten", [False, True], ids=["kept", "evicted"])
def test_a_resumed_answer_is_that_of_an_undisturbed_one(
    model: LoadedModel, tokenizer: Tokenizer, sampling: SamplingParameters, is_forgotten: bool
) -> None:
    """FAULTS row 23. Tokens, text and logprobs; in the middle of a block and at its edges, more than once."""
    tokens = prompt(tokenizer, "Describe the sea at night, the wind, and a ship that comes home after a long voyage.")
    request = GenerationRequest(
        "flex", tokens, sampling, 48, stop=["\x00"], logprobs=True, ignore_end=True, tier="flex"
    )
    (undisturbed,) = run(Engine(model, tokenizer), request)
    engine = small_engine(model, tokenizer, slots=1)
    outcome = Outcome()
    engine.add(request)
    edge = model.block_tokens - len(tokens) % model.block_tokens
    places = sorted({1, 7, edge, edge + 1, 40})
    for number, place in enumerate(places):
        step_until(engine, outcome, place)
        engine.add(GenerationRequest(f"u{number}", prompt(tokenizer, f"{number}"), NO_END, 3, tier="ultrafast"))
        engine.step()
        assert (engine.status.running_by_tier["flex"], engine.status.waiting_by_tier["flex"]) == (0, 1)
        if is_forgotten:
            engine.forget_prefixes()
    rows = engine.status.rows
    step_until(engine, outcome, 48)
    assert engine.status.preemptions == len(places)
    if not is_forgotten:
        assert engine.status.rows - rows < 25, "what it had computed was kept"
    assert outcome.choices == undisturbed.choices
    before, after = summary_of(undisturbed), summary_of(outcome)
    assert (after.prompt_tokens, after.cached_tokens) == (len(tokens), 0)
    assert (after.completion_tokens, after.passes) == (before.completion_tokens, before.passes) == (48, 48)
    assert after.ttft_seconds == pytest.approx(after.queue_seconds + after.prefill_seconds)
    assert after.prefill_seconds > 0
    assert after.decode_seconds > 0
    assert_idle(engine)


def test_preempted_within_its_prompt(model: LoadedModel, tokenizer: Tokenizer) -> None:
    request = GenerationRequest("flex", [*range(300, 500)], PENALISED, 6, logprobs=True, tier="flex")
    (undisturbed,) = run(Engine(model, tokenizer), request)
    engine = small_engine(model, tokenizer, slots=1)
    engine._scheduler.costs.prefill_rows_alone = 50
    outcome = Outcome()
    engine.add(request)
    engine.step()
    engine.add(GenerationRequest("u", prompt(tokenizer, "Hi"), NO_END, 2, tier="priority"))
    step_until(engine, outcome, 6)
    assert engine.status.preemptions == 1
    assert outcome.choices == undisturbed.choices


def test_what_was_computed_before_a_preemption_is_told(model: LoadedModel, tokenizer: Tokenizer) -> None:
    engine = small_engine(model, tokenizer, slots=1)
    engine._scheduler.costs.prefill_rows_alone = 50
    engine.add(GenerationRequest("flex", [*range(300, 500)], GREEDY, 6, tier="flex"))
    engine.step()
    engine.add(GenerationRequest("u", prompt(tokenizer, "Hi"), NO_END, 20, tier="priority"))
    engine.step()
    assert engine.status.waiting_by_tier["flex"] == 1
    account = engine.cancel("flex")
    assert account is not None
    assert (account.prompt_tokens, account.cached_tokens, account.completion_tokens) == (50, 0, 0)
    engine.cancel("u")
    assert_idle(engine)


def test_who_waits_again_can_be_cancelled(model: LoadedModel, tokenizer: Tokenizer) -> None:
    engine = small_engine(model, tokenizer, slots=1)
    engine.add(GenerationRequest("flex", prompt(tokenizer, "Hi"), NO_END, 20, tier="flex"))
    engine.step()
    engine.add(GenerationRequest("u", prompt(tokenizer, "Hi"), NO_END, 20, tier="ultrafast"))
    engine.step()
    assert engine.status.waiting == engine.status.running == 1
    engine.cancel("flex")
    engine.cancel("u")
    assert_idle(engine)


def test_reserved_slots_come_on_top(model_path: Path, tokenizer: Tokenizer) -> None:
    model = load_model(model_path, context=64, max_sequences=18)
    try:
        assert model.max_sequences == 18
        engine = Engine(model, tokenizer, reserved_slots=2)
        for index in range(20):
            engine.add(GenerationRequest(f"{index}", [5, 6], NO_END, 8))
        engine.add(GenerationRequest("u", [5, 6, 7], NO_END, 8, 2, tier="ultrafast"))
        engine.step()
        assert engine.status.running_by_tier == {"ultrafast": 2, "priority": 0, "default": 16, "flex": 0}
        while engine.has_work:
            engine.step()
        assert engine.status.preemptions == 0
    finally:
        model.close()


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 300))]
CALM_SEEDS = {53, 82, 90, 100, 188, 196, 273, 287}  # whose histories come to pass without a preemption


@pytest.mark.parametrize("seed", SEEDS)
def test_random_tiers(tokenizer: Tokenizer, tmp_path: Path, seed: int) -> None:
    """Few slots, few blocks, all tiers and two salts at once: every answer is the one it would have had alone."""
    source = random.Random(seed)
    model = load_model(write_tiny_model(tmp_path / "tiny.gguf", "Q8_0"), context=256, threads=2)
    try:
        engine = small_engine(model, tokenizer, slots=source.randint(1, 2), blocks=source.choice([8, 16]))
        requests: dict[str, GenerationRequest] = {}
        outcomes: dict[str, Outcome] = {}
        conversation: list[int] = []
        number = 0
        while number < 30 or engine.has_work:
            if number < 30 and source.random() < 0.3:
                request = msgspec.structs.replace(
                    random_request(source, f"{number}", conversation),
                    tier=source.choice(["ultrafast", "priority", "fast", "default", "flex"]),
                    salt=source.choice("ab"),
                )
                number += 1
                engine.add(request)
                requests[request.request_id] = request
                outcomes[request.request_id] = Outcome()
            for request_id, event in engine.step():
                outcomes[request_id].add(event)
                if event.summary is not None:
                    conversation = [*requests[request_id].prompt_tokens, *outcomes[request_id].choices[0].tokens]
        assert engine.take_failures() == []
        assert_idle(engine)
        assert engine.status.preemptions > 0 or seed in CALM_SEEDS
        for request_id, outcome in outcomes.items():
            (alone,) = run(Engine(model, tokenizer), requests[request_id])
            assert outcome.choices == alone.choices
            assert summary_of(outcome).completion_tokens == summary_of(alone).completion_tokens
    finally:
        model.close()


def test_salts_share_nothing(model: LoadedModel, tokenizer: Tokenizer) -> None:
    """FAULTS row 15: another project's prompt is computed whole, at the pace of one never seen."""
    engine = Engine(model, tokenizer)
    one = GenerationRequest("a", [5] * 40, NO_END, 4, salt="one")
    two = msgspec.structs.replace(one, salt="two")
    (first,) = run(engine, one)
    rows = engine.status.rows
    (other,) = run(engine, two)
    assert engine.status.rows - rows == 40 + 3
    (again,) = run(engine, one)
    assert [summary_of(outcome).cached_tokens for outcome in (first, other, again)] == [0, 0, 39]
    assert first.choices == other.choices == again.choices
