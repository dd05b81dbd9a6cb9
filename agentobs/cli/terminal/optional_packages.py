"""Errors about packages of extras that are not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from agentobs.errors import UsageError
from agentobs.installation import install_extra

_OWN_PACKAGES = ("agentobs", "dashboards", "exporters", "replay")


@contextlib.contextmanager
def needed_packages(part: str, extras: str) -> Iterator[None]:
    """Turn a missing package into an error that names what to install.

    Args:
        part: the part of agentobs that needs packages.
        extras: the extras that install them, separated by commas.

    Raises:
        UsageError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in _OWN_PACKAGES:
            raise
        raise UsageError(
            f"the package {error.name} is not installed",
            where=part,
            todo=f"Install what {part} needs: {install_extra(extras)}",
        ) from error
