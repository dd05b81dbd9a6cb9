"""The command that browses sessions in a full-screen application in the terminal: `tui`."""

from __future__ import annotations

import sys

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.optional_packages import needed_packages
from agentobs.errors import UsageError


@click.command()
@click.argument("session", required=False)
@click.option(
    "--content",
    is_flag=True,
    help="Show prompts, responses and tool data without asking first. May show user input.",
)
@click.pass_context
def tui(context: click.Context, session: str | None, content: bool) -> None:
    """Browse sessions in the terminal: failures, steps, transcript, cost, and playback step by step.

    With SESSION, opens this session. Press ? for the keys. SESSION is the ID of a session, the start or end of the ID
    (4 characters or more), or its name.
    """
    with needed_packages("tui", "tui"):
        from agentobs.cli.tui.application import Browser
    from agentobs.cli.tui.session_data import SessionData
    from agentobs.recording.journal.home import existing_home

    home = existing_home(home_option(context))
    data = SessionData(home)
    session_id = data.find(session) if session else None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "this command needs a terminal",
            where="tui",
            todo="`agentobs sessions` and `agentobs show` print text",
        )
    Browser(data, session_id=session_id, shows_content=content).run()
