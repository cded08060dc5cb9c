"""What a folder that a person names stands for: the one model in it, or files that are told apart one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ultrafast.errors import ModelNotFoundError
from ultrafast.weights.gguf import gguf_models
from ultrafast.weights.huggingface import ADAPTER_NAME, CONFIGURATION_NAME, entry_names, is_model
from ultrafast.weights.safetensors import INDEX_NAME, WEIGHTS_NAME

# Whoever has one of these means the folder as a whole.
_DESCRIBING: Final = (
    *(CONFIGURATION_NAME, ADAPTER_NAME, WEIGHTS_NAME, INDEX_NAME),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
)


def model_path(path: Path) -> Path:
    """The file or folder to open for ``path``: a folder with one GGUF model and no other stands for that file.

    Raises ``ModelNotFoundError`` for a folder that cannot be read.
    """
    if not _is_directory(path):
        return path
    names = entry_names(path)
    gguf = gguf_models(names)
    alone = len(gguf) == 1 and not is_model(names) and ADAPTER_NAME not in names
    return path / gguf[0][0] if alone else path


def collected_files(path: str) -> list[str]:
    """The files and folders in a folder that is a collection, not a model; none for anything else."""
    directory = Path(path)
    if not path or not _is_directory(directory):
        return []
    try:
        names = entry_names(directory)
    except ModelNotFoundError:
        return []
    gguf = gguf_models(names)
    if is_model(names) or len(gguf) == 1 or (not gguf and not names.isdisjoint(_DESCRIBING)):
        return []
    parts = {name for group in gguf for name in group[1:]}
    return [str(directory / name) for name in sorted(names - parts) if not name.startswith(".")]


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a path that cannot be
        return False
