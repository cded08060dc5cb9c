"""Where the files of a user are: directories by the rules of the platform, and what names another place."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from ultrafast.errors import ConfigurationError

CONFIGURATION_VARIABLE: Final = "ULTRAFAST_CONFIG"  # names the server's file, and that file its data directory


def user_directory(chosen: str | None, *, variable: str, shared: str, home: str, apple: str) -> Path:
    """``chosen`` where it says something, else this program's folder in the user's directory of this kind.

    That is ``$shared`` (a name such as XDG_CACHE_HOME) or, in the home directory, ``home`` or on macOS ``apple``.
    ``variable`` is what a person can set instead. Raises ConfigurationError where there is no home directory.
    """
    if chosen:
        try:
            return Path(chosen).expanduser().absolute()
        except RuntimeError as error:
            raise ConfigurationError(f"{variable} begins with ~, but there is no such home directory") from error
    parent = os.environ.get(shared, "")
    if Path(parent).is_absolute():  # a relative one is to be ignored, says the XDG specification
        return Path(parent) / "ultrafast"
    try:
        return Path.home() / (apple if sys.platform == "darwin" else home) / "ultrafast"
    except RuntimeError as error:
        raise ConfigurationError(f"there is no home directory; set {variable}") from error
