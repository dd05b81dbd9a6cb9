"""Errors about packages of extras that are not installed."""

from __future__ import annotations

import contextlib
from typing import Any

from agentobs.errors import UsageError
from agentobs.installation import install_extra

_OWN_PACKAGES = ("agentobs", "dashboards", "exporters", "replay")


def needed_packages(part: str, extras: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a missing package becomes an error that names what to install.

    Args:
        part: the part of agentobs that needs packages.
        extras: the extras that install them, separated by commas.
    """

    @contextlib.contextmanager
    def needed() -> Any:
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

    return needed()
