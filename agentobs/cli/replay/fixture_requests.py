"""How the requests of a fixture ended, counted as those of a stored session are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agentobs.store.analysis.lane_names import AUXILIARY
from agentobs.store.analysis.unfinished_turns import UnfinishedTurns, of_outcomes

if TYPE_CHECKING:
    from replay.divergence.session_diff import Part
    from replay.fixture.format import Fixture

_Request = tuple[str, int | None, int | None]
"""A request: its lane and its turn, and its number if it has no turn."""


def turns_of_fixture(fixture: Fixture, parts: Sequence[Part]) -> tuple[int, UnfinishedTurns | None]:
    """Return the number of turns of a fixture, and of those without a complete response, as in the view `turns`."""
    endings: dict[tuple[str, int], str] = {}
    for (lane, turn, _), ending in _endings(fixture, parts):
        if turn is None or AUXILIARY.search(lane):
            continue
        if endings.get((lane, turn)) != "ok":
            endings[lane, turn] = ending
    cut = [each for each in endings.values() if each not in ("ok", "cancelled")]
    return list(endings.values()).count("ok"), of_outcomes(cut)


def failed_requests_of_fixture(fixture: Fixture, parts: Sequence[Part]) -> int:
    """Return the number of requests of a fixture of which all attempts failed, as in `internal/failed_requests`."""
    attempts: dict[_Request, list[str]] = {}
    for request, ending in _endings(fixture, parts):
        attempts.setdefault(request, []).append(ending)
    return sum(not {"ok", "cancelled", "crashed"} & set(each) for each in attempts.values())


def _endings(fixture: Fixture, parts: Sequence[Part]) -> Iterator[tuple[_Request, str]]:
    """Yield how each attempt of a fixture ended, `ok` if its response is complete, after its request."""
    requests = [part for part in parts if part.kind == "request"]
    for ask, part in zip(fixture.requests, requests, strict=True):
        is_complete = ask.answer.ending == "complete" and part.outcome == "ok"
        request = ask.lane, ask.turn, ask.number if ask.turn is None else None
        yield request, "ok" if is_complete else ask.answer.ending
