"""`ultrafast run`: one answer to one prompt."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ultrafast.cli import options, output
from ultrafast.errors import ConfigurationError

if TYPE_CHECKING:
    from ultrafast.backends.base import GenerationEvent, Summary
    from ultrafast.cli.session import Session
    from ultrafast.models.sampling import SamplingParameters

__all__ = ["run"]


def run(
    arguments: typer.Context,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt; '-' reads it from standard input.")],
    *,
    model: options.Model = None,
    system: options.System = None,
    max_tokens: options.MaximumTokens = options.DEFAULT_MAXIMUM_TOKENS,
    temperature: options.Temperature = options.DEFAULT_TEMPERATURE,
    top_p: options.TopP = options.DEFAULT_TOP_P,
    seed: options.Seed = None,
    threads: options.Threads = None,
    context: options.Context = None,
    chat_template: options.ChatTemplate = None,
    quantize: options.Quantize = None,
    as_json: options.Json = False,
) -> None:
    """Answer one prompt; a base model, which has no chat template, continues it.

    The answer is streamed to standard output; then one line on standard error tells tokens, time to first token,
    tokens per second, and what cut the answer where something did.
    """
    if model is None and options.is_model_path(prompt):
        raise ConfigurationError(
            "the prompt is the path of a model, which is named by --model, as in: "
            f"ultrafast run --model {shlex.quote(options.text_of_argument(prompt))} PROMPT"
        )
    if arguments.args:
        raise ConfigurationError('the prompt is several words: put it in quotes, as in: ultrafast run "tell me a joke"')
    question = options.read_standard_input() if prompt == "-" else options.text_of_argument(prompt)
    if not question.strip():
        raise ConfigurationError("the prompt is empty")
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": options.text_of_argument(system)})

    from ultrafast.cli.session import Session
    from ultrafast.models.sampling import SamplingParameters

    sampling = SamplingParameters(
        temperature=temperature, top_p=top_p, seed=options.draw_seed() if seed is None else seed
    )
    with Session(model, threads=threads, context=context, chat_template=chat_template, quantize=quantize) as session:
        if session.can_chat:
            tokens = session.prompt_tokens(messages)
        elif system is None:
            tokens = session.text_tokens(question)
        else:
            raise ConfigurationError(
                "the model has no chat template, and so no place for --system; give one with --chat-template FILE"
            )
        _answer(session, tokens, sampling, max_tokens, as_json)


def _answer(
    session: Session, prompt_tokens: list[int], sampling: SamplingParameters, max_tokens: int, as_json: bool
) -> None:
    from ultrafast.cli.session import statistics_line

    events: list[GenerationEvent] = []
    text = ""
    with closing(session.generate(prompt_tokens, sampling=sampling, max_tokens=max_tokens)) as stream:
        for event in stream:
            events.append(event)
            text += event.text
            if not as_json:
                output.write(event.text)
    last = events[-1]
    assert last.summary is not None
    if as_json:
        output.write(json.dumps(_record(session, events, last.summary, sampling), ensure_ascii=False) + "\n")
        return
    if not text.endswith("\n"):
        output.write("\n")
    seed = sampling.seed if sampling.temperature > 0 else None
    notes = session.model.quantisation[:1]
    output.note(statistics_line(last.summary, seed=seed, notes=notes, cut=session.cut(last, max_tokens)))


def _record(
    session: Session, events: list[GenerationEvent], summary: Summary, sampling: SamplingParameters
) -> dict[str, object]:
    from ultrafast.cli.session import timings

    return {
        "model": session.model.name,
        "quantised_at_load": session.model.quantised_at_load,
        "text": "".join(event.text for event in events),
        "token_ids": [token for event in events for token in event.token_ids],
        "finish_reason": events[-1].finish_reason,
        "seed": sampling.seed,
        "usage": {
            "prompt_tokens": summary.prompt_tokens,
            "completion_tokens": summary.completion_tokens,
            "total_tokens": summary.prompt_tokens + summary.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": summary.cached_tokens},
        },
        "timings": timings(summary),
    }
