"""`agentobs run`: run the agent loop on a prompt with the real provider, and record it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import sys
from contextlib import aclosing
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from agentobs.cli.terminal.api_key import has_api_key
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.errors import UsageError
from agentobs.records.display import printable

EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""The effort levels of thinking; a test compares them with the loop's."""

PROFILES = ("both", "genai-latest", "genai-1.41", "openinference")
"""The semantic-convention profiles; a test compares them with the exporters'."""

NO_LIMIT = "none"
"""The value of `--max-usd` for an interaction without a budget."""

USUAL_USD = "1.00"
"""The budget that the terminal suggests. Our choice: enough for about a hundred short turns."""


@click.command()
@click.argument("prompt")
@click.option("--model", default="claude-sonnet-5", show_default=True, help="Name of the model.")
@click.option("--system", help="The system prompt.")
@click.option(
    "--tools", help="Python module that contains your tools, or MODULE:NAME of a list of tools."
)
@click.option(
    "--max-turns",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Stop after this number of turns with tool calls.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    help="Maximum tokens of one response.",
)
@click.option(
    "--max-usd",
    help=(
        "Stop when the interaction has cost this much, such as 0.50, or `none` for no limit. Without this option, "
        "the command prompts for the limit. Required if there is no terminal, unless --max-usd-today is set."
    ),
)
@click.option(
    "--max-usd-today", help="Stop when all recordings in this home have cost this much today (UTC)."
)
@click.option(
    "--mode",
    type=click.Choice(["default", "acceptEdits", "plan", "dontAsk", "bypassPermissions"]),
    default="default",
    show_default=True,
    help="How to handle tool calls that match no rule.",
)
@click.option(
    "--dangerously-bypass-permissions",
    "confirmed",
    is_flag=True,
    help="Confirm the mode bypassPermissions: every tool runs without approval.",
)
@click.option(
    "--allow", multiple=True, metavar="RULE", help="Allow matching calls, e.g. `edit(src/**)`."
)
@click.option("--ask", multiple=True, metavar="RULE", help="Require approval for matching calls.")
@click.option("--deny", multiple=True, metavar="RULE", help="Deny matching calls.")
@click.option(
    "--permissions",
    "settings",
    multiple=True,
    metavar="[SOURCE=]FILE",
    help='A JSON file of rules: {"allow": [...], "ask": [...], "deny": [...]}. SOURCE is policy, project, '
    "local or user (default).",
)
@click.option(
    "--hooks",
    multiple=True,
    metavar="[SOURCE=]FILE",
    help=(
        "A JSON file of hooks; see docs/hooks.md. Hooks run programs: use only files that "
        "you trust."
    ),
)
@click.option("--hook-model", help="Default model for prompt and agent hooks.")
@click.option(
    "--classifier",
    metavar="MODEL",
    help=(
        "A small model that approves or denies calls: in parallel with the user at the "
        "terminal, or alone if there is no terminal."
    ),
)
@click.option(
    "--effort", type=click.Choice(EFFORTS), help="Enable thinking with this effort level."
)
@click.option(
    "--fallback-model", help="Model to fall back to after three consecutive overload errors."
)
@click.option(
    "--unattended",
    is_flag=True,
    help="Retry for hours instead of minutes while the provider is overloaded.",
)
@click.option(
    "--content",
    type=click.Choice(["off", "vault", "export"]),
    help="Where to keep prompts and responses: `off`, `vault` (local recording), or `export` "
    "(also sent with spans). Default: AGENTOBS_CONTENT, else vault.",
)
@click.option("--otlp", metavar="URL", help="Send spans, events and metrics to this collector.")
@click.option(
    "--otlp-profile",
    type=click.Choice(PROFILES),
    default=PROFILES[0],
    show_default=True,
    help="Semantic-convention profile; see docs/exporting.md.",
)
@click.option(
    "--otlp-signal",
    "otlp_signals",
    multiple=True,
    type=click.Choice(["traces", "logs", "metrics"]),
    help="Send only this signal. May be repeated. Default: all three. Use `--otlp-signal traces` "
    "for a collector that accepts only traces, such as Phoenix.",
)
@click.option(
    "--trace-dir", metavar="DIR", help="Write a Perfetto trace of the session into this directory."
)
@click.option("--name", default="run", show_default=True, help="Name of the session.")
@click.option("--resume", metavar="SESSION", help="Resume an earlier session.")
@click.option(
    "--fork", metavar="SESSION", help="Start a new session from a point in an earlier one."
)
@click.option(
    "--at-turn",
    type=click.IntRange(min=1),
    help="With --fork: the last turn to keep. Default: the last turn of the session.",
)
@click.pass_context
def run(
    context: click.Context,
    prompt: str,
    model: str,
    system: str | None,
    tools: str | None,
    max_turns: int | None,
    max_tokens: int,
    max_usd: str | None,
    max_usd_today: str | None,
    mode: str,
    confirmed: bool,
    allow: tuple[str, ...],
    ask: tuple[str, ...],
    deny: tuple[str, ...],
    settings: tuple[str, ...],
    hooks: tuple[str, ...],
    hook_model: str | None,
    classifier: str | None,
    effort: str | None,
    fallback_model: str | None,
    unattended: bool,
    content: str | None,
    otlp: str | None,
    otlp_profile: str,
    otlp_signals: tuple[Any, ...],
    trace_dir: str | None,
    name: str,
    resume: str | None,
    fork: str | None,
    at_turn: int | None,
) -> None:
    """Run the agent loop on a prompt with the real provider, and record it.

    PROMPT is the text that the agent answers. Ctrl-C stops cleanly; a second Ctrl-C stops immediately.

    Calls that need approval prompt the user on the terminal. Without a terminal they are denied, unless a classifier
    approves them.
    """
    if not has_api_key():
        raise UsageError(
            "no API key in the environment (ANTHROPIC_API_KEY)",
            todo="Set one, or try `agentobs demo`, which needs no key",
        )
    from agentobs.agent.permissions import from_settings
    from agentobs.recording.journal.home import open_home
    from agentobs.recording.session import session, start

    command_line = {"allow": list(allow), "ask": list(ask), "deny": list(deny)}
    rules = from_settings(command_line, "command_line", where="the command line")
    for file in settings:
        rules += _file_rules(file)
    listed_rules = [[str(rule), rule.behavior, rule.source] for rule in rules]
    permitted = {"mode": mode, "confirmed": confirmed, "rules": listed_rules}
    # Invalid options are reported before anything runs.
    most = {"interaction": None if max_usd == NO_LIMIT else max_usd, "day": max_usd_today}
    more = {
        "hooks": list(hooks),
        "effort": effort,
        "fallback_model": fallback_model,
        "unattended": unattended,
    }
    options = loop_options(
        model,
        system,
        permitted,
        max_turns=max_turns,
        max_tokens=max_tokens,
        most=most,
        more=more,
    )
    _warn_of_useless_rules(options.permissions, load_tools(tools) if tools else [])
    earlier = _earlier_session(context, resume, fork, at_turn)
    if max_usd is None and max_usd_today is None:
        most["interaction"] = _ask_for_budget()
    start(
        str(open_home(home_option(context)).path),
        _recording(content, otlp, otlp_profile, otlp_signals, trace_dir),
    )
    decorated = session(name, resume=earlier.get("resume"), fork=earlier.get("fork"))(answer)
    failed = asyncio.run(
        decorated(
            prompt=prompt,
            model=model,
            system=system,
            tools=tools,
            max_turns=max_turns,
            max_tokens=max_tokens,
            most=most,
            permitted=permitted,
            more={**more, "hook_model": hook_model, "classifier": classifier},
            **earlier,
        )
    )
    sys.exit(1 if failed else 0)


