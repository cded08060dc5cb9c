"""`ultrafast serve`: OpenAI's API on a port of this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from ultrafast.cli import options
from ultrafast.cli.administration import DataDirectory

__all__ = ["serve"]


def _host(name: str) -> str:
    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise typer.BadParameter(
            "no such address; name one of this machine's, such as 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    return name


Configuration = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Routes, tiers, limits and prices (TOML); read again at SIGHUP. Options given here come first.",
    ),
]
ShowConfiguration = Annotated[
    bool, typer.Option("--show-config", help="Print the configuration that would be served by, and end.")
]
Host = Annotated[
    str | None,
    typer.Option("--host", parser=_host, metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1."),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        parser=options.whole_number(0, 65535),
        metavar="N",
        help="Port; 0 takes a free one and says which. Default: 8000.",
    ),
]
Alias = Annotated[
    list[str] | None,
    typer.Option(
        "--alias",
        metavar="NAME",
        help="Another name that requests may use for the model; may be repeated. Default: gpt-5.6-sol.",
    ),
]
NoAuth = Annotated[bool, typer.Option("--no-auth", help="Ask for no key; on loopback addresses only.")]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host", metavar="NAME", help="Another host name of this server, a proxy's say; may be repeated."
    ),
]


def serve(
    *,
    config: Configuration = None,
    show_config: ShowConfiguration = False,
    host: Host = None,
    port: Port = None,
    data_directory: DataDirectory = None,
    model: options.Model = None,
    alias: Alias = None,
    threads: options.Threads = None,
    context: options.Context = None,
    chat_template: options.ChatTemplate = None,
    quantize: options.Quantize = None,
    no_auth: NoAuth = False,
    allowed_host: AllowedHost = None,
) -> None:
    """Serve the model with OpenAI's API until Ctrl-C or a SIGTERM; answers in progress may then end.

    The key is that of ULTRAFAST_API_KEY; without it, one is made and shown, or kept in a file of your own.
    """
    from ultrafast.cli.output import write
    from ultrafast.cli.progress import download_progress
    from ultrafast.gateway.configuration_overrides import Overrides
    from ultrafast.gateway.server import ServeOptions
    from ultrafast.gateway.server import serve as serve_until_signalled

    overrides = Overrides(
        host=host,
        port=port,
        data_directory=None if data_directory is None else str(data_directory),
        alias=None if alias is None else tuple(options.text_of_argument(name) for name in alias),
        allowed_host=None if allowed_host is None else tuple(allowed_host),
        model=model,
        threads=threads,
        context=context,
        chat_template=None if chat_template is None else str(chat_template),
        quantize=quantize,
    )
    chosen = ServeOptions(
        configuration_file=config,
        overrides=overrides,
        instruction_set=options.forced_instruction_set(),
        require_key=not no_auth,
    )
    if show_config:
        write(chosen.shown())
        return
    with download_progress() as progress:
        serve_until_signalled(chosen, progress=progress)
