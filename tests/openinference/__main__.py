"""Writes docs/openinference.md; see `tests.openinference.comparison`.

python -m tests.openinference PYTHON      # PYTHON has openinference-instrumentation-anthropic

The exit code is 1 if a field is missing or different and `NOTES` does not say why.
"""

from __future__ import annotations

import sys

from tests.openinference.comparison import PAGE, compared, of_instrumentation, page


def main() -> int:
    """Write the page; return the exit code."""
    peer = of_instrumentation(sys.argv[1])
    comparison = compared(peer)
    PAGE.write_text(page(peer, comparison))
    for name, each in comparison.unexplained.items():
        print(f"{name}: {each.missing} missing, different: {each.different[:1]}", file=sys.stderr)
    print(f"wrote {PAGE.name}")
    return 1 if comparison.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
