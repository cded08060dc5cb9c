"""The same work for every runtime, one after another, again and again."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from ultrafast.bench.provenance import measure_read_bandwidth
from ultrafast.bench.results import DECODE, METRICS, PREFILL, TTFT, RuntimeSpeed, Workload
from ultrafast.bench.statistics import paired_speedup, rotation, summarise
from ultrafast.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultrafast.bench.contest import Contest, Contestant, Progress
    from ultrafast.bench.results import Metric
    from ultrafast.bench.text import TextTokens

_WARM_UP_DECODE_TOKENS = 16


class Race:
    """The rounds of one benchmark and what they yield.

    With ``bandwidth`` every round of decoding also measures the machine's read bandwidth, which drifts as all else.
    """

    def __init__(
        self,
        contest: Contest,
        text: TextTokens,
        workload: Workload,
        rounds: int,
        progress: Progress,
        *,
        metrics: Sequence[Metric] = METRICS,
        bandwidth: bool = False,
    ) -> None:
        self._contest = contest
        self._text = text
        self._workload = workload
        self._rounds = rounds
        self._progress = progress
        self._metrics = metrics
        self._bandwidth = bandwidth
        self.bandwidth_samples: list[float] = []  # bytes per second
        self._samples: dict[str, dict[Metric, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._first_answers: dict[str, list[int]] = {}

    def run(self) -> None:
        """One round that does not count, then the rounds that do; in each, a different runtime goes first."""
        for metric in self._metrics:
            for index in range(self._rounds + 1):
                self._progress(f"{metric.title}: " + (f"round {index} of {self._rounds}" if index else "warm-up"))
                entrants = list(self._contest.contestants)
                if self._bandwidth and metric is DECODE and index:
                    self.bandwidth_samples.append(measure_read_bandwidth(entrants[0].report.threads))
                for turn in rotation(len(entrants), index):
                    self._take_turn(entrants[turn], metric, index)

    def runtimes(self) -> list[RuntimeSpeed]:
        """What was measured, ours first."""
        ours = self._contest.contestants[0].name
        return [self._runtime(contestant, ours) for contestant in self._contest.contestants]

    def _take_turn(self, contestant: Contestant, metric: Metric, index: int) -> None:
        try:
            value = self._measure(contestant, metric, index)
        except EngineError as error:
            if contestant is self._contest.contestants[0]:
                raise
            self._contest.drop(contestant, str(error))
            return
        if index:
            self._samples[contestant.name][metric].append(value)

    def _measure(self, contestant: Contestant, metric: Metric, index: int) -> float:
        worker, workload = contestant.worker, self._workload
        if metric is DECODE:
            count = workload.decode_tokens if index else _WARM_UP_DECODE_TOKENS
            timing = worker.decode(self._text.prompt(workload.decode_prompt_tokens, index), count)
            if index == 1:
                self._first_answers[contestant.name] = timing.tokens
            return count / timing.seconds
        if metric is PREFILL:
            return workload.prefill_tokens / worker.prefill(self._text.prompt(workload.prefill_tokens, index)).seconds
        assert metric is TTFT
        return worker.prefill(self._text.prompt(workload.ttft_prompt_tokens, index)).seconds

    def _runtime(self, contestant: Contestant, ours: str) -> RuntimeSpeed:
        mine, name = self._samples[ours], contestant.name
        speedup = {
            metric.key: paired_speedup(mine[metric], samples, higher_is_better=metric.higher_is_better)
            for metric, samples in self._samples[name].items()
            if name != ours
        }
        return RuntimeSpeed(
            name=name,
            versions=contestant.report.versions,
            detail=contestant.report.detail,
            threads=contestant.report.threads,
            load_seconds=contestant.report.load_seconds,
            idle_cpu_share=contestant.worker.idle_cpu_share,
            equal_tokens=equal_from_start(self._first_answers.get(ours, []), self._first_answers.get(name, [])),
            measurements={metric.key: summarise(samples) for metric, samples in self._samples[name].items()},
            speedup=speedup,
        )


def equal_from_start(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens agree before the first that does not."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
