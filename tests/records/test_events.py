"""The catalog lists all emitted events, and live and stored events are the same stream."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.collector import telemetry_events
from agentobs.errors import UsageError
from agentobs.records.backend import WrittenFact
from agentobs.records.event_catalog import (
    ROW_KINDS,
    TABLE_KINDS,
    LogEvent,
    event_of,
    kind_of,
)
from agentobs.records.event_sampling import is_kept
from agentobs.records.facts import TABLES, Event
from tests import queries
from tests.agent.scenarios import SCENARIOS, _record

ROOT = Path(__file__).parents[2]
NAMES = (
    "hook-rewriting", "doubled-ids", "tool-errors", "retries", "fallback-model", "steering", "agents",
    "agent-in-background", "summarized", "rules", "renamed-tool", "budget-of-the-session", "stopped-in-tool",
)  # fmt: skip
"""Scenarios that together emit most kinds of events."""


def emitted_kinds() -> Iterator[tuple[str, int, ast.expr]]:
    """Yield the file, the line and the expression for the kind of each event that the source emits."""
    for path in sorted((ROOT / "agentobs").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "telemetry.event" not in source and "Event(" not in source:
            continue  # parsing takes longer than searching
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            relative = path.relative_to(ROOT).as_posix()
            if name.endswith("telemetry.event"):
                yield relative, node.lineno, node.args[2]
            elif name == "Event":
                for each in node.keywords:
                    if each.arg == "kind":
                        yield relative, node.lineno, each.value


def test_every_emitted_kind_is_in_the_catalog() -> None:
    """Every kind of event that the source emits is in the catalog, and every kind in the catalog is emitted."""
    found = set()
    others = set()
    for path, _, kind in emitted_kinds():
        words = [
            each.value
            for each in ast.walk(kind)
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        found |= set(words)
        if not words:
            others.add(path)
    # A resumption emits one of two kinds; the other modules pass on a kind. The collector has a constant for its kind.
    assert others == {
        "agentobs/agent/sessions/resumption.py",
        "agentobs/agent/telemetry.py",
        "agentobs/importers/claude_code/session_records.py",
    }
    emitted = found | {"resumed", "forked", str(telemetry_events.KIND)}
    assert emitted == {name for name, kind in ROW_KINDS.items() if not kind.is_reserved}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[WrittenFact]]:
    """Return the home of recorded sessions of the agent loop, and the facts that a backend received."""
    folder, facts = tmp_path_factory.mktemp("rich"), list[WrittenFact]()
    options = agentobs.Options(backends=(agentobs.receiving(["*"], facts.append),))
    patch = pytest.MonkeyPatch()
    with patch.context():
        patch.setenv("AGENTOBS_HOME", str(folder / "home"))
        renamed = SCENARIOS["renamed-tool"]
        assert renamed.replayed_tools
        patch.setitem(
            SCENARIOS, "renamed-tool", dataclasses.replace(renamed, tools=renamed.replayed_tools)
        )
        agentobs.start(options=options)
        for name in NAMES:
            asyncio.run(_record(name, folder))
        assert agentobs.stop_recorder()
    patch.undo()
    return folder / "home", facts


@pytest.mark.slow
def test_events_have_the_fields_of_the_catalog(recorded: tuple[Path, list[WrittenFact]]) -> None:
    """Each event of the agent loop has only the numbers and labels that the catalog defines for its kind."""
    seen = set()
    for written in recorded[1]:
        if isinstance(event := written.fact, Event):
            kind = ROW_KINDS[event.kind]
            assert set(event.numbers) <= set(kind.numbers), event.kind
            assert set(event.labels or {}) <= set(kind.labels), event.kind
            assert (event.label is None) or kind.label, event.kind
            seen.add(str(event.kind))
    assert len(seen) >= 12, sorted(seen)


@pytest.mark.slow
def test_live_and_stored_events_are_the_same_stream(
    recorded: tuple[Path, list[WrittenFact]],
) -> None:
    """Each row of `event_log` equals the result of `event_of` for its fact, regardless of the fact's table."""
    home, facts = recorded
    live = {}
    for written in facts:
        if (logged := event_of(written.fact)) is not None:
            live[logged.session_id, written.sequence] = logged
    names = [field.name for field in dataclasses.fields(LogEvent)]
    rows = queries.query(f"SELECT session_sequence, {', '.join(names)} FROM event_log", home=home)
    stored = {(row[1], row[0]): LogEvent(*row[1:]) for row in rows}
    assert len(rows) == len(stored)
    assert stored == live
    assert {each.kind for each in live.values()} >= {
        "session", "session_end", "interaction", "interaction_end", "attempt", "tool_use", "tool",
        "permission", "world_answer", "hook", "retry", "compaction", "sub_agent",
    }  # fmt: skip


