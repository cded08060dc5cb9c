"""The command line: one file per verb, and `application` that puts them together."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Run the command of ``sys.argv`` and return its exit code.

    0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted, 141 the reader of the output went away.
    """
    try:
        # Under the guard, because an interrupt may also come while the libraries are being imported.
        from ultrafast.cli.application import execute

        return execute()
    except KeyboardInterrupt:
        return 130
