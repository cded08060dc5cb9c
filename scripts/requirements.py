"""Print one requirement a line, read from pyproject.toml, so that the lists stand in one place.

python scripts/requirements.py build      what a build without isolation needs
python scripts/requirements.py EXTRA      the extra of that name
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    (wanted,) = sys.argv[1:]
    if wanted == "build":
        # scikit-build-core asks for these two by itself only when it builds in isolation.
        requirements = [*project["build-system"]["requires"], "cmake>=3.20", "ninja"]
    else:
        extras = project["project"]["optional-dependencies"]
        if wanted not in extras:
            sys.exit(f"error: no extra is called {wanted}; there are {', '.join(extras)}")
        requirements = extras[wanted]
    print("\n".join(requirements))


if __name__ == "__main__":
    main()
