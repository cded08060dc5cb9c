"""The small files of a Hugging Face directory, read with bounds: they are as untrusted as the weights beside them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, Final

from ultrafast.errors import ModelFileError
from ultrafast.weights.json_text import parse_object
from ultrafast.weights.source import Complaints

MAX_TOKENIZER_BYTES: Final = 64 << 20  # tokenizer.json; the largest vocabularies need about 34 MiB
MAX_SETTINGS_BYTES: Final = 16 << 20  # of each other file; added tokens listed one by one need about a MiB


def read_bounded(path: Path, limit: int) -> bytes | None:
    """The file's bytes, or None where there is none. Raises ``ModelFileError`` beyond ``limit`` or where unreadable."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path.name} is not a regular file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path.name} cannot be read") from error
    if len(data) > limit:
        raise ModelFileError(f"{path.name} is larger than {limit >> 20} MiB")
    return data


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is no file. Raises ``ModelFileError`` for anything else."""
    data = read_bounded(path, MAX_SETTINGS_BYTES)
    if data is None:
        return {}
    return parse_object(data, Complaints(path))


def read_chat_template(directory: Path) -> str | None:
    """The source of the directory's chat template, or None. Of several named ones, the one named "default"."""
    data = read_bounded(directory / "chat_template.jinja", MAX_SETTINGS_BYTES)
    if data is not None:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError("chat_template.jinja is not UTF-8") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = read_settings(directory / name).get("chat_template")
        if isinstance(template, list):
            named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
            template = named.get("default")
            if template is None:
                raise ModelFileError(f"{name} names several chat templates, but none of them default")
        if template is not None:
            if not isinstance(template, str):
                raise ModelFileError(f"the chat template in {name} is not a text")
            return template
    return None