def _recording(
    content: Any,
    otlp: str | None,
    profile: str,
    signals: tuple[Any, ...],
    trace_dir: str | None,
) -> Any:
    """Return the options of the recording.

    Raises:
        UsageError: a collector or a directory cannot be used, or a required package is not installed.
    """
    from agentobs.recording.options import Options

    backends: list[Any] = []
    if otlp is not None:
        from exporters.otlp import standard
        from exporters.otlp.outbox import SIGNALS

        backends.append(standard(otlp, profile=profile, signals=signals or SIGNALS))
    if trace_dir is not None:
        from exporters.perfetto import trace_file

        backends.append(trace_file(trace_dir))
    return Options(content=content, backends=tuple(backends))


def _earlier_session(
    context: click.Context, resume: str | None, fork: str | None, at_turn: int | None
) -> dict[str, Any]:
    """Return the earlier session to resume or fork, by its full ID, as arguments of `answer`.

    Raises:
        UsageError: the session does not exist, or the options exclude each other.
    """
    if resume and fork:
        raise UsageError(
            "a session cannot both be resumed and forked",
            where="--resume, --fork",
            todo=(
                "Pass --resume to continue the same conversation, or --fork to start a new one from "
                "it"
            ),
        )
    if at_turn is not None and not fork:
        raise UsageError("requires --fork", where="--at-turn", todo="Pass --fork SESSION")
    named = resume or fork
    if not named:
        return {}
    with open_store(context) as store:
        session_id = session_of(store, named)
    if resume:
        return {"resume": session_id}
    return {"fork": session_id, **({"at_turn": at_turn} if at_turn else {})}


