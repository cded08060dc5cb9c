"""The verbs put together, and every way a command can end turned into one line and an exit code."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from ultrafast.cli import (
    backends,
    bench,
    capacity,
    chat,
    doctor,
    keys,
    models,
    options,
    output,
    preview,
    projects,
    run,
    serve,
    usage,
)
from ultrafast.errors import UltrafastError

__all__ = ["app", "execute"]

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141

# Plain help: it is also the documentation (docs/cli.md), and it reads the same in a terminal, a pipe and a file.
app = typer.Typer(
    name="ultrafast",
    help="A language model on this machine, for the terminal and behind OpenAI's API.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
# Further words are taken so that `run` itself can say what to do about them.
app.command("run", short_help="Answer one prompt.", context_settings={"allow_extra_args": True})(run.run)
app.command("chat", short_help="Talk with the model.")(chat.chat)
app.command("serve", short_help="Serve OpenAI's API on this machine.")(serve.serve)
app.add_typer(projects.app, name="projects", short_help="List, create and change projects.")
app.add_typer(keys.app, name="keys", short_help="List, create and revoke API keys.")
app.add_typer(preview.app, name="preview", short_help="Say which projects may use the tier ultrafast.")
app.add_typer(capacity.app, name="capacity", short_help="Show and set the tiers' slots.")
app.command("backends", short_help="Show the backends' state.")(backends.backends)
app.add_typer(usage.app, name="usage", short_help="Show what was used, and what it costs.")
app.add_typer(models.app, name="models", short_help="Fetch, list, inspect and remove models.")
app.command("doctor", short_help="Examine this machine and the speed on it.")(doctor.doctor)
app.add_typer(bench.app, name="bench", short_help="Measure our engine beside its peers.")


def _print_version(wanted: bool) -> None:
    if wanted:
        output.write(f"ultrafast {version('ultrafast')}\n")
        raise typer.Exit


@app.callback()
def _ultrafast(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A language model on this machine, for the terminal and behind OpenAI's API."""


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run one command (default: that of ``sys.argv``) and return its exit code; errors are one line on stderr."""
    try:
        output.prepare_streams()
        code = _invoke(arguments)
        output.flush()
    except output.OutputClosed:
        return EXIT_OUTPUT_CLOSED
    except UltrafastError as error:
        output.error(str(error))
        return error.exit_code
    return code


def _hint(error: typer.TyperException) -> str:
    """What helps with a common slip; typer does not export the classes of these errors."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    verb = None if context is None else context.command.name
    if verb == "run" and option is not None and not re.fullmatch(r"--[a-z-]+", option):
        return '; a prompt that begins with - goes in quotes after --, as in: ultrafast run -- "-1 + 3?"'
    extra = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", error.format_message(), re.DOTALL)
    if verb in ("serve", "chat") and extra:
        given = extra[1], extra[1].partition(" ")[0]
        model = next((shlex.quote(path) for path in given if options.is_model_path(path)), "NAME|PATH")
        return f"; a model is named by --model, as in: ultrafast {verb} --model {model}"
    return ""


def _invoke(arguments: Sequence[str] | None) -> int:
    try:
        # Typer returns the code of `Exit` and of an interrupt, and nothing for a command that ran to its end.
        code = app(arguments, prog_name="ultrafast", standalone_mode=False)
    except typer.TyperException as error:
        # No sub-command given: the exception's own message is the whole help.
        help_text = error.format_message()
        if help_text.startswith("Usage:"):
            output.note(help_text)
        else:
            output.error(help_text + _hint(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except (UltrafastError, output.OutputClosed):
        raise
    except Exception as error:  # the last line of defence: a person sees a line, a developer may ask for more
        # Help that could not be written is still in the buffer: then this fails again, and says what it is.
        output.flush()
        if os.environ.get("ULTRAFAST_DEBUG") == "1":
            traceback.print_exc(file=sys.stderr)
        output.error(f"internal error ({type(error).__name__}); ULTRAFAST_DEBUG=1 shows where; please report it")
        return EXIT_FAILED
    return code if isinstance(code, int) else 0
