"""`agentobs run`: the agent loop on a prompt, against the real provider, recorded."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from agentobs import world
from agentobs.cli import home_option
from agentobs.cli.tables import printable
from agentobs.errors import UsageError

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


@click.command(help="Run the agent loop on a prompt against the real provider, recorded.")
@click.argument("prompt")
@click.option("--model", default="claude-sonnet-5", show_default=True, help="The model to ask.")
@click.option("--system", help="The system prompt.")
@click.option("--tools", help="Where your tools are: a module, or module:name of a list of tools.")
@click.option(
    "--max-turns", type=click.IntRange(min=1), help="Stop after so many turns that used tools."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    help="Tokens of one answer.",
)
@click.option("--name", default="run", show_default=True, help="The session's name.")
@click.pass_context
def run(
    context: click.Context,
    prompt: str,
    model: str,
    system: str | None,
    tools: str | None,
    max_turns: int | None,
    max_tokens: int,
    name: str,
) -> None:
    """Answer PROMPT; the session is recorded."""
    if not any(world.environ(key) for key in KEYS):
        raise UsageError(
            "no key in the environment (ANTHROPIC_API_KEY)",
            todo="Set one, or see `agentobs demo`, which needs none",
        )
    from agentobs.recording.home import open_home
    from agentobs.recording.session import session, start_recorder

    start_recorder(str(open_home(home_option(context)).path))
    decorated = session(name)(answer)
    failed = asyncio.run(
        decorated(
            prompt=prompt,
            model=model,
            system=system,
            tools=tools,
            max_turns=max_turns,
            max_tokens=max_tokens,
        )
    )
    sys.exit(1 if failed else 0)


async def answer(
    prompt: str,
    model: str,
    system: str | None,
    tools: str | None,
    max_turns: int | None,
    max_tokens: int,
) -> bool:
    """Answer one prompt on the terminal; returns whether it failed. A replay calls this again."""
    from anthropic import AsyncAnthropic

    from agentobs.agent import Options, Result, TextDelta, ToolDispatch, live_world
    from agentobs.agent import run as run_loop
    from agentobs.recording.session import record

    found = load_tools(tools) if tools else []
    client = record(AsyncAnthropic(open_telemetry=False))
    options = Options(model=model, system=system, max_turns=max_turns, max_tokens=max_tokens)
    events = run_loop(prompt, world=live_world(client, found), options=options, tools=found)
    async with aclosing(events):
        async for event in events:
            match event:
                case TextDelta():
                    click.echo(_shown(event.text), nl=False)
                case ToolDispatch():
                    click.echo(f"\n[{printable(event.question.name)}]", err=True)
                case Result():
                    click.echo()
                    if event.subtype != "success":
                        click.echo(
                            f"error: {event.subtype}: {_shown(event.error_text or '')}", err=True
                        )
                    return event.subtype != "success"
    return True


def load_tools(named: str) -> list[Any]:
    """Return the tools of a module (all of them), or of one list in it.

    Raises:
        UsageError: it cannot be imported, or holds no tools.
    """
    from agentobs.agent.tools import Tool

    module, _, name = named.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
        listed = getattr(found, name) if name else vars(found).values()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"cannot load tools: {error}", where=named, todo="Name a module, or module:list"
        ) from error
    tools = [value for value in listed if isinstance(value, Tool)]
    if not tools:
        raise UsageError("no tools here", where=named, todo="Make some with @agentobs.agent.tool")
    return tools


def _shown(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n")) if os.isatty(1) else text
