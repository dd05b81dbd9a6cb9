"""The value of the option `--home`."""

from __future__ import annotations

from typing import Any

import click


def home_option(context: click.Context) -> Any:
    """Return the home given on the command line, or None."""
    return context.find_root().obj
