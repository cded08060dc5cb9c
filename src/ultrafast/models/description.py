"""From an open model to its checked description and its tensors: where both formats and all architectures meet."""

from __future__ import annotations

from ultrafast.models.architectures import architecture_of
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.facts import Facts
from ultrafast.models.tensors import TensorSource
from ultrafast.weights import ModelSource


def describe(source: ModelSource) -> tuple[ModelConfiguration, TensorSource]:
    """What the model is, and its tensors by the names of GGUF.

    Raises ``UnsupportedModelError`` for an architecture or a variant this version cannot run, ``ModelFileError`` where
    the metadata is missing, wrong or contradicts itself.
    """
    architecture = architecture_of(source)
    facts = Facts(source, architecture.name or architecture.model_types[0], architecture.defaults)
    configuration = architecture.read(facts)
    return configuration, TensorSource(source, architecture, facts.taken)
