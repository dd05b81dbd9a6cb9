"""Generate the document and the view of events from the catalog in agentobs/records/event_catalog.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import duckdb

from agentobs.records.event_catalog import DERIVED, ROW_KINDS, TABLE_KINDS, VIEW_KINDS, TableKind
from agentobs.records.facts import TABLES
from agentobs.store.duckdb.schema import SETTINGS, migrate

PLACE = {
    "interaction_id": "VARCHAR",
    "turn": "BIGINT",
    "lane": "VARCHAR",
    "query_source": "VARCHAR",
    "chain_id": "VARCHAR",
    "depth": "BIGINT",
}
"""The columns with the place of an event, with their types."""


def event_log() -> str:
    """Return the SQL of the views and macros of events."""
    selects = [_select(name, kind) for name, kind in TABLE_KINDS.items()]
    return _SQL.format(selects="\nUNION ALL\n".join([_EVENTS, *selects]))


def _select(name: str, kind: TableKind) -> str:
    table = TABLES[kind.fact]
    own = {field.name for field in dataclasses.fields(kind.fact)}
    place = [each if each in own else f"NULL::{sql}" for each, sql in PLACE.items()]
    label = kind.label or "NULL::VARCHAR"
    if name == "tool":
        label = "CASE outcome WHEN 'duplicate' THEN 'deduplicated' ELSE outcome END"
    entries = [f"{{'k': '{each}', 'v': {each}::DOUBLE}}" for each in kind.numbers]
    derived = DERIVED.get(name, {})
    entries += [
        f"{{'k': '{n}', 'v': ({of} > 0)::INTEGER::DOUBLE}}" for n, (of, _) in derived.items()
    ]
    labels = _map([f"{{'k': '{each}', 'v': {each}::VARCHAR}}" for each in kind.labels], "VARCHAR")
    where = f"\nWHERE status = '{kind.status}'" if kind.status else ""
    return (
        f"SELECT\n    session_id, {', '.join(place)}, session_sequence,\n    {kind.at}, '{name}', {label},\n"
        f"    {labels},\n    {_map(entries, 'DOUBLE')},\n    1.0\nFROM {table}{where}"
    )


def _map(entries: list[str], kind: str) -> str:
    if not entries:
        return f"MAP {{}}::MAP(VARCHAR, {kind})"
    listed = ",\n        ".join(entries)
    return f"map_from_entries(list_filter([\n        {listed}\n    ], lambda e: e.v IS NOT NULL))"


_EVENTS = """\
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    at_ns, kind, label,
    coalesce(labels, MAP {}::MAP(VARCHAR, VARCHAR)) AS labels,
    coalesce(numbers, MAP {}::MAP(VARCHAR, DOUBLE)) AS numbers,
    rate
FROM events"""

_SQL = """\
-- Events: every fact that happened at an instant as one stream. Written by `make docs` from the catalog in
-- agentobs/records/event_catalog.py; change that, not this file.

