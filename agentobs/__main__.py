"""Entry point of the command `agentobs`, and of `python -m agentobs`, which is the same."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are imported ends it without a traceback."""
    try:
        from agentobs.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
