"""Errors about packages of extras that are not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from agentobs.errors import UsageError
from agentobs.installation import install_extra

_OWN_PACKAGES = ("agentobs", "dashboards", "exporters", "replay")


@contextlib.contextmanager
def needed_packages(part: str, extras: str) -> Iterator[None]:
    """Turn a missing or broken package into an error that names what to install.

    Args:
        part: the part of agentobs that needs packages.
        extras: the extras that install them, separated by commas.

    Raises:
        UsageError: a package is missing or cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        name = (error.name or "").split(".")[0]
        if name in _OWN_PACKAGES:
            raise
        raise UsageError(
            f"the package {name} is not installed"
            if isinstance(error, ModuleNotFoundError)
            else f"a package cannot be imported: {error}",
            where=part,
            todo=f"Install what {part} needs: {install_extra(extras)}",
        ) from error
