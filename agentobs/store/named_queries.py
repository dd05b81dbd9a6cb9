"""Asking by name: the questions in `queries/*.sql`, and sessions by what people call them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from agentobs.errors import UsageError
from agentobs.records.labels import label
from agentobs.redaction import Redactor

SHORTEST = 4
"""How many characters of an id are enough to look for it."""

_QUERIES = Path(__file__).parent / "queries"


def named(
    connection: duckdb.DuckDBPyConnection, name: str, /, **parameters: Any
) -> duckdb.DuckDBPyConnection:
    """Run a named query; the rows are fetched from what is returned.

    A parameter that is not given is NULL, which every query takes for no limit or no choice.

    Raises:
        UsageError: there is no such query, or it has no such parameter.
    """
    sql = query_text(name)
    wanted = set(re.findall(r"\$([a-z_]+)", sql))
    if unknown := sorted(parameters.keys() - wanted):
        raise UsageError(
            f"query {name} has no parameter {unknown[0]}",
            where=unknown[0],
            todo=f"It takes {', '.join(sorted(wanted)) or 'none'}",
        )
    return connection.execute(sql, {key: parameters.get(key) for key in wanted})


def query_names() -> list[str]:
    """Return the names of all named queries."""
    return sorted(path.stem for path in _QUERIES.glob("*.sql"))


@cache
def query_text(name: str) -> str:
    """Return the text of a named query; its first line is the question that it answers.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in (names := query_names()):
        raise UsageError(
            "no query of that name",
            where=name,
            todo=_suggest(
                name, names, f"There are {', '.join(names[:6])} and {len(names) - 6} more"
            ),
        )
    return (_QUERIES / f"{name}.sql").read_text("utf-8")


def find_session(
    connection: duckdb.DuckDBPyConnection, text: str, *, key: bytes | None = None
) -> str:
    """Return the id of the session that `text` means.

    That is its full id, its name (the latest session of that name), or the first or last characters of
    one id alone, at least four.

    Args:
        connection: from `connect`.
        text: what was typed.
        key: the home's key; with it a name that is no label is found too.

    Raises:
        UsageError: no session, or more than one, answers to it.
    """
    name = label(Redactor(key).redact_text(text), key) if key else text
    if row := connection.execute(_BY_ID_OR_NAME, {"text": text, "name": name}).fetchone():
        return str(row[0])
    found: list[tuple[str, str]] = []
    if len(text) >= SHORTEST:
        found = connection.execute(_BY_PART, {"text": text.lower()}).fetchall()
    if len(found) == 1:
        return found[0][0]
    if found:
        listed = ", ".join(f"{session_id} ({name})" for session_id, name in found[:5])
        raise UsageError(
            f"{len(found)} sessions answer to that",
            where=text,
            todo=f"Say more of the id: {listed}",
        )
    if pruned := connection.execute(_PRUNED, {"text": text.lower()}).fetchall():
        [(session_id, day)] = pruned[:1]
        raise UsageError(
            f"session {session_id} was pruned on {day}: nothing of it is left",
            where=text,
            todo="What was frozen of it before still replays; agentobs sessions lists those that are there",
        )
    known = connection.execute(_LATEST).fetchall()
    words = list(dict.fromkeys(str(word) for row in known for word in row if word))
    latest = ", ".join(f"{each} ({name})" if name else each for each, name in known[:3])
    raise UsageError(
        "no session of that id or name",
        where=text,
        todo=_suggest(text, words, f"The latest are {latest}"),
    )


def as_stored(
    connection: duckdb.DuckDBPyConnection, parameters: Mapping[str, Any], key: bytes
) -> dict[str, Any]:
    """Return query parameters with names and reasons of recorded sessions replaced by their digests in the facts."""
    redactor = Redactor(key)
    texts = [each for each in parameters.values() if isinstance(each, str)]
    digests = {text: str(label(redactor.redact_text(text), key)) for text in texts}
    known = {row[0] for row in connection.execute(_STORED, [list(digests.values())]).fetchall()}
    stored = {text: digest for text, digest in digests.items() if digest in known}
    return {
        name: stored.get(each, each) if isinstance(each, str) else each
        for name, each in parameters.items()
    }


_STORED = """
    SELECT name FROM session_starts WHERE list_contains($1::VARCHAR[], name)
    UNION
    SELECT reason FROM session_ends WHERE list_contains($1::VARCHAR[], reason)
"""
_BY_ID_OR_NAME = """
    SELECT session_id FROM (
        SELECT session_id, started_ns, session_id = $text AS by_id
        FROM session_starts WHERE session_id = $text OR name = $name
        UNION ALL
        SELECT session_id, started_ns, true FROM attempts WHERE session_id = $text
    )
    ORDER BY by_id DESC, started_ns DESC, session_id DESC LIMIT 1
"""
_BY_PART = """
    SELECT session_id, any_value(name) FROM session_starts
    WHERE starts_with(session_id, $text) OR ends_with(session_id, $text)
    GROUP BY session_id ORDER BY min(started_ns) DESC, session_id
"""
_PRUNED = f"""
    SELECT session_id, strftime(make_timestamp_ns(max(pruned_ns)), '%Y-%m-%d') FROM prunings
    WHERE what = 'all' AND length($text) >= {SHORTEST}
        AND (starts_with(session_id, $text) OR ends_with(session_id, $text))
    GROUP BY session_id
"""
_LATEST = (
    "SELECT session_id, name FROM session_starts ORDER BY started_ns DESC, session_id LIMIT 200"
)


def _suggest(text: str, words: list[str], otherwise: str) -> str:
    near = difflib.get_close_matches(text, words, n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(near)}"
    return otherwise if words else "Nothing was recorded yet"
