"""Start the worker named on the command line: ``python -P launch.py llama_cpp``.

``-P`` keeps this folder off the import path, where ``llama_cpp.py`` would hide the library of that name.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    importlib.import_module(f"peers.{sys.argv[1]}").main()
