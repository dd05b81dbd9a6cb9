"""The steps of a fixture: what the recorded session did, one line a step, without replaying it."""

from __future__ import annotations

from collections.abc import Iterator

from agentobs.records.exchanges import Place, ToolExchange, WorldExchange
from agentobs.sink import Record
from replay.aligning import safe
from replay.fixture import Fixture, as_recording
from replay.trajectory import trajectory


def steps_of(fixture: Fixture) -> list[str]:
    """Return the lines of a fixture's trajectory, with how the session ended as the last one."""
    header = fixture.header
    end = f"end {header['outcome']} {safe(header['reason'] or '')}".rstrip()
    return [*trajectory(records_of(fixture)).splitlines(), end]


def records_of(fixture: Fixture) -> Iterator[Record]:
    """Yield the exchanges of a fixture as if they had just been recorded, without times."""
    yield from as_recording(fixture).exchanges
    for tool in fixture.tools:
        place = Place(fixture.name, None, tool.lane, tool.turn)
        yield ToolExchange(place, 0, 0, tool.question, tool.answer)
    for told in fixture.world:
        place = Place(fixture.name, None, told.lane, told.turn)
        yield WorldExchange(place, 0, 0, told.question, told.answer)
