"""The command that writes rows to a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli import home_option
from agentobs.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@click.command(help="Write a table, view or named query to Parquet, CSV or JSON.")
@click.argument("what", metavar="QUERY_OR_TABLE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file; its ending says the form: .parquet, .csv or .jsonl.",
)
@click.option(
    "--param",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of a named query; may be given several times.",
)
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
@click.pass_context
def export(
    context: click.Context, what: str, output: Path, given: tuple[str, ...], force: bool
) -> None:
    """Write rows of the store, what is recorded right now included, to a file that only you can read."""
    from agentobs.recording.home import existing_home
    from agentobs.store.database import connect
    from exporters.rowfiles import write_file

    with connect(existing_home(home_option(context)), unsafe=True) as connection:
        sql, wanted = _statement(connection, what)
        parameters = _parameters(given, wanted)
        rows = write_file(connection, sql, parameters, output.absolute(), force=force)
    click.echo(f"{rows} rows: {output}")


def _statement(connection: DuckDBPyConnection, what: str) -> tuple[str, set[str]]:
    """Return a statement for a name, and the names of its parameters.

    Raises:
        UsageError: there is no query, table or view of that name.
    """
    from agentobs.store.asking import query_names, query_text

    found = connection.execute(_TABLES).fetchall()
    tables = {row[0] for row in found}
    if what in tables:
        return f'SELECT * FROM "{what}"', set()
    if what not in query_names():
        raise UsageError(
            "no query, table or view of that name",
            where=what,
            todo=f"docs/tables.md describes the tables; the queries are {', '.join(query_names())}",
        )
    text = re.sub(r"(?m)^\s*--.*$", "", query_text(what)).strip().rstrip(";")
    return text, set(re.findall(r"\$([a-z_]+)", text))


def _parameters(given: tuple[str, ...], wanted: set[str]) -> dict[str, object]:
    from agentobs.cli.sql import typed

    found: dict[str, object] = dict.fromkeys(wanted)
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or name not in wanted:
            raise UsageError(
                f"no parameter of the query: {name}",
                where="--param",
                todo=f"It takes {', '.join(sorted(wanted)) or 'none'}, each as NAME=VALUE",
            )
        found[name] = typed(value)
    return found


_TABLES = """
    SELECT table_name FROM duckdb_tables() WHERE NOT internal AND schema_name = 'main'
    UNION
    SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'
"""
