"""`ultrafast serve`: OpenAI's API on a port of this machine."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from ultrafast.cli import options

__all__ = ["serve"]


def _host(name: str) -> str:
    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise typer.BadParameter(
            "no such address; name one of this machine's, such as 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    return name


def serve(
    *,
    host: Annotated[
        str, typer.Option("--host", parser=_host, metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            parser=options.whole_number(0, 65535),
            metavar="N",
            help="Port; 0 takes a free one and says which.",
        ),
    ] = 8000,
    model: options.Model = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            "--alias",
            metavar="NAME",
            help="Another name that requests may use for the model; may be repeated. Default: gpt-5.6-sol.",
        ),
    ] = None,
    threads: options.Threads = None,
    context: options.Context = None,
    chat_template: options.ChatTemplate = None,
    quantize: options.Quantize = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask for no key; on loopback addresses only.")] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host", metavar="NAME", help="Another host name of this server, a proxy's say; may be repeated."
        ),
    ] = None,
) -> None:
    """Serve the model with OpenAI's API until Ctrl-C or a SIGTERM; answers in progress may then end.

    The key is that of ULTRAFAST_API_KEY; without it, one is made and shown, or kept in a file of your own.
    """
    from ultrafast.cli.progress import download_progress
    from ultrafast.gateway.catalogue import DEFAULT_ALIASES
    from ultrafast.gateway.server import ServeOptions
    from ultrafast.gateway.server import serve as serve_until_signalled

    chosen = ServeOptions(
        host=host,
        port=port,
        model=model,
        aliases=DEFAULT_ALIASES if alias is None else tuple(options.text_of_argument(name) for name in alias),
        threads=threads,
        context=context,
        chat_template=chat_template,
        instruction_set=options.forced_instruction_set(),
        quantize=quantize,
        require_key=not no_auth,
        allowed_hosts=tuple(allowed_host or ()),
    )
    with download_progress() as progress:
        serve_until_signalled(chosen, progress=progress)
