"""What agentobs warned of, among all that was warned of meanwhile: garbage of an earlier test warns when it likes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable


def said(warned: Iterable[warnings.WarningMessage]) -> list[str]:
    """Return the texts of our own warnings, in their order."""
    return [str(each.message) for each in warned if str(each.message).startswith("agentobs: ")]
