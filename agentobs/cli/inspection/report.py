"""The command that writes one HTML file about a session, or a range of them: report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN, When
from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.cli.terminal.report_file import check_report, now, reports, write
from agentobs.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from dashboards.content.session_content import Said


class Range(click.ParamType[tuple[int | None, int | None]]):
    """Two instants, as in `7d..` or `2026-11-01..2026-11-08`; either may be left out."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Return the range that was typed."""
        if isinstance(value, tuple):
            return value
        start, dots, end = str(value).partition("..")
        if not dots:
            self.fail(
                f"{value!r} is no range: say SINCE..UNTIL, either may be left out (7d..)",
                param,
                ctx,
            )
        since, until = (
            When().convert(each, param, ctx) if each.strip() else None for each in (start, end)
        )
        return since, until


@click.command(help="Write one HTML file that shows a session, or a range of them.")
@click.argument("session", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file to write.",
)
@click.option(
    "--range",
    "span",
    type=Range(),
    metavar="SINCE..UNTIL",
    help="All sessions that started in between: 7d.., 2026-11-01..2026-11-08, or `..` for all (UTC).",
)
@click.option(
    "--since", type=WHEN, metavar="WHEN", help="The start of the range: 7d, 12h, 2026-11-01 (UTC)."
)
@click.option("--until", type=WHEN, metavar="WHEN", help="The end of the range (UTC).")
@click.option(
    "--with-content",
    "content",
    is_flag=True,
    help="Put what was said into it, too. It may hold what users typed.",
)
@click.option(
    "--light", is_flag=True, help="A small file without any script: still figures, times in UTC."
)
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
@click.pass_context
def report(
    context: click.Context,
    session: str | None,
    output: Path,
    span: tuple[int | None, int | None] | None,
    since: int | None,
    until: int | None,
    content: bool,
    light: bool,
    force: bool,
) -> None:
    """Write one HTML file that needs no network: of SESSION (its id, an end of it, its name), or of a range.

    Nothing that was said is in it, so that it can be passed on, unless you say --with-content.
    """
    bounds = _bounds(span, since, until)
    if (session is None) == (bounds is None):
        raise UsageError(
            "one session is needed, or a range", todo="Name a SESSION, or say --range SINCE..UNTIL"
        )
    if content and session is None:
        raise UsageError(
            "what was said can be told of one session only",
            where="--with-content",
            todo="Name a SESSION",
        )
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.label_texts import Texts

    writes = reports()
    check_report(output, force)
    with open_store(context) as connection:
        if bounds is not None:
            text = writes.range_report(
                connection, since_ns=bounds[0], until_ns=bounds[1], made_ns=now(), light=light
            )
        else:
            session_id = session_of(context, connection, str(session))
            told, words = None, {}
            if content:
                told = _said(context, connection, session_id)
                texts = Texts(connection, existing_home(home_option(context)))
                words = {"in_words": texts.shown_dicts}
            text = writes.session_report(
                connection, session_id, made_ns=now(), light=light, said=told, **words
            )
    write(output, text, force=force, content=content)


def _bounds(
    span: tuple[int | None, int | None] | None, since: int | None, until: int | None
) -> tuple[int | None, int | None] | None:
    if span is not None and (since is not None or until is not None):
        raise UsageError(
            "--range says both ends already", where="--range", todo="Leave out --since and --until"
        )
    if span is None and since is None and until is None:
        return None
    start, end = span if span is not None else (since, until)
    if start is not None and end is not None and start > end:
        raise UsageError(
            "the range ends before it starts", where="--range", todo="Exchange the two"
        )
    return start, end


def _said(context: click.Context, connection: DuckDBPyConnection, session_id: str) -> Said:
    """Return what was said in a session; nothing where it was not written, or was deleted on purpose."""
    from agentobs.cli.terminal.recordings import recorded
    from dashboards.content.session_content import Said, said

    asked = """
        SELECT
            (SELECT arg_min(content, started_ns) FROM session_starts WHERE session_id = $id),
            (SELECT count(*) FROM prunings WHERE session_id = $id)
    """
    kept, pruned = connection.execute(asked, {"id": session_id}).fetchone() or (None, 0)
    if kept == "off" or pruned:
        return Said(())
    return said(recorded(home_option(context), session_id))
