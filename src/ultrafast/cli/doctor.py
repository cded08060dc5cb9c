"""`ultrafast doctor`: what the machine allows, what is used of it, and how near the model runs to the limit."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ultrafast.cli import options, output

if TYPE_CHECKING:
    from ultrafast.backends.base import ModelDescription
    from ultrafast.bench.machine import Machine
    from ultrafast.cli.session import Session

__all__ = ["doctor"]

PROMPT_TOKENS = 16
ANSWER_TOKENS = 64
MEASUREMENTS = 3
ENOUGH_SECONDS = 3.0  # on a slow machine, no further measurement is begun after this
BANDWIDTH_SECONDS = 0.5
# Beyond the last-level cache of nearly every machine, so that it is memory that is measured.
MEMORY_BYTES = 512 * 2**20


def doctor(
    *,
    model: options.Model = None,
    threads: options.Threads = None,
    context: options.Context = None,
    quantize: options.Quantize = None,
    as_json: options.Json = False,
) -> None:
    """Examine this machine and the model's speed on it.

    Shows the CPU, its caches, the instruction set chosen and why, threads and huge pages; measures read bandwidth;
    and compares the tokens per second it measures with what that bandwidth would allow.
    """
    import msgspec

    from ultrafast.bench.machine import describe_machine
    from ultrafast.cli.progress import loading
    from ultrafast.cli.session import Session

    machine = describe_machine()
    with Session(model, threads=threads, context=context, quantize=quantize) as session, loading("measuring"):
        description = session.model
        bandwidth = _bandwidth(description)
        speed = _speed(description, bandwidth["model_bytes_per_second"], _measured_rate(session))
    record = {
        "machine": msgspec.to_builtins(machine),
        "instruction_set": _instruction_set(description.instruction_set),
        "read_bandwidth": bandwidth,
        "model": msgspec.to_builtins(description),
        "speed": speed,
    }
    if as_json:
        output.write(json.dumps(record, ensure_ascii=False, indent=2) + "\n")
        return
    for name, value in _lines(machine, description, record):
        output.write(f"{name:<18}{value}\n")


def _instruction_set(chosen: str) -> dict[str, Any]:
    """Which instruction set runs, which could, and why it is this one."""
    from ultrafast import _native

    available = _native.instruction_sets()
    if options.forced_instruction_set() is not None:
        why = "forced by ULTRAFAST_INSTRUCTION_SET"
    elif len(available) == 1:
        why = "the CPU or the system lacks AVX2, FMA or F16C; slow, with the same bits"
    else:
        why = "the fastest that both CPU and system offer"
    return {"chosen": chosen, "available": available, "why": why}


def _bandwidth(description: ModelDescription) -> dict[str, Any]:
    """Bytes a second that the engine's threads could read: from memory, and over a set of the model's size."""
    from ultrafast import _native

    threads, cpus = description.threads, description.cpus
    return {
        "threads": threads,
        "memory_bytes_per_second": _native.measure_read_bandwidth(threads, cpus, MEMORY_BYTES, BANDWIDTH_SECONDS),
        # A small model may stay in the cache from token to token; this set has the same chance.
        "model_bytes_per_second": _native.measure_read_bandwidth(
            threads, cpus, description.weight_bytes_per_token, BANDWIDTH_SECONDS
        ),
    }


def _measured_rate(session: Session) -> float:
    """Tokens per second of decoding: the median of a few answers of fixed length."""
    from ultrafast.cli.session import timings
    from ultrafast.models.sampling import SamplingParameters

    # Any tokens do: the work does not depend on which they are.
    prompt = [index % session.model.vocabulary_size for index in range(100, 100 + PROMPT_TOKENS)]
    rates: list[float] = []
    started = time.monotonic()
    while len(rates) < MEASUREMENTS and (not rates or time.monotonic() - started < ENOUGH_SECONDS):
        sampling = SamplingParameters(temperature=0)
        stream = session.generate(prompt, sampling=sampling, max_tokens=ANSWER_TOKENS, ignore_end=True)
        with closing(stream):
            rates += [timings(event.summary)["decode_tokens_per_second"] for event in stream if event.summary]
    return statistics.median(rates)


def _speed(description: ModelDescription, bytes_per_second: float, measured: float) -> dict[str, float]:
    """What reading every byte once a token would allow, and what was measured."""
    history = min(description.context, PROMPT_TOKENS + ANSWER_TOKENS // 2)
    bytes_per_token = description.weight_bytes_per_token + history * description.kv_bytes_per_token
    predicted = bytes_per_second / bytes_per_token
    return {
        "bytes_per_token": bytes_per_token,
        "predicted_tokens_per_second": predicted,
        "measured_tokens_per_second": measured,
        "share_of_limit": measured / predicted,
    }


def _lines(machine: Machine, description: ModelDescription, record: dict[str, Any]) -> list[tuple[str, str]]:
    instruction_set, bandwidth, speed = record["instruction_set"], record["read_bandwidth"], record["speed"]
    caches = ", ".join(
        f"L{cache.level} {_size(cache.size_bytes)}"
        + (f" shared by {cache.shared_by_cpus}" * (cache.shared_by_cpus > 1))
        for cache in machine.caches
    )
    others = ", ".join(name for name in instruction_set["available"] if name != description.instruction_set)
    flags = ", ".join(machine.cpu_flags)
    return [
        ("CPU", f"{machine.cpu_model}, {machine.usable_cpus:g} of {machine.logical_cpus} CPUs usable"),
        ("CPU features", flags or "none of those asked for"),
        ("Caches", caches or "unknown"),
        ("Instruction set", f"{description.instruction_set}: {instruction_set['why']}"),
        ("", f"also available: {others or 'none'}"),
        ("Threads", f"{description.threads}, {_pinning(description.cpus)}"),
        ("Huge pages", f"{_size(description.huge_page_bytes)} of {_size(description.weight_bytes)} of weights"),
        ("Model", f"{description.name}, {description.architecture}, context {description.context:,} tokens"),
        *(("", line) for line in description.quantisation),
        ("Read bandwidth", f"{bandwidth['memory_bytes_per_second'] / 1e9:.1f} GB/s from memory,"),
        ("", f"{bandwidth['model_bytes_per_second'] / 1e9:.1f} GB/s over a set of the model's size"),
        ("Bytes per token", f"{speed['bytes_per_token'] / 1e6:.1f} MB, {_residence(machine, description)}"),
        ("Predicted", f"{speed['predicted_tokens_per_second']:.0f} tokens/s, reading each byte once a token"),
        ("Measured", f"{speed['measured_tokens_per_second']:.1f} tokens/s, {ANSWER_TOKENS} after {PROMPT_TOKENS}"),
        ("Share of limit", f"{speed['share_of_limit']:.0%}"),
    ]


def _pinning(cpus: list[int]) -> str:
    return f"pinned to CPUs {', '.join(map(str, cpus))}" if cpus else "not pinned (not allowed here)"


def _residence(machine: Machine, description: ModelDescription) -> str:
    largest = max((cache.size_bytes for cache in machine.caches), default=0)
    if not largest:
        return "cache size unknown"
    if description.weight_bytes_per_token <= largest:
        return f"which fits the {_size(largest)} cache"
    return f"more than the {_size(largest)} cache: read from memory"


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
