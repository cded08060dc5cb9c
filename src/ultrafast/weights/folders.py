"""What a folder that a person names stands for: the one model in it, or files that are told apart one by one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from ultrafast.errors import ModelError
from ultrafast.weights.gguf import gguf_models
from ultrafast.weights.huggingface import ADAPTER_NAME, CONFIGURATION_NAME, entry_names, is_model
from ultrafast.weights.safetensors import INDEX_NAME, WEIGHTS_NAME
from ultrafast.weights.source import Complaints, shown

# Whoever has one of these means the folder as a whole.
_DESCRIBING: Final = (
    *(CONFIGURATION_NAME, ADAPTER_NAME, WEIGHTS_NAME, INDEX_NAME),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
)
_SNAPSHOTS: Final = "snapshots"
_REPOSITORY_PREFIX: Final = "models--"
_MAX_REVISION_BYTES: Final = 100


def model_path(path: Path) -> Path:
    """The file or folder to open for ``path``.

    A repository's folder in the Hugging Face hub's own cache stands for its snapshot, a folder with one GGUF model and
    no other for that file. Raises ``ModelNotFoundError`` for a folder that cannot be read, ``UnsupportedModelError``
    for a repository of several snapshots of which none is the main one.
    """
    if not _is_directory(path):
        return path
    path = _snapshot(path)
    names = entry_names(path)
    gguf = gguf_models(names)
    alone = len(gguf) == 1 and not is_model(names) and ADAPTER_NAME not in names
    return path / gguf[0][0] if alone else path


def model_name(directory: Path) -> str:
    """What the model in a folder goes by: the folder's name, or the repository's where it is a snapshot of one."""
    repository = directory.parent.parent.name
    if directory.parent.name == _SNAPSHOTS and repository.startswith(_REPOSITORY_PREFIX):
        return repository.rpartition("--")[2] or directory.name
    return directory.name


def _snapshot(directory: Path) -> Path:
    """What the hub's cache has of the repository in that folder; any other folder as it is."""
    repository = directory.absolute()
    if repository.name == _SNAPSHOTS:
        repository = repository.parent
    if not repository.name.startswith(_REPOSITORY_PREFIX) or not (repository / _SNAPSHOTS).is_dir():
        return directory
    revisions = sorted(entry_names(repository / _SNAPSHOTS))
    main = ""
    reference = repository / "refs" / "main"
    if reference.is_file():  # opening a pipe would wait for its writer
        with suppress(OSError), reference.open("rb") as file:
            main = file.read(_MAX_REVISION_BYTES).decode("ascii", "replace").strip()
    if main in revisions:
        return repository / _SNAPSHOTS / main
    if len(revisions) > 1:
        Complaints(directory).unsupported(
            f"a repository of the hub's cache in {len(revisions)} versions: name the folder of one, such as "
            f"{shown(repository / _SNAPSHOTS / revisions[0])}"
        )
    return repository / _SNAPSHOTS / revisions[0] if revisions else directory


def collected_files(path: str) -> list[str]:
    """The files and folders in a folder that is a collection, not a model; none for anything else."""
    directory = Path(path)
    if not path or not _is_directory(directory):
        return []
    try:
        names = entry_names(directory)
        if model_path(directory) != directory or is_model(names):
            return []
    except ModelError:
        return []
    gguf = gguf_models(names)
    if not gguf and not names.isdisjoint(_DESCRIBING):
        return []
    parts = {name for group in gguf for name in group[1:]}
    return [str(directory / name) for name in sorted(names - parts) if not name.startswith(".")]


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a path that cannot be
        return False
