"""What an operator says of a backend. Values and their bounds; each field describes itself for the documentation."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

MAXIMUM_SECONDS: Final = 86_400
MAXIMUM_CONCURRENT: Final = 65_536

Seconds = Annotated[float, Meta(gt=0, le=MAXIMUM_SECONDS)]
Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class EngineSettings(msgspec.Struct, frozen=True, tag_field="kind", tag="engine", forbid_unknown_fields=True):
    """A backend that is our own engine; ``None`` lets the loader choose."""

    model: Annotated[Text | None, Meta(description="as `--model`: a name, `hf:…`, a file or folder")] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=256)] | None,
        Meta(description="as `--threads`; needed where there are several engines"),
    ] = None
    context: Annotated[Annotated[int, Meta(ge=1, le=10_000_000)] | None, Meta(description="as `--context`")] = None
    chat_template: Annotated[Text | None, Meta(description="as `--chat-template`: a file")] = None
    quantize: Annotated[Text | None, Meta(description="as `--quantize`")] = None


class UpstreamSettings(msgspec.Struct, frozen=True, tag_field="kind", tag="upstream", forbid_unknown_fields=True):
    """A backend that is any server with OpenAI's API."""

    url: Annotated[Text, Meta(description="its address with `/v1`: `http://` or `https://`, without a login")]
    model: Annotated[Text, Meta(description="the name it knows the model by")]
    key_variable: Annotated[Text | None, Meta(description="the environment variable that holds its key, or")] = None
    key_file: Annotated[Text | None, Meta(description="the file that holds it: your own, mode 0600, no link")] = None
    tiers: Annotated[
        dict[str, Text],
        Meta(description="tier → its word for it, sent as `service_tier`; for a tier that is not named, none is sent"),
    ] = {}
    omit: Annotated[
        tuple[Text, ...],
        Meta(description='request fields that it refuses and that are therefore not sent to it, such as `["seed"]`'),
    ] = ()
    connect_seconds: Annotated[Seconds, Meta(description="at most, to connect, and as long again for TLS")] = 2.0
    first_token_seconds: Annotated[
        Seconds,
        Meta(description="at most, from the request to the first token, waiting in the server's own queue included"),
    ] = 30.0
    idle_seconds: Annotated[Seconds, Meta(description="at most, from one token to the next")] = 30.0
    concurrent: Annotated[
        int, Meta(ge=1, le=MAXIMUM_CONCURRENT, description="requests at once; the next one goes to the next backend")
    ] = 64
