"""The engine: requests in, events out, one native step at a time. Four verbs: add, schedule, run, postprocess."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ultrafast import memory
from ultrafast.engine.batch import Batch, Int32
from ultrafast.engine.kv_cache import BlockPool
from ultrafast.engine.messages import EngineStatus, GenerationEvent, GenerationRequest, Summary
from ultrafast.engine.output import ChoiceOutput, token_logprob
from ultrafast.engine.prefix_cache import PrefixCache
from ultrafast.engine.scheduler import Plan, Scheduler
from ultrafast.engine.sequence import Sequence
from ultrafast.engine.step_costs import StepCosts
from ultrafast.engine.tiers import TIER_NAMES, TIER_RANKS
from ultrafast.errors import (
    ContextLengthError,
    EngineUnavailableError,
    NonFiniteError,
    RequestError,
    UltrafastError,
)
from ultrafast.models import WANT_TOKEN, WANT_TOP
from ultrafast.models.loaded import LoadedModel, StepResult
from ultrafast.models.sampling import SamplingParameters
from ultrafast.tokens.tokenizer import Tokenizer

MAXIMUM_WAITING_SEQUENCES = 256  # of a tier; beyond this, refusing at once is kinder than a queue of minutes

_WARM_UP_PROMPT_TOKENS = 64
_SHORTEST_WARM_UP_TOKENS = 8
_WARM_UP_SECONDS = 0.2
_WARM_UP_TOKENS = 4


def _check_sampling(sampling: SamplingParameters, vocabulary: int) -> None:
    """Raise RequestError for what the native side would refuse in mid-step, when it is too late for an answer."""
    bias = sampling.logit_bias
    if bias and (min(bias) < 0 or max(bias) >= vocabulary):
        raise RequestError("a token id is outside the vocabulary", param="logit_bias")
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        *bias.values(),
    )
    if not all(map(math.isfinite, numbers)) or sampling.temperature < 0 or sampling.repetition_penalty <= 0:
        raise RequestError("a sampling parameter is out of range")
    if sampling.top_k < 0 or not 0 <= sampling.top_logprobs <= vocabulary or not 0 <= sampling.seed < 1 << 64:
        raise RequestError("a sampling parameter is out of range")


@dataclass(slots=True, eq=False)
class _Choice:
    """One choice of a request: its sequence and its output."""

    request: _Request
    index: int
    sequence: Sequence
    output: ChoiceOutput
    want: int  # WANT_* bits of the rows that sample


@dataclass(slots=True, eq=False)
class _Request:
    """A request in progress and its account."""

    message: GenerationRequest
    prompt: Int32  # [prompt_length]
    arrived: float
    live: list[_Choice] = field(default_factory=list)
    admitted: float = -1.0
    cached_tokens: int = 0  # of the prompt, found by the first choice
    first_token: float = -1.0
    completion_tokens: int = 0
    passes: int = 0


class Engine:
    """Runs any number of requests over one loaded model. Single-threaded: every method from one thread."""

    def __init__(
        self,
        model: LoadedModel,
        tokenizer: Tokenizer,
        *,
        reserved_slots: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``reserved_slots`` of the model's sequences are kept free for the tier ``ultrafast``."""
        self._model = model
        self._tokenizer = tokenizer
        self._clock = clock
        self._scheduler = Scheduler(
            PrefixCache(BlockPool(model.block_count, model.block_tokens)),
            max_sequences=model.max_sequences,
            max_rows=model.max_rows,
            reserved_slots=reserved_slots,
        )
        self._requests: dict[str, _Request] = {}
        self._choices: dict[Sequence, _Choice] = {}
        self._failures: list[tuple[str, UltrafastError]] = []
        self._steps = 0
        self._rows = 0
        self._batch = Batch(model.max_rows)
        self._last_plan: Plan | None = None  # whose time is not over yet
        self._last_started = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._scheduler.has_work

    @property
    def status(self) -> EngineStatus:
        """Counters of this moment."""
        admission = self._scheduler.admission
        return EngineStatus(
            waiting=admission.waiting_count,
            running=admission.running_count,
            free_blocks=admission.cache.free_count,
            block_count=admission.cache.block_count,
            steps=self._steps,
            rows=self._rows,
            waiting_by_tier={name: len(admission.waiting[TIER_RANKS[name]]) for name in TIER_NAMES},
            running_by_tier={name: len(admission.running[TIER_RANKS[name]]) for name in TIER_NAMES},
            preemptions=admission.preemptions,
        )

    def add(self, request: GenerationRequest, *, waited_seconds: float = 0.0) -> None:
        """Queue a request that has waited so long already.

        Raises RequestError (ids outside the vocabulary, empty prompt, no such tier), ContextLengthError,
        CacheFullError, and EngineUnavailableError where too many of its tier wait already; then nothing was queued.
        """
        prompt = self._checked_prompt(request)
        token_limit = min(request.max_tokens, self._model.context - len(prompt))
        queue = self._scheduler.admission.waiting[TIER_RANKS[request.tier]]
        if len(queue) + request.choices > MAXIMUM_WAITING_SEQUENCES:
            raise EngineUnavailableError("too many requests are waiting")
        state = _Request(request, prompt, self._clock() - waited_seconds)
        want = WANT_TOKEN | WANT_TOP if request.logprobs else WANT_TOKEN
        for index in range(request.choices):
            sequence = Sequence(prompt, token_limit, state.arrived, request.tier, request.salt)
            output = ChoiceOutput(
                self._tokenizer, request.stop, ignore_end=request.ignore_end, previous=int(prompt[-1])
            )
            self._scheduler.add(sequence)  # can only refuse the first: all choices are of one size
            choice = _Choice(state, index, sequence, output, want)
            self._choices[sequence] = choice
            state.live.append(choice)
        self._requests[request.request_id] = state

    def _checked_prompt(self, request: GenerationRequest) -> Int32:
        vocabulary = self._model.configuration.vocabulary_size
        if request.request_id in self._requests:
            raise RequestError("this request id is in use")
        if request.tier not in TIER_RANKS:
            raise RequestError("there is no such tier", param="service_tier")
        if not request.prompt_tokens:
            raise RequestError("the prompt is empty", param="messages")
        if min(request.prompt_tokens) < 0 or max(request.prompt_tokens) >= vocabulary:
            raise RequestError("a prompt token id is outside the vocabulary", param="messages")
        _check_sampling(request.sampling, vocabulary)
        if request.max_tokens < 1 or request.choices < 1:
            raise RequestError("nothing is asked for", param="max_tokens")
        if len(request.prompt_tokens) >= self._model.context:
            raise ContextLengthError(
                f"the prompt has {len(request.prompt_tokens)} tokens and the context holds {self._model.context}, "
                "the answer included",
                param="messages",
            )
        return np.array(request.prompt_tokens, np.int32)

    def cancel(self, request_id: str) -> Summary | None:
        """Give up a request and free what it holds; returns its account.

        Unknown ids are ignored (it may just have ended): None.
        """
        request = self._requests.get(request_id)
        if request is None:
            return None
        summary = self._account(request, self._clock())
        self._abandon(request, keep=True)
        if not self._choices:
            self._last_plan = None  # the pause that follows is none of its cost
        return summary

    def _abandon(self, request: _Request, *, keep: bool) -> None:
        del self._requests[request.message.request_id]
        for choice in request.live:
            self._release(choice, keep=keep)

    def take_failures(self) -> list[tuple[str, UltrafastError]]:
        """Requests that ended with an error since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def step(self) -> list[tuple[str, GenerationEvent]]:
        """One step: what it gave, as (request id, event) in order; empty where only prompts advanced."""
        started = self._clock()
        if self._last_plan is not None:
            # With all that followed it: its events delay the next step.
            self._scheduler.observe(self._last_plan, started - self._last_started)
        plan = self._scheduler.schedule(started)
        self._last_plan, self._last_started = plan, started
        if not plan.work:
            return []
        result = self._run(plan)
        events = self._postprocess(plan, result, self._clock())
        if not self._choices:
            self._scheduler.observe(plan, self._clock() - started)
            self._last_plan = None
        return events

    def _run(self, plan: Plan) -> StepResult:
        for slot in plan.preempted_slots:
            self._model.release(slot)
        for sequence in plan.admitted:
            self._bind(sequence)
        batch = self._batch
        batch.clear()
        for sequence, start, rows, samples in plan.work:
            choice = self._choices[sequence]
            want = choice.want if samples else 0
            if start >= sequence.prefill_length:
                batch.add_token(sequence.output[-1], start, sequence.slot, want)
            else:
                batch.add_chunk(sequence.prefill[start : start + rows], start, sequence.slot, want)
        self._steps += 1
        self._rows += batch.rows
        return self._model.step(*batch.arrays())

    def _bind(self, sequence: Sequence) -> None:
        choice = self._choices[sequence]
        request = choice.request
        reservation = sequence.reservation
        assert reservation is not None
        if request.admitted < 0:
            request.admitted = sequence.admitted
            request.cached_tokens = reservation.cached_tokens
        if reservation.copied_block >= 0:
            self._model.copy_block(reservation.copied_block, reservation.blocks[len(reservation.shared)])
        self._model.bind(
            sequence.slot,
            np.array(reservation.blocks, np.int32),
            request.message.sampling,
            sequence.prompt_length,
            choice.index,
            history=sequence.prefill[: reservation.cached_tokens],
        )

    def _postprocess(self, plan: Plan, result: StepResult, now: float) -> list[tuple[str, GenerationEvent]]:
        failed = result.failed_sequences.tolist()
        tokens = result.tokens.tolist()
        events: list[tuple[str, GenerationEvent]] = []
        row = 0  # among the rows that wanted a token; they come in the order of the work
        for work in plan.work:
            token_row = row
            row += work.samples
            choice = self._choices.get(work.sequence)
            if choice is None:
                continue  # another choice of its request failed in this very step
            if work.sequence.slot in failed:
                self._fail(choice.request, NonFiniteError("the model produced a value that is not finite"))
                continue
            self._scheduler.advance(work, tokens[token_row : token_row + work.samples])
            if work.samples:
                event = self._new_token(choice, tokens[token_row], result, token_row, now)
                events.append((choice.request.message.request_id, event))
        return events

    def _new_token(self, choice: _Choice, token: int, result: StepResult, row: int, now: float) -> GenerationEvent:
        request = choice.request
        request.completion_tokens += 1
        request.passes += 1
        if request.first_token < 0:
            request.first_token = now
        is_last = len(choice.sequence.output) >= choice.sequence.max_tokens
        text, finish_reason = choice.output.add(token, is_last=is_last)
        logprobs = None
        if request.message.logprobs and not choice.output.is_end(token):
            count = request.message.sampling.top_logprobs
            top_ids = result.top_tokens[row, :count].tolist()
            top_logprobs = result.top_logprobs[row, :count].tolist()
            logprobs = [token_logprob(self._tokenizer, token, float(result.logprobs[row]), top_ids, top_logprobs)]
        if finish_reason is None:
            return GenerationEvent(choice.index, [token], text, logprobs)
        request.live.remove(choice)
        self._release(choice, keep=True)
        summary = None
        if not request.live:
            del self._requests[request.message.request_id]
            summary = self._account(request, now)
        return GenerationEvent(choice.index, [token], text, logprobs, finish_reason, summary)

    @staticmethod
    def _account(request: _Request, now: float) -> Summary:
        """What was done for a request until now, its end; where there is no token yet, a part of its prompt."""
        admitted = request.admitted if request.admitted >= 0 else now
        first_token = request.first_token if request.first_token >= 0 else now
        if request.passes:
            stored = len(request.prompt)
        else:
            stored = max(choice.sequence.prompt_stored for choice in request.live)
        # What the cache gave to a request that computed nothing was of no use to it.
        is_begun = stored > request.cached_tokens
        return Summary(
            prompt_tokens=stored if is_begun else 0,
            cached_tokens=request.cached_tokens if is_begun else 0,
            completion_tokens=request.completion_tokens,
            queue_seconds=admitted - request.arrived,
            prefill_seconds=first_token - admitted,
            decode_seconds=now - first_token,
            ttft_seconds=first_token - request.arrived if request.passes else 0.0,
            passes=request.passes,
        )

    def _fail(self, request: _Request, error: UltrafastError) -> None:
        self._abandon(request, keep=False)
        self._failures.append((request.message.request_id, error))

    def _release(self, choice: _Choice, *, keep: bool) -> None:
        """Free the sequence, its slot and its blocks; the choice is over.

        ``keep``: the blocks remember what was computed.
        """
        sequence = choice.sequence
        if sequence.slot >= 0:
            self._model.release(sequence.slot)
        self._scheduler.finish(sequence, keep=keep)
        del self._choices[sequence]

    def forget_prefixes(self) -> None:
        """Forget what ended sequences have left for the prompts to come: the next one is computed whole."""
        self._scheduler.admission.cache.clear()

    def warm_up(self) -> None:
        """Touch every page a step touches, measure a first prefill, and settle the memory of what lives forever.

        From then on chunks of prefill are sized by the measured rate: on a slow machine a stream still flows beside a
        prompt.
        """
        room = self._model.context - _WARM_UP_TOKENS
        # The first run meets cold pages; the second is the measure, and for a large model a short one.
        started = self._clock()
        self._rehearse(min(_SHORTEST_WARM_UP_TOKENS, room))
        longest = int(_SHORTEST_WARM_UP_TOKENS * _WARM_UP_SECONDS / max(self._clock() - started, 1e-6))
        self._rehearse(min(max(_SHORTEST_WARM_UP_TOKENS, longest), _WARM_UP_PROMPT_TOKENS, room))
        memory.settle()

    def _rehearse(self, prompt_tokens: int) -> None:
        """Run one request and measure its prefill; a context of a few tokens has no room for that."""
        if prompt_tokens < 1:
            return
        self._scheduler.costs = StepCosts(self._model.max_rows)
        greedy = SamplingParameters(temperature=0.0)
        self.add(GenerationRequest("warm-up", [0] * prompt_tokens, greedy, _WARM_UP_TOKENS, ignore_end=True))
        while self.has_work:
            self.step()
        self.forget_prefixes()
