"""Check that the installed SDK is new enough for the agent loop; recording also works with older versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from agentobs.errors import UsageError

NEEDED = (2, 12)
"""The first version of the SDK with all features that the agent loop uses."""


def check(found: str) -> None:
    """Check a version of the SDK.

    Raises:
        UsageError: the version is older than `NEEDED`.
    """
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise UsageError(
            f"the agent loop needs anthropic {needed} or newer, and {found} is installed; recording and replaying "
            "other agents works with it",
            where="agentobs.agent",
            todo=f"pip install 'anthropic>={needed}'",
        )


try:
    check(version("anthropic"))
except PackageNotFoundError:
    pass  # the import of the SDK fails with the name of the package
