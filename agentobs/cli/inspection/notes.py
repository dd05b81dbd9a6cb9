"""Commands that annotate sessions: `score`, `title`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.errors import UsageError

if TYPE_CHECKING:
    from agentobs.records.labels import Label


@click.command()
@click.argument("session")
@click.argument("name")
@click.argument("value")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="The score is for this turn.")
@click.option("--tool-call", metavar="ID", help="The score is for the tool call with this ID.")
@click.option("--lane", help="The lane of the turn or of the tool call. Default for turns: main.")
@click.option(
    "--comment", metavar="TEXT", help="A comment. It is stored as content and never exported."
)
@click.pass_context
def score(
    context: click.Context,
    session: str,
    name: str,
    value: str,
    turn: int | None,
    tool_call: str | None,
    lane: str | None,
    comment: str | None,
) -> None:
    """Score a session, one of its turns or one of its tool calls.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. VALUE is a number,
    true, false, or one word.

    If several scores have the same NAME, the last one applies; earlier ones are kept in the table `scores`. Put `--`
    before a negative number.
    """
    from agentobs.recording.journal.home import existing_home
    from agentobs.session_notes import give_score

    if lane is not None and turn is None and tool_call is None:
        raise UsageError(
            "--lane needs --turn or --tool-call", todo="Name the turn or the tool call"
        )
    parsed = _value(value)
    with open_store(context) as store:
        session_id = session_of(store, session)
    give_score(
        name,
        parsed,
        comment,
        session_id,
        lane,
        turn,
        tool_call,
        home=existing_home(home_option(context)),
        source="command",
    )
    what = f"tool call {tool_call}" if tool_call else f"turn {turn}" if turn else "session"
    click.echo(f"scored {session_id}  {what}: {name} = {value}")


@click.command()
@click.argument("session")
@click.argument("text")
@click.pass_context
def title(context: click.Context, session: str, text: str) -> None:
    """Set the title of a session to TEXT. Local commands and pages show it.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name.
    """
    from agentobs.recording.journal.home import existing_home
    from agentobs.session_notes import set_title

    with open_store(context) as store:
        session_id = session_of(store, session)
    home = existing_home(home_option(context))
    if not set_title(text, session_id=session_id, home=home, source="command"):
        raise UsageError(
            f"session {session_id} was recorded without content, and a title is content",
            where=session,
            todo='Record later sessions with content="vault" to give them titles',
        )
    click.echo(f"titled {session_id}")


def _value(text: str) -> bool | float | Label:
    """Return the value of a score that a person typed.

    Raises:
        UsageError: the text is not a number, `true`, `false` or one word.
    """
    from agentobs.records.clear_text import is_declared_name
    from agentobs.records.labels import Label

    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        if not is_declared_name(text):
            raise UsageError(
                f"{text[:80]!r} is not the value of a score",
                where="VALUE",
                todo="Pass a number, true, false, or one word; write a longer text with --comment",
            ) from None
        return Label(text)
    if not math.isfinite(number):
        raise UsageError(f"{text[:80]!r} is not a finite number", where="VALUE")
    return number
