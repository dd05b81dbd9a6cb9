"""Select the warnings of agentobs, because garbage of an earlier test may cause other warnings at any time."""

from __future__ import annotations

import warnings
from collections.abc import Iterable


def own_warnings(warned: Iterable[warnings.WarningMessage]) -> list[str]:
    """Return the texts of the warnings of agentobs, in order."""
    return [str(each.message) for each in warned if str(each.message).startswith("agentobs: ")]
