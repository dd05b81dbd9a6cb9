"""The command that writes one HTML file about a session, or a range of sessions: `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN, When
from agentobs.cli.terminal.progress_line import Spinner
from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.cli.terminal.report_file import check_report, light_options, now, reports, write
from agentobs.errors import UsageError

if TYPE_CHECKING:
    from agentobs.store.port import Store
    from dashboards.content.session_content import SessionContent


if TYPE_CHECKING:
    _Base = click.ParamType[tuple[int | None, int | None]]
else:
    _Base = click.ParamType  # not generic before click 8.4


class Range(_Base):
    """A time range, such as `7d..` or `2026-11-01..2026-11-08`; either end may be left out."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Parse a range."""
        if isinstance(value, tuple):
            return value
        start, dots, end = str(value).partition("..")
        if not dots:
            self.fail(
                f"invalid range: {value!r}. Use SINCE..UNTIL; either end may be left out (7d..)",
                param,
                ctx,
            )
        since, until = (
            When().convert(each, param, ctx) if each.strip() else None for each in (start, end)
        )
        return since, until


@click.command()
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
    help=(
        "All sessions that started in this range: 7d.., 2026-11-01..2026-11-08, or `..` for "
        "all (local time)."
    ),
)
@click.option(
    "--since",
    type=WHEN,
    metavar="WHEN",
    help="The start of the range: 7d, 12h, 2026-11-01 (local time).",
)
@click.option("--until", type=WHEN, metavar="WHEN", help="The end of the range (local time).")
@click.option(
    "--with-content",
    "content",
    is_flag=True,
    help="Include prompts and responses. May contain user input.",
)
@light_options
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_context
def report(
    context: click.Context,
    session: str | None,
    output: Path,
    span: tuple[int | None, int | None] | None,
    since: int | None,
    until: int | None,
    content: bool,
    light: bool | None,
    force: bool,
) -> None:
    """Write one HTML file that shows a session, or a range of sessions.

    The file needs no network. It contains no prompts or responses unless --with-content is passed, so it can be shared.
    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name.
    """
    bounds = _bounds(span, since, until)
    if (session is None) == (bounds is None):
        raise UsageError(
            "expected either one session or a range", todo="Pass a SESSION or --range SINCE..UNTIL"
        )
    if content and session is None:
        raise UsageError(
            "works with one session only",
            where="--with-content",
            todo="Pass a SESSION",
        )
    from agentobs.store.label_texts import LabelTexts

    writes = reports()
    check_report(output, force)
    with open_store(context) as store, Spinner("writing the report"):
        if bounds is not None:
            text = writes.range_report(
                store,
                since_ns=bounds[0],
                until_ns=bounds[1],
                made_ns=now(),
                light=light is not False,
            )
        else:
            session_id = session_of(store, str(session))
            session_texts, name_options = None, {}
            if content:
                session_texts = _content_of(context, store, session_id)
                texts = LabelTexts(store)
                name_options = {"restore_names": texts.replace_in_dicts}
            text = writes.session_report(
                store,
                session_id,
                made_ns=now(),
                light=light is not False,
                content=session_texts,
                **name_options,
            )
    write(output, text, force=force, content=content)


def _bounds(
    span: tuple[int | None, int | None] | None, since: int | None, until: int | None
) -> tuple[int | None, int | None] | None:
    if span is not None and (since is not None or until is not None):
        raise UsageError(
            "--range cannot be combined with --since or --until",
            todo="Leave out --since and --until",
        )
    if span is None and since is None and until is None:
        return None
    start, end = span if span is not None else (since, until)
    if start is not None and end is not None and start > end:
        raise UsageError("the range ends before it starts", where="--range", todo="Swap the two")
    return start, end


def _content_of(context: click.Context, store: Store, session_id: str) -> SessionContent:
    """Return the content of a session; empty if it was not recorded, or was deleted on purpose."""
    from agentobs.cli.terminal.recordings import load_recording
    from dashboards.content.session_content import SessionContent, session_content

    kept = store.rows("internal/content_state", session_id=session_id).first() or {}
    if kept.get("content") == "off" or kept.get("pruned_ns") is not None:
        return SessionContent(())
    return session_content(load_recording(home_option(context), session_id))
