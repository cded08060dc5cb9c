"""Options that several verbs share, each defined once, and the checks the type alone does not make."""

from __future__ import annotations

import math
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from ultrafast.errors import ConfigurationError

__all__ = [
    "DEFAULT_MAXIMUM_TOKENS",
    "DEFAULT_TEMPERATURE",
    "DEFAULT_TOP_P",
    "MAXIMUM_PROMPT_BYTES",
    "MAXIMUM_TOKENS",
    "ChatTemplate",
    "Context",
    "Json",
    "MaximumTokens",
    "Model",
    "Quantize",
    "Seed",
    "System",
    "Temperature",
    "Threads",
    "TopP",
    "draw_seed",
    "forced_instruction_set",
    "is_model_path",
    "lines_of_standard_input",
    "read_standard_input",
    "text_of_argument",
    "whole_number",
]

# What people know from other local programs; the API's default is OpenAI's (temperature 1).
DEFAULT_TEMPERATURE = 0.8
DEFAULT_TOP_P = 0.95
DEFAULT_MAXIMUM_TOKENS = 1024
MAXIMUM_THREADS = 256
MAXIMUM_TOKENS = 10_000_000
MAXIMUM_PROMPT_BYTES = 16_000_000
_MODEL_SUFFIXES = (".gguf", ".safetensors")


def whole_number(minimum: int, maximum: int, maximum_text: str | None = None) -> Callable[[str | int], int]:
    """A parser for an option; it refuses in plain words, where the option's type would name a string's parsing."""

    def parse(text: str | int) -> int:
        # At most 30 digits: Python refuses the conversion of thousands.
        if not re.fullmatch(r"[+-]?[0-9]{1,30}", str(text), re.ASCII) or not minimum <= int(text) <= maximum:
            raise typer.BadParameter(f"must be a whole number from {minimum} to {maximum_text or maximum}")
        return int(text)

    return parse


def _number(text: str | float) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # which no comparison lets pass


def _temperature(text: str | float) -> float:
    value = _number(text)
    if not 0 <= value <= 2:
        raise typer.BadParameter("must be a number from 0 to 2")
    return value


def _quantisation(text: str) -> str:
    # The engine checks it too; here it is refused before a model is fetched.
    from ultrafast.models.quantisation import QUANTISATIONS

    if text.lower() not in QUANTISATIONS:
        raise typer.BadParameter(f"must be {' or '.join(QUANTISATIONS)}")
    return text.lower()


def _share(text: str | float) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise typer.BadParameter("must be a number above 0 and at most 1")
    return value


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME|PATH",
        help="A known model's name, hf:ORG/REPO, a .gguf file or a model's folder. Default: smollm2-135m, downloaded "
        "at first use.",
    ),
]
System = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="The system message. Default: the model's own.")
]
MaximumTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        parser=whole_number(1, MAXIMUM_TOKENS),
        metavar="N",
        help="Stop after this many tokens, or where the context ends.",
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        "--temperature",
        parser=_temperature,
        metavar="X",
        help="From 0 to 2; 0 takes the likeliest token each time.",
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p",
        parser=_share,
        metavar="X",
        help="Sample among the likeliest tokens that together reach this probability; 1: among all.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        parser=whole_number(0, 2**64 - 1, "2**64 - 1"),
        metavar="N",
        help="The same seed gives the same answer. Default: a drawn one, which is reported.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        parser=whole_number(1, MAXIMUM_THREADS),
        metavar="N",
        help="Default: the CPUs this process may use.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        parser=whole_number(1, MAXIMUM_TOKENS),
        metavar="TOKENS",
        help="Tokens one conversation may hold. Default: what the model and the memory allow.",
    ),
]
ChatTemplate = Annotated[
    Path | None,
    typer.Option(
        "--chat-template",
        metavar="FILE",
        help="A Jinja chat template, for a model without one or in place of its own.",
    ),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        "--quantize",
        parser=_quantisation,
        metavar="TYPE",
        help="Quantise a float model at load, to q8_0 or q4_1: less memory and faster, with other answers.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def draw_seed() -> int:
    """A seed that is short enough to be typed again."""
    return secrets.randbits(32)


def forced_instruction_set() -> str | None:
    """The instruction set of ``ULTRAFAST_INSTRUCTION_SET``, or None; the engine refuses one the CPU lacks."""
    return os.environ.get("ULTRAFAST_INSTRUCTION_SET") or None


def is_model_path(argument: str) -> bool:
    """Whether a word of the command line is the path of something that would be named as a model."""
    path = Path(argument)
    try:
        return (path.suffix.lower() in _MODEL_SUFFIXES and path.is_file()) or (path / "config.json").is_file()
    except (OSError, ValueError):  # no path at all
        return False


def text_of_argument(argument: str) -> str:
    """A command-line argument as text: bytes that were not UTF-8 become U+FFFD."""
    return os.fsencode(argument).decode("utf-8", errors="replace")


def read_standard_input() -> str:
    """All of standard input as text, up to a limit.

    Raises:
        ConfigurationError: there is no standard input, it is not UTF-8 or holds more than ``MAXIMUM_PROMPT_BYTES``.
    """
    if sys.stdin is None:
        raise ConfigurationError("the prompt is '-', but standard input is closed")
    return _text_of_input(sys.stdin.buffer.read(MAXIMUM_PROMPT_BYTES + 1), 0)


def lines_of_standard_input() -> Iterator[str]:
    """The lines of standard input as they come, without their ends; none where it is closed.

    Raises:
        ConfigurationError: a line is not UTF-8 or holds more than ``MAXIMUM_PROMPT_BYTES``.
    """
    offset = 0
    while sys.stdin is not None and (data := sys.stdin.buffer.readline(MAXIMUM_PROMPT_BYTES + 1)):
        yield _text_of_input(data, offset).rstrip("\r\n")
        offset += len(data)


def _text_of_input(data: bytes, offset: int) -> str:
    if len(data) > MAXIMUM_PROMPT_BYTES:
        raise ConfigurationError(f"a prompt on standard input holds more than {MAXIMUM_PROMPT_BYTES // 10**6} MB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"standard input is not UTF-8 text: byte {offset + error.start} (from 0) does not belong; convert it first"
        ) from None
