"""The command that looks for what is wrong with the set-up and with what was recorded: doctor."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN
from agentobs.cli.terminal.query_output import print_rows
from agentobs.errors import UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentobs.store.duckdb.checkup import Finding, Level

DAYS = 7
"""How far back losses, orphans and the like are looked for, unless said otherwise. Our choice."""

SPANS = "ANTHROPIC_OPEN_TELEMETRY"
"""The variable that switches the SDK's own spans off with `false` (anthropic 2.12, `_tracing.py`)."""

INSTRUMENTATIONS = {
    "opentelemetry.instrumentation.anthropic": "OpenLLMetry (traceloop), or OpenTelemetry's own",
    "traceloop.sdk": "traceloop",
    "openinference.instrumentation.anthropic": "OpenInference",
    "logfire": "Logfire",
    "langfuse": "Langfuse",
    "ddtrace": "Datadog",
    "braintrust": "Braintrust",
}
"""What else makes spans of the SDK's calls, by its module."""

AUTOMATIC = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_CONFIGURATOR", "OTEL_PYTHON_DISTRO")
"""Variables with which OpenTelemetry's automatic instrumentation sets a provider before the program begins."""


@click.command(
    help="Look for what is wrong with the set-up and the recordings, and say what to do."
)
@click.option(
    "--since",
    type=WHEN,
    default=f"{DAYS}d",
    show_default=True,
    metavar="WHEN",
    help="How far back to look for losses, orphans and the like.",
)
@click.option(
    "--load",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import this module first: the one that sets up your agent's telemetry. It runs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@click.pass_context
def doctor(context: click.Context, since: int, modules: tuple[str, ...], as_json: bool) -> None:
    """Check the home, what is in it, and this environment. Exits with 1 where something is wrong."""
    from agentobs import world
    from agentobs.recording.journal.home import locate
    from agentobs.store.duckdb.checkup import check_home

    for module in modules:
        _load(module)
    found = [
        *check_home(locate(home_option(context)), world.now(), since),
        *content(os.environ),
        *instrumentation(os.environ, sys.modules),
    ]
    if as_json:
        columns = [field.name for field in dataclasses.fields(found[0])]
        print_rows((columns, [dataclasses.astuple(each) for each in found]), (), "json")
    else:
        _tell(found)
    if any(each.level == "wrong" for each in found):
        sys.exit(1)


def content(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Say where the content of sessions that start now goes by default, and where that comes from."""
    from agentobs.recording.options import CONTENT_VARIABLE, Content

    given = variables.get(CONTENT_VARIABLE) or ""
    if given and given not in get_args(Content):
        told = (
            f"{CONTENT_VARIABLE} is {given[:40]!r}, which is none of them: sessions start with content off, so that "
            "what is said is written nowhere, and with a warning"
        )
        todo = "Say off, vault or export, or unset it"
        yield _finding("content", "wrong", told, CONTENT_VARIABLE, todo)
        return
    means = {
        "off": "what is said is written nowhere",
        "vault": "what is said stays in the home",
        "export": "what is said goes to the home and to the backends",
    }
    source = f"{CONTENT_VARIABLE} is set" if given else f"{CONTENT_VARIABLE} is not set"
    told = f"{given or 'vault'} by default: {means[given or 'vault']} ({source})"
    yield _finding("content", "ok", told, CONTENT_VARIABLE, "")


def instrumentation(variables: Mapping[str, str], modules: Mapping[str, Any]) -> Iterator[Finding]:
    """Look for others that make spans of the same calls, in this process and its environment.

    Args:
        variables: the environment.
        modules: what is imported.
    """
    has_provider = _has_provider(variables, modules)
    if has_provider and variables.get(SPANS, "").lower() != "false":
        told = (
            f"{has_provider}, and the SDK's own spans are on: record(client) switches them off or adopts them, but not "
            'those of copies that the client had made before, nor with sdk_span="leave"'
        )
        todo = (
            f"Make copies (with_options) after record(client); where that cannot be, set {SPANS}=false, or give the "
            "client open_telemetry=False"
        )
        yield _finding("instrumentation", "note", told, SPANS, todo)
    loaded = [name for name in INSTRUMENTATIONS if name in modules]
    for name in loaded:
        told = f"{INSTRUMENTATIONS[name]} is loaded: it makes spans of the SDK's calls as well"
        todo = "Leave one of the two out; agentobs records at the transport, whatever else is on"
        yield _finding("instrumentation", "wrong", told, name, todo)
    there = [name for name in INSTRUMENTATIONS if name not in loaded and _is_there(name)]
    for name in there:
        told = f"{INSTRUMENTATIONS[name]} is installed, and not loaded here"
        todo = "Where the agent loads it, each call has two spans: --load MODULE looks at that"
        yield _finding("instrumentation", "note", told, name, todo)
    if not (has_provider or loaded or there):
        told = "nothing else makes spans of the SDK's calls"
        yield _finding("instrumentation", "ok", told, "this process", "")


def _has_provider(variables: Mapping[str, str], modules: Mapping[str, Any]) -> str:
    """Return how a global provider of spans is set, or nothing."""
    if getattr(modules.get("opentelemetry.trace"), "_TRACER_PROVIDER", None) is not None:
        return "a global TracerProvider is set"
    automatic = next((name for name in AUTOMATIC if variables.get(name)), "")
    return f"{automatic} sets a global TracerProvider" if automatic else ""


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _load(module: str) -> None:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        importlib.import_module(module)
    except Exception as error:
        raise UsageError(
            f"cannot be imported: {type(error).__name__}",
            where=f"--load {module[:80]}",
            todo="Name a module that can be imported from here, as in python -m",
        ) from error
    finally:
        sys.path.remove(here)


def _finding(check: str, level: Level, found: str, where: str, todo: str) -> Finding:
    from agentobs.store.duckdb.checkup import Finding as Kind

    return Kind(check, level, found, where, todo)


def _tell(found: list[Finding]) -> None:
    for each in found:
        click.echo(printable(f"{each.level:<6} {each.check:<16} {each.found}"))
        if each.level != "ok":
            click.echo(printable(f"{'':<24}where: {each.where}"))
            click.echo(printable(f"{'':<24}do:    {each.todo}."))
    wrong = sum(each.level == "wrong" for each in found)
    click.echo(
        "nothing is wrong"
        if not wrong
        else f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong"
    )
