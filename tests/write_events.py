"""The document and the view of events, as the catalog in agentobs/records/event_catalog.py has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import duckdb

from agentobs.records.event_catalog import DERIVED, ROWS, TABLED, VIEWED, TableKind
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
"""Where an event belongs, with the types of the columns."""


def event_log() -> str:
    """Return the SQL of the views and macros of events."""
    selects = [_select(name, kind) for name, kind in TABLED.items()]
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
    """Return the document of the kinds of events."""
    with duckdb.connect(config=SETTINGS) as connection:
        migrate(connection)
        rows = connection.execute(
            "SELECT table_name, column_name, coalesce(comment, '') FROM duckdb_columns() WHERE NOT internal"
        ).fetchall()
    comments = {(table, column): comment for table, column, comment in rows}
    parts = [_HEAD, "\n## Kinds that are rows of `events`\n"]
    for name, kind in ROWS.items():
        if not kind.is_reserved:
            parts.append(_section(name, kind.meaning, kind.label, kind.numbers, kind.labels))
            parts.append("\nIt cannot be sampled.\n" if kind.is_whole else "")
    parts.append("\n## Kinds with their own tables\n")
    for name, tabled in TABLED.items():
        table = TABLES[tabled.fact]
        numbers = {each: comments[table, each] for each in tabled.numbers}
        numbers |= {each: text for each, (_, text) in DERIVED.get(name, {}).items()}
        labels = {each: comments[table, each] for each in tabled.labels}
        label = comments[table, tabled.label] if tabled.label else ""
        parts.append(_section(name, f"{tabled.meaning} Table `{table}`.", label, numbers, labels))
    parts.append(
        "\n## Kinds that are put together\n\n| kind | view | meaning |\n| --- | --- | --- |\n"
    )
    parts += [f"| `{name}` | `{v.view}` | {v.meaning} |\n" for name, v in VIEWED.items()]
    parts.append("\n## Kinds that are reserved\n\nNothing tells them yet, and nobody else can.\n")
    for name, kind in ROWS.items():
        if kind.is_reserved:
            parts.append(_section(name, kind.meaning, kind.label, kind.numbers, kind.labels))
    return "".join(parts)


def _section(
    name: str, meaning: str, label: str, numbers: Mapping[str, str], labels: Mapping[str, str]
) -> str:
    lines = [f"\n### {name}\n", meaning]
    said = {"`label`": label} if label else {}
    said |= {f"`{each}`": text for each, text in numbers.items()}
    said |= {f"`labels.{each}`": text for each, text in labels.items()}
    if said:
        lines += ["", "| what | unit | meaning |", "| --- | --- | --- |"]
        lines += [
            f"| {each} | {_unit(text)[1]} | {_unit(text)[0]} |" for each, text in said.items()
        ]
    return "\n".join(lines) + "\n"


def _unit(text: str) -> tuple[str, str]:
    meaning, bracket, unit = text.rpartition(" [")
    return (meaning, unit[:-1]) if bracket and unit.endswith("]") else (text, "")


_HEAD = """\
# Events

<!-- Generated by `make docs` from agentobs/records/event_catalog.py. Change that, not this file. -->

What happened, one row per fact. Kinds with their own columns have their own tables; all others are rows of
`events`. The view `event_log` shows all of it as one stream with the same columns, and backends hear the same
(`agentobs.records.event_catalog.event_of`):

```sql
SELECT at_ns, kind, label, numbers FROM event_log WHERE session_id = '...' ORDER BY session_sequence
```

Each event says where it belongs: `session_id`, `interaction_id`, `turn`, `lane`, `query_source`, `chain_id` and
`depth`, each NULL where nobody knows. `session_sequence` counts the facts of a session; a number that is missing in it
belongs to an event that was not kept by sampling. None of it is content: numbers, booleans, ids and labels.

## Events of your own

```python
import agentobs

agentobs.event("cart_priced", items=3, cached=True, shop=agentobs.Label("berlin-2"))
```

A value is a `bool`, an `int`, a `float`, `None` or an `agentobs.Label`; anything else fails the type checker, and at
run time raises in that call: a text might hold content. A word is a label by `agentobs.Label(word)`; a constant
sentence by `agentobs.Label.reviewed("...", reason="...")`, and `agentobs labels` lists each of those with its reason,
and fails where it cannot see the text. Kinds of ours cannot be used; outside every session nothing is noted.

## Sampling

`agentobs.start(options=agentobs.Options(sampling={"context": 0.1}))` keeps a tenth of the events of a kind. Which ones,
a hash of session and number decides, so that the same session is always sampled alike. Each one that was kept has the
share in `rate` and stands for 1/rate of them:

```sql
SELECT kind, estimated_count(rate), estimated_sum(numbers['tokens'], rate) FROM events GROUP BY kind
```

`events_estimated` has the counts. Only kinds that are rows of `events` can be sampled, and own kinds with a dot in
their name; never exchanges, usage, decisions, what was dropped, or what views and a resumed session depend on.

## Losses are reported

Before somebody listens, 4,096 records and 8 MiB of them wait. Beyond that they are dropped, counted by kind
(`agentobs.statistics().sink`), and reported by a `drop` event in their place. A session that lost an
exchange is incomplete and cannot be frozen.
"""
