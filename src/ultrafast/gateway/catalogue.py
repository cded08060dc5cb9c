"""The models this server answers for, as requests name them and lists show them."""

from __future__ import annotations

import msgspec

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.schema import MAXIMUM_NAME_LETTERS

DEFAULT_ALIASES = ("gpt-5.6-sol",)


def check_alias(alias: str) -> None:
    """Raise ConfigurationError unless ``alias`` is a name that a request can ask for and a line can show."""
    if not 0 < len(alias) <= MAXIMUM_NAME_LETTERS or not alias.isprintable() or any(map(str.isspace, alias)):
        raise ConfigurationError(
            f"an alias (--alias) must have 1 to {MAXIMUM_NAME_LETTERS} printable characters and no spaces"
        )


class ModelObject(msgspec.Struct, frozen=True):
    """A model as ``/v1/models`` lists it."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "ultrafast"
    quantised_at_load: str | msgspec.UnsetType = msgspec.UNSET  # only where the weights are not the file's own


class ModelList(msgspec.Struct, frozen=True):
    """The response of ``/v1/models``."""

    data: list[ModelObject]
    object: str = "list"
