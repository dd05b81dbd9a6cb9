"""Selects the warnings of agentobs, because garbage collection after another test may cause further warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable


def own_warnings(warned: Iterable[warnings.WarningMessage]) -> list[str]:
    """Return the texts of the warnings of agentobs, in order."""
    return [str(each.message) for each in warned if str(each.message).startswith("agentobs: ")]
