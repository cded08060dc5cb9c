"""Model files: finding and fetching them, and reading them with distrust."""

from __future__ import annotations

from pathlib import Path

from ultrafast.weights.folders import model_path
from ultrafast.weights.gguf import open_gguf
from ultrafast.weights.huggingface import CONFIGURATION_NAME, LORA, open_directory
from ultrafast.weights.source import Complaints, ModelSource, shown

__all__ = ["ModelSource", "open_model"]


def open_model(path: str | Path, *, any_type: bool = False) -> ModelSource:
    """Open the model at ``path``: a GGUF file, any part of a split one, a Hugging Face directory, or a folder
    that stands for one of them.

    Raises the ``ModelError`` kinds, each with one line that says what the path is and what to do. With ``any_type``,
    what this version cannot run is opened too: it is how a model is inspected.
    """
    path = model_path(Path(path))
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # a path that cannot be: the reader says so
        is_directory = is_file = False
    if is_directory:
        return open_directory(path, any_type=any_type)
    if is_file and path.suffix == ".safetensors":
        whole = f"weights without their description: name the folder in which they and {CONFIGURATION_NAME} lie"
        if ((folder := path.absolute().parent) / CONFIGURATION_NAME).is_file():
            whole = f"weights without their description, which lies beside them: name the folder, {shown(folder)}"
        Complaints(path).unsupported(LORA if path.name.startswith("adapter_") else whole)
    return open_gguf(path, any_type=any_type)