CREATE OR REPLACE VIEW event_log AS
{selects};
"""


def events() -> str:
    """Return the text of the document that lists the kinds of events."""
    with duckdb.connect(config=SETTINGS) as connection:
        migrate(connection)
        rows = connection.execute(
            "SELECT table_name, column_name, coalesce(comment, '') FROM duckdb_columns() WHERE NOT internal"
        ).fetchall()
    comments = {(table, column): comment for table, column, comment in rows}
    parts = [_HEAD, "\n## Kinds that are rows of `events`\n"]
    for name, kind in ROW_KINDS.items():
        if not kind.is_reserved:
            parts.append(_section(name, kind.meaning, kind.label, kind.numbers, kind.labels))
            parts.append("\nIt cannot be sampled.\n" if kind.is_required else "")
    parts.append("\n## Kinds with their own tables\n")
    for name, tabled in TABLE_KINDS.items():
        table = TABLES[tabled.fact]
        numbers = {each: comments[table, each] for each in tabled.numbers}
        numbers |= {each: text for each, (_, text) in DERIVED.get(name, {}).items()}
        labels = {each: comments[table, each] for each in tabled.labels}
        label = comments[table, tabled.label] if tabled.label else ""
        parts.append(_section(name, f"{tabled.meaning} Table `{table}`.", label, numbers, labels))
    parts.append(
        "\n## Kinds that are derived by views\n\n| kind | view | meaning |\n| --- | --- | --- |\n"
    )
    parts += [f"| `{name}` | `{v.view}` | {v.meaning} |\n" for name, v in VIEW_KINDS.items()]
    parts.append(
        "\n## Reserved kinds\n\nagentobs does not emit these kinds yet, and custom events cannot use their names.\n"
    )
    for name, kind in ROW_KINDS.items():
        if kind.is_reserved:
            parts.append(_section(name, kind.meaning, kind.label, kind.numbers, kind.labels))
    return "".join(parts)


def _section(
    name: str, meaning: str, label: str, numbers: Mapping[str, str], labels: Mapping[str, str]
) -> str:
    lines = [f"\n### {name}\n", meaning]
    fields = {"`label`": label} if label else {}
    fields |= {f"`{each}`": text for each, text in numbers.items()}
    fields |= {f"`labels.{each}`": text for each, text in labels.items()}
    if fields:
        lines += ["", "| field | unit | meaning |", "| --- | --- | --- |"]
        lines += [
            f"| {each} | {_unit(text)[1]} | {_unit(text)[0]} |" for each, text in fields.items()
        ]
    return "\n".join(lines) + "\n"


def _unit(text: str) -> tuple[str, str]:
    meaning, bracket, unit = text.rpartition(" [")
    return (meaning, unit[:-1]) if bracket and unit.endswith("]") else (text, "")


_HEAD = """\
# Events

<!-- Generated by `make docs` from agentobs/records/event_catalog.py. Change that, not this file. -->

Everything that happens in a session is recorded as an event, one row per fact. Kinds with their own columns have their
own tables; all other kinds are rows of `events`. The view `event_log` shows all events as one stream with common
columns:

```sql
SELECT at_ns, kind, label, numbers FROM event_log WHERE session_id = '...' ORDER BY session_sequence
```

Backends receive the same events (`agentobs.records.event_catalog.event_of`).

Each event has these columns for its context: `session_id`, `interaction_id`, `turn`, `lane`, `query_source`, `chain_id`
and `depth`. Each is NULL if it is unknown. `session_sequence` counts the facts of a session; a missing number belongs
to an event that sampling discarded. Events contain no content, only numbers, booleans, IDs and labels.

## Custom events

```python
import agentobs

agentobs.event("cart_priced", items=3, cached=True, shop=agentobs.Label("berlin-2"))
```

A value is a `bool`, an `int`, a `float`, `None` or an `agentobs.Label`. Anything else is rejected by the type checker
and raises an exception at run time, because free text might contain content. The names of built-in kinds cannot be
used. Outside a session, the event is not recorded.

Use `agentobs.Label(word)` for a word and `agentobs.Label.reviewed("...", reason="...")` for a constant sentence.
`agentobs labels` lists all reviewed labels in the source with their reasons, and fails if a text is not a literal.

## Sampling

`agentobs.start(options=agentobs.Options(sampling={"context": 0.1}))` keeps a tenth of the events of a kind. A hash of
session and number selects the events, so sampling the same session always keeps the same events. Each event that was
kept has the sampling rate in `rate` and represents 1/rate events:

```sql
SELECT kind, estimated_count(rate), estimated_sum(numbers['tokens'], rate) FROM events GROUP BY kind
```

The view `events_estimated` contains estimated counts. Only kinds that are rows of `events`, and custom kinds with a dot
in their name, can be sampled. Exchanges, usage, decisions, `drop` events, and events that views or resumed sessions
depend on are never sampled.

## Losses are reported

Until a consumer is attached, up to 4,096 records and 8 MiB are queued. Further records are dropped, counted by kind
(`agentobs.statistics().sink`), and replaced by a `drop` event. A session that lost an exchange is incomplete and cannot
be frozen.
"""
