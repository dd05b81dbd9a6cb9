"""Instants on the command line: `7d`, `2026-11-01`, `2026-11-01T12:30`, in the local time zone.

All output of one command is in one zone, the one that applies now, so that its name appears once and is correct for
each time. A time that the user types without an offset is in the same zone.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any

import click

from agentobs import world

_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MAX_NS = 2**63 - 1
"""The last instant that the store can represent, in the year 2262; later instants are clamped to it."""
_DURATION = re.compile(r"(\d{1,6})([mhdw])")


if TYPE_CHECKING:
    _Base = click.ParamType[int]
else:
    _Base = click.ParamType  # not generic before click 8.4


class When(_Base):
    """An instant in nanoseconds since 1970."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse an instant."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if duration := _DURATION.fullmatch(text):
            return max(
                world.now() - int(duration[1]) * _UNIT_SECONDS[duration[2]] * 1_000_000_000, 0
            )
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"invalid time: {text!r}. Use a duration before now (30m, 12h, 7d, 2w) or a local "
                "time (2026-11-01, 2026-11-01T12:30; with Z it is UTC)",
                param,
                ctx,
            )
        at = at if at.tzinfo else at.replace(tzinfo=zone())
        since = at - datetime(1970, 1, 1, tzinfo=UTC)
        ns = (since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) * 1000
        return min(max(ns, 0), _MAX_NS)


WHEN = When()


def zone() -> tzinfo:
    """Return the local time zone with the offset that applies now."""
    here = datetime.fromtimestamp(world.now() // 1_000_000_000, UTC).astimezone().tzinfo
    assert here is not None
    return here


def zone_name() -> str:
    """Return the short name of the local time zone, such as `CET` or `UTC`."""
    return zone().tzname(None) or "local"


def local_instant(ns: int | None) -> str | None:
    """Format nanoseconds since 1970 as `2026-11-21 22:45:23` in the local time zone."""
    if ns is None:
        return None
    return datetime.fromtimestamp(ns // 1_000_000_000, zone()).strftime("%Y-%m-%d %H:%M:%S")
