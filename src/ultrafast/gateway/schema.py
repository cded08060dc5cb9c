"""The request of ``POST /v1/chat/completions``: what is accepted, within which limits.

The rules, fields and limits are documented in ``docs/api.md``.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from ultrafast.backends.base import ChatRequest, SamplingParameters
from ultrafast.errors import RequestError
from ultrafast.gateway.fields import Fields, is_number
from ultrafast.gateway.tiers import read_tier

DEFAULT_MAX_TOKENS: Final = 1024  # or what the context leaves, where that is less
MAXIMUM_MAX_TOKENS: Final = 1 << 24
MAXIMUM_CHOICES: Final = 16
MAXIMUM_MESSAGES: Final = 4096
MAXIMUM_STOP_STRINGS: Final = 16
MAXIMUM_STOP_LETTERS: Final = 256
MAXIMUM_BIASED_TOKENS: Final = 1024
MAXIMUM_TOP_LOGPROBS: Final = 20
MAXIMUM_METADATA: Final = (16, 64, 512)  # pairs, letters of a key, letters of a value
MAXIMUM_NAME_LETTERS: Final = 256

# Drawn seeds are exact in every JSON reader, those that know only doubles included.
_DRAWN_SEED_BITS: Final = 53
_SEED_MASK: Final = (1 << 64) - 1

_ROLES: Final = ("system", "developer", "user", "assistant")
_NOT_SERVED: Final = (
    "audio",
    "chat_template",
    "chat_template_kwargs",
    "function_call",
    "functions",
    "parallel_tool_calls",
    "tool_choice",
    "tools",
    "verbosity",
    "web_search_options",
)
_WITHOUT_EFFECT: Final = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")


def parse_chat_request(body: dict[str, Any], vocabulary_size: int) -> ChatRequest:
    """Validate ``body``. Raises RequestError naming the field at fault."""
    fields = Fields(body)
    model = fields.string("model", MAXIMUM_NAME_LETTERS)
    if not model:
        raise fields.missing("model")
    fields.refuse(_NOT_SERVED, "is not supported by this server")
    seed = fields.integer("seed", -(1 << 63), _SEED_MASK)
    if seed is None:
        seed = secrets.randbits(_DRAWN_SEED_BITS)
    logprobs = fields.boolean("logprobs")
    stream = fields.boolean("stream")
    _read_ignored(fields)
    request = ChatRequest(
        model=model,
        messages=_read_messages(fields),
        sampling=_read_sampling(fields, vocabulary_size, seed, logprobs),
        seed=seed,
        choices=fields.integer("n", 1, MAXIMUM_CHOICES) or 1,
        max_tokens=_read_max_tokens(fields),
        stop=_read_stop(fields),
        logprobs=logprobs,
        stream=stream,
        include_usage=_read_stream_options(fields, stream),
        tier=read_tier(fields),
    )
    fields.end()
    return request


def _read_sampling(fields: Fields, vocabulary_size: int, seed: int, logprobs: bool) -> SamplingParameters:
    top_logprobs = fields.integer("top_logprobs", 0, MAXIMUM_TOP_LOGPROBS)
    if top_logprobs is not None and not logprobs:
        raise fields.wrong("top_logprobs", "needs 'logprobs' to be true")
    return SamplingParameters(
        temperature=fields.number("temperature", 0, 2, 1.0),
        # vLLM's clients switch top-k off by -1, llama.cpp's by 0.
        top_k=max(0, fields.integer("top_k", -1, vocabulary_size) or 0),
        top_p=fields.number("top_p", 0, 1, 1.0),
        min_p=fields.number("min_p", 0, 1, 0.0),
        repetition_penalty=fields.number("repetition_penalty", 0.01, 10, 1.0),
        presence_penalty=fields.number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=fields.number("frequency_penalty", -2, 2, 0.0),
        logit_bias=_read_logit_bias(fields, vocabulary_size),
        seed=seed & _SEED_MASK,
        top_logprobs=top_logprobs or 0,
    )


def _read_logit_bias(fields: Fields, vocabulary_size: int) -> dict[int, float]:
    value = fields.raw("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAXIMUM_BIASED_TOKENS:
        raise fields.wrong("logit_bias", f"must be an object of at most {MAXIMUM_BIASED_TOKENS} token ids")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        # isdecimal alone would take the digits of every script; the length bound keeps int() cheap.
        token_id = int(key) if key.isascii() and key.isdecimal() and len(key) <= 10 else -1
        if not 0 <= token_id < vocabulary_size or token_id in biases:
            raise fields.wrong("logit_bias", f"must have token ids from 0 to {vocabulary_size - 1} as keys, each once")
        if not is_number(bias, -100, 100):
            raise fields.wrong("logit_bias", "must have numbers from -100 to 100 as values")
        biases[token_id] = float(bias)
    return biases


def _read_max_tokens(fields: Fields) -> int | None:
    old = fields.integer("max_tokens", 1, MAXIMUM_MAX_TOKENS)
    new = fields.integer("max_completion_tokens", 1, MAXIMUM_MAX_TOKENS)
    if old is not None and new is not None and old != new:
        raise fields.wrong("max_tokens", "differs from 'max_completion_tokens': give one of them")
    return old if new is None else new


def _read_stop(fields: Fields) -> list[str]:
    value = fields.raw("stop")
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > MAXIMUM_STOP_STRINGS
        or not all(isinstance(stop, str) and 0 < len(stop) <= MAXIMUM_STOP_LETTERS for stop in stops)
    ):
        raise fields.wrong(
            "stop", f"must be a string, or at most {MAXIMUM_STOP_STRINGS}, of 1 to {MAXIMUM_STOP_LETTERS} characters"
        )
    return stops


def _read_stream_options(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise fields.wrong("stream_options", "needs 'stream' to be true")
    include_usage = options.boolean("include_usage")
    options.boolean("include_obfuscation")  # there is nothing to hide the size of: accepted, without effect
    options.end()
    return include_usage


def _read_ignored(fields: Fields) -> None:
    """Fields that are checked and change nothing."""
    for name in _WITHOUT_EFFECT:
        fields.string(name, MAXIMUM_METADATA[2])
    fields.boolean("store")
    _read_metadata(fields)
    _read_prediction(fields)
    response_format = fields.object("response_format")
    if response_format is not None:
        if response_format.raw("type") is None:
            raise response_format.missing("type")
        if response_format.raw("type") != "text":
            raise RequestError(
                "'response_format' must have the type 'text' on this server",
                param="response_format",
                code="unsupported_parameter",
            )
        response_format.end()
    if fields.raw("modalities") not in (None, ["text"]):
        raise RequestError(
            "'modalities' must be [\"text\"] on this server", param="modalities", code="unsupported_parameter"
        )


def _read_metadata(fields: Fields) -> None:
    value = fields.raw("metadata")
    pairs, key_letters, value_letters = MAXIMUM_METADATA
    if value is None:
        return
    if (
        not isinstance(value, dict)
        or len(value) > pairs
        or not all(len(key) <= key_letters for key in value)
        or not all(isinstance(item, str) and len(item) <= value_letters for item in value.values())
    ):
        raise fields.wrong(
            "metadata", f"must have at most {pairs} keys of {key_letters} characters, with strings of {value_letters}"
        )


def _read_prediction(fields: Fields) -> None:
    """A prediction can make an answer faster, never different; so checking its form is all that correctness needs."""
    prediction = fields.object("prediction")
    if prediction is None:
        return
    if prediction.raw("type") is None:
        raise prediction.missing("type")
    if prediction.raw("type") != "content":
        raise prediction.wrong("type", "must be 'content'")
    if _read_content(prediction) is None:
        raise prediction.missing("content")
    prediction.end()


def _read_messages(fields: Fields) -> list[dict[str, str]]:
    value = fields.raw("messages")
    if value is None:
        raise fields.missing("messages")
    if not isinstance(value, list) or not 1 <= len(value) <= MAXIMUM_MESSAGES:
        raise fields.wrong("messages", f"must be a list of 1 to {MAXIMUM_MESSAGES} messages")
    messages = []
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise fields.wrong(f"messages[{index}]", "must be an object")
        messages.append(_read_message(Fields(item, f"messages[{index}]")))
    return messages


def _read_message(fields: Fields) -> dict[str, str]:
    role = fields.raw("role")
    if role in ("tool", "function"):
        raise RequestError(
            f"'{fields.named('role')}' is of a tool, and tools are not supported by this server",
            param=fields.named("role"),
            code="unsupported_parameter",
        )
    if role is None:
        raise fields.missing("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise fields.wrong("role", f"must be one of: {', '.join(_ROLES)}")
    content = _read_content(fields)
    name = fields.string("name", MAXIMUM_NAME_LETTERS)
    if role == "assistant":  # an earlier answer, sent back as it was received
        fields.refuse(("audio", "function_call", "tool_calls"), "is not supported by this server")
        fields.raw("refusal")
        fields.raw("annotations")
    fields.end()
    if content is None:
        raise fields.missing("content")
    # Templates of open models know no developer; it is the newer word for the same thing.
    message = {"role": "system" if role == "developer" else role, "content": content}
    if name is not None:
        message["name"] = name
    return message


def _read_content(fields: Fields) -> str | None:
    """A string, or text parts, which are joined without a separator."""
    value = fields.raw("content")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise fields.wrong("content", "must be a string or a list of text parts")
    texts = []
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise fields.wrong(f"content[{index}]", "must be an object")
        part = Fields(item, fields.named(f"content[{index}]"))
        kind = part.raw("type")
        if kind is None:
            raise part.missing("type")
        if kind != "text":
            raise RequestError(
                f"'{part.named('type')}' must be 'text' on this server",
                param=part.named("type"),
                code="unsupported_parameter",
            )
        text = part.raw("text")
        if text is None:
            raise part.missing("text")
        if not isinstance(text, str):
            raise part.wrong("text", "must be a string")
        part.end()
        texts.append(text)
    return "".join(texts)
