"""The named queries: each is a file in `queries/`.

`queries/*.sql` are also for users: `agentobs export NAME` and the SQL page offer them. `queries/internal/` contains
queries that only our own code runs, and `queries/listing/` the queries on the precomputed tables of the session list.
The names of both include the folder, for example `internal/session`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentobs.errors import UsageError

_QUERIES = Path(__file__).parent / "queries"


def bound(name: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text of a named query, and a value for each of its parameters.

    A parameter that is not given is NULL, which means no limit or no filter.

    Raises:
        UsageError: there is no such query, or it has no such parameter.
    """
    sql, wanted = query_text(name), query_parameters(name)
    if unknown := sorted(parameters.keys() - wanted):
        raise UsageError(
            f"query {name} has no parameter {unknown[0]}",
            where=unknown[0],
            todo=f"It takes {', '.join(sorted(wanted)) or 'none'}",
        )
    return sql, {key: parameters.get(key) for key in wanted}


@cache
def query_parameters(name: str) -> frozenset[str]:
    """Return the names of the parameters of a named query."""
    return frozenset(re.findall(r"\$([a-z_]+)", query_text(name)))


@cache
def query_names() -> list[str]:
    """Return the names of the named queries for users."""
    return sorted(path.stem for path in _QUERIES.glob("*.sql"))


@cache
def internal_query_names() -> list[str]:
    """Return the names of the queries that only our own code runs, each with its folder."""
    return sorted(
        path.relative_to(_QUERIES).with_suffix("").as_posix() for path in _QUERIES.glob("*/*.sql")
    )


@cache
def query_text(name: str) -> str:
    """Return the text of a named query; its first line is the question that it answers.

    Raises:
        UsageError: no query has that name.
    """
    if name not in (names := query_names()) and name not in internal_query_names():
        others = f"There are {', '.join(names[:6])} and {len(names) - 6} more"
        raise UsageError("no query has that name", where=name, todo=suggested(name, names, others))
    return (_QUERIES / f"{name}.sql").read_text("utf-8")


def bare_text(name: str) -> str:
    """Return the text of a named query without its comments and its semicolon."""
    return re.sub(r"(?m)^\s*--.*$", "", query_text(name)).strip().rstrip(";")


def suggested(text: str, words: Sequence[str], otherwise: str) -> str:
    """Return the advice for a name that does not exist: similar names, or `otherwise` if there are none."""
    near = difflib.get_close_matches(text, words, n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(near)}"
    return otherwise if words else "Nothing was recorded yet"
