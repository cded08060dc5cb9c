"""The models this server answers for: the real one and its aliases."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import msgspec

from ultrafast.backends.base import Backend, ModelDescription
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.failures import HttpError
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


class Catalogue:
    """Every name a request may use. Responses always name the real model."""

    def __init__(self, backend: Backend, aliases: Iterable[str] = DEFAULT_ALIASES) -> None:
        self._backend = backend
        self._aliases = tuple(dict.fromkeys(aliases))

    def resolve(self, name: str) -> ModelObject:
        """The model behind ``name``. Raises HttpError 404; EngineUnavailableError while it is unknown."""
        model = self._backend.model
        if name != model.name and name not in self._aliases:
            names = " or ".join(f"'{known}'" for known in (model.name, *self._aliases))
            raise HttpError(
                HTTPStatus.NOT_FOUND,
                f"this server has no model of that name: ask for {names}",
                code="model_not_found",
                param="model",
            )
        return _model_object(model)

    def all(self) -> ModelList:
        """The one real model."""
        model = self._backend.model
        return ModelList([_model_object(model)])


def _model_object(model: ModelDescription) -> ModelObject:
    return ModelObject(model.name, model.created, quantised_at_load=model.quantised_at_load or msgspec.UNSET)
