"""`evalcrate` and `python -m entrypoint`: the only place that exits."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line and exits with its code; a reader that closes its end early is no error."""
    from entrypoint.cli import run_command

    try:
        code = run_command(sys.argv[1:], os.environ)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 141
    sys.exit(code)


if __name__ == "__main__":
    main()