def _file_rules(named: str) -> Any:
    """Return the rules in a file. `named` is the path of the file, optionally preceded by `SOURCE=`."""
    from agentobs.agent.permissions import SOURCES, from_settings

    source, _, file = named.rpartition("=")
    if source and source not in SOURCES:
        source, file = "", named
    return from_settings(Path(file), source or "user")  # type: ignore[arg-type]  # it is one of SOURCES


def _warn_of_useless_rules(permissions: Any, tools: list[Any]) -> None:
    """Print a note about each rule that has no effect."""
    for rule in permissions.stripped:
        note = (
            f"{rule} is ignored in the mode {permissions.mode}, because it allows a shell to run "
            "any program"
        )
        click.echo(f"note: {_for_terminal(note)}", err=True)
    for shadowed in permissions.shadowed():
        click.echo(f"note: {_for_terminal(shadowed.sentence)}", err=True)
    names = [name for tool in tools for name in (tool.name, *tool.aliases)]
    for sentence in permissions.unknown(names):
        click.echo(f"note: {_for_terminal(sentence)}", err=True)


async def answer(
    prompt: str,
    model: str,
    system: str | None,
    tools: str | None,
    max_turns: int | None,
    max_tokens: int,
    most: dict[str, str | None] | None = None,
    permitted: dict[str, Any] | None = None,
    resume: str | None = None,
    fork: str | None = None,
    at_turn: int | None = None,
    more: dict[str, Any] | None = None,
) -> bool:
    """Answer one prompt on the terminal, and return whether it failed. A replay calls this function again."""
    import signal

    from anthropic import AsyncAnthropic

    from agentobs.agent import (
        BudgetLevel,
        Classifier,
        ContextLevel,
        Result,
        SubAgent,
        TextDelta,
        ToolDispatch,
    )
    from agentobs.recording.session import record
    from agentobs.wired_agent import Agent

    client = record(AsyncAnthropic(open_telemetry=False))
    more = more or {}
    options = loop_options(
        model,
        system,
        permitted or {},
        max_turns=max_turns,
        max_tokens=max_tokens,
        most=most or {},
        more=more,
    )
    person = ask_on_terminal if sys.stdin.isatty() else None
    classifier = more.get("classifier")
    agent = Agent(
        client,
        options=options,
        tools=load_tools(tools) if tools else (),
        person=person,
        hook_model=more.get("hook_model"),
        classifier=Classifier(classifier) if classifier else None,
    )
    if resume:
        agent.resume(resume)
    elif fork:
        agent.fork(fork, turn=at_turn)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, _stop, agent, loop)
    failed = True
    async with agent, aclosing(agent.stream(prompt)) as events:
        async for event in events:
            match event:
                case TextDelta():
                    click.echo(_for_terminal(event.text), nl=False)
                case BudgetLevel() | ContextLevel() | SubAgent(event=BudgetLevel()):
                    click.echo(f"\n[{_level(event)}]", err=True)
                case ToolDispatch():
                    click.echo(f"\n[{printable(event.question.name)}]", err=True)
                case Result():
                    click.echo()
                    _print_end(event)
                    failed = event.subtype != "success"
    return failed


def _level(event: Any) -> str:
    """Return a line for a large share of a budget, which an agent below may report, or of the context window."""
    reached = getattr(event, "event", event)
    if hasattr(reached, "limit_usd"):
        amounts = f"${reached.spent_usd:.4f} of ${reached.limit_usd}"
        return f"{reached.percent}% of the budget {reached.limit} is spent: {amounts}"
    counts = f"{reached.tokens:,} of {reached.window_tokens:,} tokens"
    return f"{reached.percent}% of the context window is used: {counts}"


