"""Snapshots of the agent's actions, for syrupy: one line per step, then events, costs and the last text.

    def test_path(replay, trajectory):
        replay.run()
        assert replay == trajectory

Snapshots do not depend on the time, the machine or the user of the replay. Costs are calculated with the prices on the
day of the recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from agentobs.ledger import cost_of
from agentobs.provider.registry import dialect_of, message_of
from agentobs.records.exchanges import ModelExchange
from agentobs.records.facts import Event, InteractionEnd
from agentobs.records.usage import Usage
from agentobs.redaction import redact
from agentobs.sink import Record
from replay.comparison.alignment import safe
from replay.fixture.fixture_steps import records_of
from replay.fixture.format import Fixture
from replay.fixture.trajectory import trajectory
from replay.playback.replayer import Replayer


class TrajectoryExtension(SingleFileSnapshotExtension):
    """Keeps each trajectory in a separate text file."""

    _write_mode = WriteMode.TEXT
    file_extension = "steps"

    def serialize(self, data: Any, **options: Any) -> str:
        """Return a replay, or a fixture, as the lines of its trajectory; text is returned unchanged."""
        if isinstance(data, Replayer):
            return snapshot_text(data.records, data.fixture.header.get("recorded_on"))
        if isinstance(data, Fixture):
            return snapshot_text(records_of(data), data.header.get("recorded_on"))
        return str(data)


def snapshot_text(records: Iterable[Record], day: str | None) -> str:
    """Return the agent's actions, one line per step.

    Args:
        records: what the agent emitted.
        day: the day whose prices are used, as an ISO date; None to omit the costs.
    """
    emitted = list(records)
    models = [each for each in emitted if isinstance(each, ModelExchange)]
    models.sort(key=lambda each: (each.place.lane != "main", each.place.lane))
    lines = [*_events(emitted), *_costs(models, day), *_last_text(models)]
    rest = redact("".join(f"{line}\n" for line in lines).encode("utf-8", "replace")).decode()
    return trajectory(emitted) + rest


def _events(records: list[Record]) -> Iterator[str]:
    """Yield the agent's events by lane and turn, grouped by kind, then how its interactions ended."""
    found = Counter(
        (each.lane != "main", each.lane, each.turn or 0, each.kind, each.label or "")
        for each in records
        if isinstance(each, Event)
    )
    ended = [each for each in records if isinstance(each, InteractionEnd)]
    if found or ended:
        yield "events"
    for (_, lane, turn, kind, label), count in sorted(found.items()):
        times = f"  {count} times" if count > 1 else ""
        yield f"  {_where(lane, turn)}  {kind} {label}".rstrip() + times
    for end in sorted(ended, key=lambda e: (e.lane != "main", e.lane or "")):
        yield f"  {_where(end.lane or 'main', 0)}  interaction ended: {end.result}"


def _costs(models: list[ModelExchange], day: str | None) -> Iterator[str]:
    """Yield the cost of each response, and the sum; unknown prices are reported and never counted as zero."""
    priced = [(each, rows) for each in models if (rows := _billed(each))]
    if day is None or not priced:
        return
    yield f"money at the prices of {day}"
    total, unknown = Decimal(0), 0
    numbers: Counter[str] = Counter()
    for exchange, rows in priced:
        lane = exchange.place.lane
        numbers[lane] += 1
        # Responses are counted, because the turns of foreign agents are known only in a recording.
        place = f"{'' if lane == 'main' else safe(lane) + ' '}answer {numbers[lane]}"
        for row in rows:
            usd = cost_of(row, _noon(day)).usd
            total, unknown = total + (usd or 0), unknown + (usd is None)
            yield f"  {place}  {safe(row.model)}  {_usd(usd)}"
    rest = f" and {unknown} without a known price" if unknown else ""
    yield f"  total  {_usd(total)}{rest}"


def _billed(exchange: ModelExchange) -> list[Usage]:
    dialect = dialect_of(exchange.question.path)
    facts = dialect.facts(exchange.answer)
    if facts.usage is None:
        return []
    rows = dialect.usage(exchange.question, exchange.answer, facts, None)
    return [row for row in rows if row.billed]


def _last_text(models: list[ModelExchange]) -> Iterator[str]:
    """Yield the lines of the complete text of the agent's last response that contains text."""
    texts = [_text(each) for each in models if each.place.lane == "main"]
    text = next((text for text in reversed(texts) if text), "")
    if text:
        yield "text"
        yield from (f"  {safe(line)}".rstrip() for line in text.splitlines())


def _text(exchange: ModelExchange) -> str:
    message = message_of(exchange.question.path, exchange.answer)
    return "".join(block.text for block in message.blocks if block.kind == "text")


def _where(lane: str, turn: int) -> str:
    named = f"turn {turn}" if turn else ""
    return " ".join(part for part in ("" if lane == "main" else safe(lane), named) if part) or lane


def _usd(usd: Decimal | None) -> str:
    return "price unknown" if usd is None else f"${usd.normalize():f}"


def _noon(day: str) -> int:
    noon = datetime.combine(date.fromisoformat(day), time(12), UTC)
    return int(noon.timestamp()) * 1_000_000_000
