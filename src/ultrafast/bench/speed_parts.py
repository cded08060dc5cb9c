"""The parts of ``bench speed``: what each measures, and the promises it is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ultrafast.bench import speed_measures as measures
from ultrafast.bench.results import Bar, SpeedPart
from ultrafast.weights.store import DEFAULT_MODEL

if TYPE_CHECKING:
    from ultrafast.bench.speed_measures import Measurements, Stage

STANDARD: Final = "standard"
_GEMMA: Final = "gemma3-270m"


@dataclass(frozen=True)
class Promise:
    """A bar on the median of ``measurement``, for one model, or with ``None`` for whatever is measured."""

    title: str
    limit: float
    measurement: str
    at_least: bool = True
    model: str | None = DEFAULT_MODEL


@dataclass(frozen=True)
class Part:
    """``load`` says what was done. A promise whose measurement needs a peer that is absent is not judged."""

    name: str
    measure: Callable[[Stage], Measurements]
    load: Callable[[Stage], str]
    promises: tuple[Promise, ...]

    def result(self, stage: Stage) -> SpeedPart:
        """Measure it."""
        found = self.measure(stage)
        bars = [
            Bar(promise.title, promise.limit, found[promise.measurement].median, promise.at_least)
            for promise in self.promises
            if promise.model in (None, stage.known_model) and promise.measurement in found
        ]
        return SpeedPart(self.name, self.load(stage), found, bars)


PARTS: Final = {
    part.name: part
    for part in (
        Part(
            STANDARD,
            measures.standard,
            measures.standard_load,
            (
                Promise("decode ÷ llama.cpp's", 2.2, "decode_gain_over_llama-cpp"),
                Promise("decode ÷ llama.cpp's", 2.5, "decode_gain_over_llama-cpp", model=_GEMMA),
                Promise("prefill ÷ llama.cpp's", 5.0, "prefill_gain_over_llama-cpp"),
                Promise("TTFT, times sooner than llama.cpp", 4.5, "ttft_gain_over_llama-cpp"),
                Promise("time per token ÷ (weights ÷ bandwidth)", 1.11, "time_over_limit", at_least=False),
            ),
        ),
        Part(
            "prompt",
            measures.prompt,
            measures.prompt_load,
            (Promise("TTFT of a long prompt, times sooner than llama.cpp", 3.0, "ttft_gain_over_llama-cpp"),),
        ),
        Part(
            "pass",
            measures.passes,
            measures.passes_load,
            (
                Promise(
                    "pass of 4 tokens ÷ llama.cpp's of one", 0.50, "pass_of_4_over_llama-cpp_token", at_least=False
                ),
                Promise(
                    "pass of 8 tokens ÷ llama.cpp's of one", 0.85, "pass_of_8_over_llama-cpp_token", at_least=False
                ),
            ),
        ),
        Part(
            "kernels",
            measures.kernels,
            measures.kernels_load,
            (
                Promise("products with 4 tokens from cache, GMAC/s of a core", 58.0, "linear_gmac_per_second"),
                Promise("attention of 4 rows, GMAC/s of a core", 27.0, "attention_gmac_per_second"),
            ),
        ),
        Part(
            "history",
            measures.history,
            measures.history_load,
            (Promise("decode after a long history ÷ after a short one", 0.6, "long_over_short"),),
        ),
        Part(
            "batch",
            measures.batch,
            measures.batch_load,
            (Promise("output of 8 streams ÷ of one", 3.5, "together_over_alone"),),
        ),
        Part(
            "q4_0",
            measures.q4_0,
            measures.q4_0_load,
            (
                Promise("decode ÷ llama.cpp's of Q4_0", 1.7, "decode_gain_over_llama-cpp"),
                Promise("prefill ÷ llama.cpp's of Q4_0", 2.3, "prefill_gain_over_llama-cpp"),
            ),
        ),
        *(
            Part(
                f"random-{size}",
                partial(measures.random_weights, size=size),
                partial(measures.random_weights_load, size=size),
                (
                    Promise(f"decode of {title} ÷ llama.cpp's", 1.5, "decode_gain_over_llama-cpp", model=None),
                    Promise(f"share of the bandwidth, {title}", 0.85, "bandwidth_share", model=None),
                ),
            )
            for size, title in (("1.1b", "1.1 B weights"), ("8b", "8 B weights"))
        ),
        Part(
            "start",
            measures.start,
            measures.start_load,
            (Promise("seconds from start to first token", 1.0, "start_to_first_token_seconds", at_least=False),),
        ),
    )
}
