"""`ultrafast chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from ultrafast.cli import options, output
from ultrafast.errors import ContextLengthError, EngineError

if TYPE_CHECKING:
    from ultrafast.backends.base import Summary
    from ultrafast.cli.session import Session

__all__ = ["chat"]

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
) -> None:
    """Talk with the model; each line is a message, and the conversation so far is remembered.

    Ctrl-C stops an answer, Ctrl-D ends. With standard input from a file or a pipe, each line is answered in turn.
    """
    from ultrafast.cli.session import Session

    with Session(model, threads=threads, context=context) as session:
        conversation = Conversation(
            session, system=system, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
        )
        if _interactive():
            output.note(f"{session.model.name}, context {session.model.context} tokens. /help lists the commands.")
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - line editing and recall; kept in memory only
        while _take_turn(conversation):
            pass


def _interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and output.stdout_is_terminal()


def _take_turn(conversation: Conversation) -> bool:
    """Take one line; False ends the chat."""
    try:
        line = _next_line()
        return line is not None and _command(line, conversation)
    except KeyboardInterrupt:
        if not _interactive():
            raise
        output.note("\nCtrl-D or /exit leaves.")
        return True


def _next_line() -> str | None:
    """The next message, or None at the end of the input."""
    if not _interactive():
        # A message in a pipe has the same limit as a prompt; bytes that are not UTF-8 become U+FFFD.
        data = sys.stdin.buffer.readline(options.MAXIMUM_PROMPT_BYTES) if sys.stdin is not None else b""
        return data.decode("utf-8", errors="replace").rstrip("\r\n") if data else None
    try:
        return options.text_of_argument(input(">>> "))
    except EOFError:
        output.write("\n")
        return None


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
            text, summary = self._stream(messages)
        except ContextLengthError as error:
            output.error(f"{error}; /reset begins a new conversation")
            return
        except EngineError as error:
            # The engine restarts by itself; the question was not answered and is not part of the conversation.
            output.error(str(error))
            return
        self._messages = [*messages, {"role": "assistant", "content": text}]
        output.write("\n" if text.endswith("\n") and _interactive() else "\n\n" if _interactive() else "\n")
        if summary is not None and _interactive():
            output.note(statistics_line(summary, None) + "\n")

    def _stream(self, messages: list[dict[str, str]]) -> tuple[str, Summary | None]:
        from ultrafast.models.sampling import SamplingParameters

        sampling = SamplingParameters(
            temperature=self._temperature,
            top_p=self._top_p,
            seed=options.draw_seed() if self._seed is None else self._seed,
        )
        tokens = self._session.prompt_tokens(messages)
        text = ""
        summary = None
        try:
            with closing(self._session.generate(tokens, sampling=sampling, max_tokens=self._max_tokens)) as stream:
                for event in stream:
                    text += event.text
                    summary = event.summary or summary
                    output.write(event.text)
        except KeyboardInterrupt:
            if not _interactive():
                raise
        return text, summary