def test_each_table_has_at_most_one_kind_of_event(recorded: tuple[Path, list[WrittenFact]]) -> None:
    """Every table has at most one kind of event; spans and parts of an attempt are not events."""
    none = {TABLES[type(each.fact)] for each in recorded[1] if event_of(each.fact) is None}
    assert none == {"usage", "prefixes", "zones", "span_starts", "span_ends"} & none
    assert len({kind.fact for kind in TABLE_KINDS.values()}) == len(TABLE_KINDS)
    for kind in TABLE_KINDS.values():
        names = {field.name for field in dataclasses.fields(kind.fact)}
        assert {kind.at, kind.label or kind.at, *kind.numbers, *kind.labels} <= names


def test_every_event_of_a_turn_has_its_place(recorded: tuple[Path, list[WrittenFact]]) -> None:
    """Every event in a turn of the agent loop has an interaction, turn, lane, source, chain and depth."""
    inside = ("attempt", "tool_use", "tool", "permission", "hook", "retry", "rewritten")
    missing = Counter[str]()
    for written in recorded[1]:
        event = event_of(written.fact)
        if event is None or event.kind not in inside:
            continue
        place = (event.interaction_id, event.lane, event.query_source)
        missing[event.kind] += None in place
        if event.query_source in ("main", "sub_agent") and event.turn is not None:
            missing[event.kind] += None in (event.chain_id, event.depth)
    assert missing.total() == 0, missing


def test_the_outcome_of_calls(recorded: tuple[Path, list[WrittenFact]]) -> None:
    """Each call has one outcome, the sizes of its input and output, and both names of its tool."""
    rows = queries.query(
        """
        SELECT requested_name, tool, outcome, execution_outcome, requested_bytes, executed_bytes,
            coerced > 0, input_rewritten, result_bytes <> raw_result_bytes
        FROM tool_handling
        """,
        home=recorded[0],
    )
    outcomes = {row[2] for row in rows}
    assert outcomes >= {
        "executed",
        "substituted",
        "deduplicated",
        "invalid",
        "unknown",
        "denied",
        "aborted",
    }
    assert ("look", "look", "substituted", "executed", 14, 16, False, True, True) in rows
    # The name that the model called is an alias, which no request declares.
    renamed = [row for row in rows if row[1] == "search_orders"]
    assert any(
        row[0].startswith("digest:") and row[2:4] == ("executed", "executed") for row in renamed
    )
    assert any(row[6] for row in rows), "nothing was coerced"
    assert {
        row[5] for row in rows if row[2] in ("denied", "unknown", "invalid", "deduplicated")
    } == {None}
    assert {row[3] for row in rows if row[2] == "executed"} == {"executed", "failed", "timeout"}


def sampled(share: float, sessions: int = 40, events: int = 250) -> list[bool]:
    """Return for each event of a fixed population of sessions whether it is kept."""
    return [
        is_kept(f"{session:032x}", sequence, share)
        for session in range(sessions)
        for sequence in range(1, events + 1)
    ]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_sampling_is_unbiased(share: float) -> None:
    """At any rate, the estimate for a known population is within four standard errors of the true value."""
    kept = sum(sampled(share))
    size = 10_000
    error = (size * (1 - share) / share) ** 0.5
    assert abs(kept / share - size) < 4 * error
    more = sampled(min(share * 1.5, 1.0))
    assert all(b for a, b in zip(sampled(share), more, strict=True) if a), (
        "a larger share keeps the same"
    )