def loop_options(
    model: str,
    system: str | None,
    permitted: dict[str, Any],
    *,
    max_turns: int | None,
    max_tokens: int,
    most: dict[str, str | None],
    more: dict[str, Any],
) -> Any:
    """Return the loop's options.

    Raises:
        UsageError: a rule, the mode or an amount is invalid.
    """
    from agentobs.agent import Adaptive, AgentOptions, Budget, Permissions, Rule

    effort = more.get("effort")
    permissions = Permissions(
        mode=permitted.get("mode", "default"),
        rules=tuple(Rule.parse(*rule) for rule in permitted.get("rules", ())),
        bypass_confirmed=permitted.get("confirmed", False),
    )
    return AgentOptions(
        model=model,
        system=system,
        max_turns=max_turns,
        max_tokens=max_tokens,
        budget=Budget(
            interaction_usd=_dollars(most.get("interaction"), "--max-usd"),
            day_usd=_dollars(most.get("day"), "--max-usd-today"),
        ),
        permissions=permissions,
        hooks=_hooks(more.get("hooks", ())),
        thinking=Adaptive(effort) if effort else None,
        fallback_model=more.get("fallback_model"),
        unattended=bool(more.get("unattended")),
    )


def _hooks(named: list[str]) -> Any:
    """Return the hooks in some files. Each name is the path of a file, optionally preceded by `SOURCE=`."""
    from agentobs.agent.hooks import hooks_from_settings, table

    files = [(source or "settings", file) for source, _, file in (n.rpartition("=") for n in named)]
    return table(*(hooks_from_settings(Path(file), source=source) for source, file in files))


def _ask_for_budget() -> str | None:
    """Ask the user at the terminal how much the interaction may cost; None if the user sets no limit.

    Raises:
        UsageError: there is no terminal, or the answer is not an amount.
        click.Abort: the terminal was closed (Ctrl-D).
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no budget",
            where="--max-usd",
            todo=f"Pass an amount, such as --max-usd {USUAL_USD}, or --max-usd {NO_LIMIT} for no limit",
        )
    click.echo(f"Budget in USD, or {NO_LIMIT} [{USUAL_USD}]: ", nl=False, err=True)
    answer = _line()
    if not answer:
        raise click.Abort
    amount = answer.strip() or USUAL_USD
    if amount == NO_LIMIT:
        return None
    _dollars(amount, "--max-usd")
    return amount


def _dollars(text: str | None, where: str) -> Decimal | None:
    try:
        return Decimal(text) if text is not None else None
    except InvalidOperation:
        raise UsageError(
            f"invalid dollar amount: {text!r}", where=where, todo="Pass dollars, such as 0.50"
        ) from None


def ask_on_terminal(consent: Any) -> Any:
    """Ask the user at the terminal whether a call may run."""
    from agentobs.agent import Reply

    about = json.dumps(consent.about, ensure_ascii=False, default=str)
    click.echo(f"\n{_for_terminal(consent.reason)}\n{printable(about)}", err=True)
    click.echo("Run it? (y)es, yes for this (s)ession, (n)o [reason]: ", nl=False, err=True)
    word, _, reason = _line().strip().partition(" ")
    if word.lower() in ("y", "yes", "s", "session"):
        return Reply(True, "session" if word.lower().startswith("s") else "once")
    return Reply(False, reason=reason)


def _line() -> str:
    """Read a line from the terminal.

    Python's buffer is bypassed: the user may never answer, and a thread that waits inside the buffer would
    crash the interpreter at exit.
    """
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(sys.stdin.fileno(), 4096)
        if not more:
            break
        data += more
    return data.decode("utf-8", "replace")


def _stop(agent: Any, loop: asyncio.AbstractEventLoop) -> None:
    agent.abort()
    loop.remove_signal_handler(2)


def _print_end(result: Any) -> None:
    if result.denials:
        names = ", ".join(printable(denial.name) for denial in result.denials)
        click.echo(f"denied: {names}", err=True)
    if result.subtype != "success":
        why = f"{result.terminal_reason}: {result.error_text or ''}".rstrip(": ")
        click.echo(f"error: {result.subtype}: {_for_terminal(why)}", err=True)


def load_tools(named: str) -> list[Any]:
    """Return all tools of a module, or the tools of one list in it.

    Raises:
        UsageError: the module cannot be imported, or contains no tools.
    """
    from agentobs.agent.tools.tool import Tool

    module, _, name = named.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        imported = importlib.import_module(module)
        listed = getattr(imported, name) if name else vars(imported).values()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"cannot load tools: {error}",
            where=named,
            todo="Pass MODULE, or MODULE:NAME to use a list of tools in the module",
        ) from error
    tools = [value for value in listed if isinstance(value, Tool)]
    if not tools:
        raise UsageError(
            "no tools found", where=named, todo="Define tools with @agentobs.agent.tool"
        )
    return tools


def _for_terminal(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n")) if os.isatty(1) else text
