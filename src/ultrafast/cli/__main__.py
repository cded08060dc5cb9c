"""`python -m ultrafast.cli`: the same as the `ultrafast` command."""

import sys

from ultrafast.cli import main

if __name__ == "__main__":
    sys.exit(main())
