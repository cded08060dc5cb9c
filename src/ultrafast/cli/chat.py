"""`ultrafast chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from ultrafast.cli import options, output
from ultrafast.errors import ConfigurationError, ContextLengthError, EngineError

if TYPE_CHECKING:
    from ultrafast.backends.base import GenerationEvent
    from ultrafast.cli.session import Session

__all__ = ["chat"]

EXIT_UNANSWERED = 1
HELP = """\
/help    this text
/reset   forget the conversation and begin a new one
/exit    leave (also Ctrl-D)
Ctrl-C stops an answer, not the program."""


def chat(
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
) -> None:
    """Talk with the model; each line is a message, and the conversation so far is remembered.

    Ctrl-C stops an answer, Ctrl-D ends. With standard input from a file or a pipe, each line is answered in turn; the
    exit code is 1 where one of them was not.
    """
    from ultrafast.cli.session import Session

    with Session(model, threads=threads, context=context, chat_template=chat_template, quantize=quantize) as session:
        if not session.can_chat:
            raise ConfigurationError(
                "the model has no chat template; give one with --chat-template FILE, or let `run` continue a text"
            )
        conversation = Conversation(
            session, system=system, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
        )
        if _interactive():
            facts = ", ".join([f"context {session.model.context} tokens", *session.model.quantisation])
            output.note(f"{session.model.name}, {facts}. /help lists the commands.")
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - line editing and recall; kept in memory only
            while _take_turn(conversation):
                pass
            return
        for line in options.lines_of_standard_input():
            if not _command(line, conversation):
                break
        if conversation.unanswered:
            raise typer.Exit(EXIT_UNANSWERED)


def _interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and output.stdout_is_terminal()


def _take_turn(conversation: Conversation) -> bool:
    """Take one line of a person; False ends the chat."""
    try:
        line = options.text_of_argument(input(">>> "))
        return _command(line, conversation)
    except EOFError:
        output.write("\n")
        return False
    except KeyboardInterrupt:
        output.note("\nCtrl-D or /exit leaves.")
        return True


def _command(line: str, conversation: Conversation) -> bool:
    """Obey a command or answer a message; False ends the chat."""
    match line.strip():
        case "":
            pass
        case "/exit" | "/quit" | "/bye":
            return False
        case "/help" | "/?":
            output.note(HELP)
        case "/reset":
            conversation.reset()
            output.note("A new conversation.")
        case command if command.startswith("/") and " " not in command and command.count("/") == 1:
            output.note(f"No such command: {output.one_line(command)[:40]}. /help lists them.")
        case _:
            conversation.answer(line)
    return True


class Conversation:
    """The messages so far and the way the next answer is drawn."""

    def __init__(
        self,
        session: Session,
        *,
        system: str | None,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> None:
        self._session = session
        self._system = system
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._top_p = top_p
        self._seed = seed
        self.unanswered = 0  # messages that were refused or failed
        self.reset()

    def reset(self) -> None:
        """Forget every message but the system message."""
        self._messages: list[dict[str, str]] = []
        if self._system is not None:
            self._messages.append({"role": "system", "content": options.text_of_argument(self._system)})

    def answer(self, question: str) -> None:
        """Stream the answer to ``question`` and remember both; an interrupt ends the answer where it is."""
        from ultrafast.cli.session import statistics_line

        messages = [*self._messages, {"role": "user", "content": question}]
        try:
            text, last = self._stream(messages)
        except ContextLengthError as error:
            self.unanswered += 1
            output.error(f"{error}; /reset begins a new conversation")
            return
        except EngineError as error:
            # The engine restarts by itself; the question was not answered and is not part of the conversation.
            self.unanswered += 1
            output.error(str(error))
            return
        self._messages = [*messages, {"role": "assistant", "content": text}]
        output.write("\n" if text.endswith("\n") and _interactive() else "\n\n" if _interactive() else "\n")
        if last is None or last.summary is None:
            return
        cut = self._session.cut(last, self._max_tokens)
        if _interactive():
            output.note(statistics_line(last.summary, cut=cut) + "\n")
        elif cut is not None:
            output.note(f"the answer was {cut}")

    def _stream(self, messages: list[dict[str, str]]) -> tuple[str, GenerationEvent | None]:
        from ultrafast.models.sampling import SamplingParameters

        sampling = SamplingParameters(
            temperature=self._temperature,
            top_p=self._top_p,
            seed=options.draw_seed() if self._seed is None else self._seed,
        )
        tokens = self._session.prompt_tokens(messages)
        text = ""
        last = None
        try:
            with closing(self._session.generate(tokens, sampling=sampling, max_tokens=self._max_tokens)) as stream:
                for event in stream:
                    text += event.text
                    last = event
                    output.write(event.text)
        except KeyboardInterrupt:
            if not _interactive():
                raise
        return text, last