def test_a_rate_of_one_keeps_all_and_zero_none() -> None:
    """A rate of 1 keeps every event, and a rate of 0 keeps none."""
    assert all(sampled(1.0))
    assert not any(sampled(0.0))


@pytest.mark.slow
def test_events_are_sampled_by_kind(tmp_path: Path) -> None:
    """Only the given kind is sampled, each event has its sampling rate, and SQL computes an estimate of the original
    count.
    """
    home = tmp_path / "home"
    assert agentobs.start(str(home), agentobs.Options(sampling={"app.seen": 0.2, "context": 0}))
    with agentobs.session("sampled"):
        for number in range(1000):
            agentobs.event("app.seen", number=number)
            agentobs.event("app.other")
    assert agentobs.stop_recorder()
    [(session_id,)] = queries.query("SELECT session_id FROM sessions", home=home)
    # The start of the session is its first fact.
    expected = [n for n in range(1000) if is_kept(session_id, 2 + 2 * n, 0.2)]
    rows = queries.query(
        "SELECT numbers['number']::INT, rate FROM events WHERE kind = 'app.seen' ORDER BY session_sequence",
        home=home,
    )
    assert rows == [(number, 0.2) for number in expected]
    estimated = queries.query(
        "SELECT kind, recorded, estimated FROM events_estimated ORDER BY kind", home=home
    )
    assert estimated == [
        ("app.other", 1000, 1000.0),
        ("app.seen", len(expected), pytest.approx(len(expected) * 5)),
    ]
    sums = "SELECT estimated_count(rate), estimated_sum(numbers['number'], rate) FROM events WHERE kind = 'app.seen'"
    [(count, total)] = queries.query(sums, home=home)
    assert count == pytest.approx(len(expected) * 5)
    assert total == pytest.approx(sum(expected) * 5)
    import duckdb

    with duckdb.connect(str(home / "agentobs.duckdb"), read_only=True) as published:
        assert published.execute(sums).fetchall() == [(count, total)]
    assert queries.query(
        "SELECT estimated_count(rate) FROM events WHERE kind = 'none'", home=home
    ) == [(0.0,)]


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"compacton": 0.5}, "there is no kind of event 'compacton'"),
        ({"attempt": 0.5}, "'attempt' cannot be sampled, because it has its own table"),
        ({"turn": 0.5}, "'turn' cannot be sampled, because it has its own table"),
        ({"drop": 0.5}, "every event of it is needed"),
        ({"rewritten": 0.5}, "every event of it is needed"),
        ({"resumed": 0.5}, "every event of it is needed"),
        ({"forked": 0.5}, "every event of it is needed"),
        ({"compaction": 0.5}, "every event of it is needed"),
        ({"compaction_kept": 0.5}, "every event of it is needed"),
        ({"context": 1.5}, "must be a number from 0 to 1"),
        ({"context": -0.1}, "must be a number from 0 to 1"),
        ({"context": float("nan")}, "must be a number from 0 to 1"),
        ({"context": "0.5"}, "must be a number from 0 to 1"),
        ({"context": True}, "must be a number from 0 to 1"),
        (
            {"context": 0.5, "nothing": 0.5, "none": 1},
            "'nothing'; there is no kind of event 'none'",
        ),
    ],
)
def test_invalid_sampling_is_rejected(
    sampling: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """An unknown kind, a kind that cannot be sampled, or an invalid rate raises one error, and no recorder starts."""
    with pytest.raises(UsageError, match=message):
        agentobs.start(str(tmp_path / "home"), agentobs.Options(sampling=sampling))
    assert not (tmp_path / "home").exists()


def test_every_fact_has_a_kind() -> None:
    """Every class of facts has a kind, by which its dropped facts are counted."""
    facts: list[Any] = [object.__new__(kind) for kind in TABLES if kind is not Event]
    kinds = [str(kind_of(fact)) for fact in facts]
    assert len(set(kinds)) == len(facts)
