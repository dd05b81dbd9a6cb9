"""The command that checks the setup and the recordings for problems: `doctor`."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN
from agentobs.cli.terminal.progress_line import Spinner
from agentobs.cli.terminal.query_output import open_store, print_rows, with_texts
from agentobs.errors import UsageError
from agentobs.records.display import printable
from agentobs.records.labels import DIGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agentobs.importers.claude_code.log_archive import LogState
    from agentobs.store.maintenance import Finding, Level

DAYS = 7
"""By default, losses, orphans and similar problems of the last `DAYS` days are reported. Our choice."""

SECONDS_PER_DAY = 86_400
WARNING_DAYS = 7
"""Logs that Claude Code deletes within this time are reported. Our choice."""

SPANS = "ANTHROPIC_OPEN_TELEMETRY"
"""The variable that turns the SDK's own spans off if it is `false` (anthropic 2.12, `_tracing.py`)."""

INSTRUMENTATIONS = {
    "opentelemetry.instrumentation.anthropic": "OpenLLMetry (traceloop), or OpenTelemetry's own",
    "traceloop.sdk": "traceloop",
    "openinference.instrumentation.anthropic": "OpenInference",
    "logfire": "Logfire",
    "langfuse": "Langfuse",
    "ddtrace": "Datadog",
    "braintrust": "Braintrust",
}
"""Other instrumentations of the SDK's calls, by module."""

AUTOMATIC = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_CONFIGURATOR", "OTEL_PYTHON_DISTRO")
"""Variables that make OpenTelemetry's automatic instrumentation set a provider before the program starts."""


@click.command()
@click.option(
    "--since",
    type=WHEN,
    default=f"{DAYS}d",
    show_default=True,
    metavar="WHEN",
    help="How far back to look for losses, orphans and similar problems.",
)
@click.option(
    "--load",
    "modules",
    multiple=True,
    metavar="MODULE",
    help=(
        "Import and run this module first, if it sets up your agent's telemetry. May be repeated."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.pass_context
def doctor(context: click.Context, since: int, modules: tuple[str, ...], as_json: bool) -> None:
    """Check the setup and the recordings, and suggest fixes.

    Checks the home, its contents, and this environment. Exits with 1 if there is a problem.
    """
    from agentobs import world
    from agentobs.recording.journal.home import locate
    from agentobs.store.maintenance import check_home

    for module in modules:
        _load(module)
    with Spinner("checking"):
        checked = check_home(locate(home_option(context)), world.now(), since)
    found = [
        *checked,
        *content(os.environ),
        *claude_code_logs(locate(home_option(context)), os.environ, world.now()),
        *instrumentation(os.environ, sys.modules),
        *effects(os.environ),
    ]
    found = _with_texts(context, found)
    if as_json:
        columns = [field.name for field in dataclasses.fields(found[0])]
        print_rows((columns, [dataclasses.astuple(each) for each in found]), (), "json")
    else:
        _print_findings(found)
    if any(each.level == "wrong" for each in found):
        sys.exit(1)


def effects(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Report whether the commands of recorded programs can be observed."""
    if shutil.which("perl", path=variables.get("PATH")) is None:
        yield _finding(
            "effects", "note", "`--effects commands` needs Perl, which is not installed", "PATH",
            "Install Perl 5.10 or later to observe the commands of recorded programs",
        )  # fmt: skip


def content(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Report where the content of new sessions goes by default, and which setting determines that."""
    from agentobs.recording.options import CONTENT_VARIABLE, Content

    mode = variables.get(CONTENT_VARIABLE) or ""
    if mode and mode not in get_args(Content):
        found = (
            f"{CONTENT_VARIABLE} is {mode[:40]!r}, expected off, vault or export: sessions start "
            "with content off and a warning, so prompts and responses are not recorded"
        )
        todo = "Set it to off, vault or export, or unset it"
        yield _finding("content", "wrong", found, CONTENT_VARIABLE, todo)
        return
    effects = {
        "off": "prompts and responses are not recorded",
        "vault": "prompts and responses stay in the home",
        "export": "prompts and responses go to the home and to the backends",
    }
    source = f"{CONTENT_VARIABLE} is set" if mode else f"{CONTENT_VARIABLE} is not set"
    found = f"{mode or 'vault'} by default: {effects[mode or 'vault']} ({source})"
    yield _finding("content", "ok", found, CONTENT_VARIABLE, "")


def claude_code_logs(home: Path, variables: Mapping[str, str], now_ns: int) -> Iterator[Finding]:
    """Report the age of Claude Code's session logs, and when it deletes them; nothing if there are none.

    Args:
        home: the home with archived logs.
        variables: the environment variables.
        now_ns: the current time.
    """
    from agentobs.importers.claude_code import log_archive
    from agentobs.recording.journal.home import Home

    folder = log_archive.claude_folder(variables)
    projects = folder / "projects"
    logs, unreadable = log_archive.logs_in(projects) if projects.is_dir() else ({}, [])
    if unreadable:
        yield _finding(
            "claude_code",
            "note",
            f"{len(unreadable)} files or folders with session logs of Claude Code cannot be read: "
            f"{unreadable[0].found}",
            str(unreadable[0].path),
            "Correct the permissions",
        )
    if not logs:
        return
    kept = log_archive.retention(folder)
    archived = log_archive.archived_logs(Home(home))
    missing = [
        state
        for path, state in logs.items()
        if archived.get(path.relative_to(projects).as_posix()) != state
    ]
    found = (
        f"{_several(len(logs), 'session log')} of Claude Code, the oldest {_days(logs.values(), now_ns):.0f} days old; "
        f"it deletes them after {kept.days} days ({log_archive.SETTING}: {kept.source})"
    )
    if not missing:
        all_are = "all are" if len(logs) > 1 else "it is"
        yield _finding("claude_code", "ok", f"{found}; {all_are} archived", str(projects), "")
        return
    left = max(kept.days - _days(missing, now_ns), 0)
    found += f"; {len(missing)} not archived or changed since then, the first is deleted in {left:.0f} days"
    level: Level = "note" if left < WARNING_DAYS else "ok"
    todo = f"Run `agentobs archive claude-code` to keep them, or set {log_archive.SETTING} to more days"
    yield _finding("claude_code", level, found, str(projects), todo if level == "note" else "")


def _days(logs: Iterable[LogState], now_ns: int) -> float:
    """Return the age of the oldest log in days."""
    return max((now_ns - min(each.changed_ns for each in logs)) / 1e9 / SECONDS_PER_DAY, 0)


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def instrumentation(variables: Mapping[str, str], modules: Mapping[str, Any]) -> Iterator[Finding]:
    """Look in this process and its environment for other instrumentations of the same calls.

    Args:
        variables: the environment variables.
        modules: the imported modules.
    """
    provider_source = _has_provider(variables, modules)
    if provider_source and variables.get(SPANS, "").lower() != "false":
        found = (
            f"{provider_source}, and the SDK creates its own spans. record(client) turns them off or "
            'adopts them, unless sdk_span="leave" is set or the client was copied before '
            "record(client)"
        )
        todo = (
            "Make copies (with_options) after record(client). If that is not possible, set "
            f"{SPANS}=false, or pass open_telemetry=False to the client"
        )
        yield _finding("instrumentation", "note", found, SPANS, todo)
    loaded = [name for name in INSTRUMENTATIONS if name in modules]
    for name in loaded:
        found = f"{INSTRUMENTATIONS[name]} is loaded: it also creates spans for the SDK's calls"
        todo = (
            "Remove one of the two; agentobs records at the transport, independently of other "
            "instrumentation"
        )
        yield _finding("instrumentation", "wrong", found, name, todo)
    installed = [name for name in INSTRUMENTATIONS if name not in loaded and _is_installed(name)]
    for name in installed:
        found = f"{INSTRUMENTATIONS[name]} is installed, but not loaded here"
        todo = "If the agent loads it, each call has two spans; check with --load MODULE"
        yield _finding("instrumentation", "note", found, name, todo)
    if not (provider_source or loaded or installed):
        found = "no other instrumentation creates spans for the SDK's calls"
        yield _finding("instrumentation", "ok", found, "this process", "")


def _has_provider(variables: Mapping[str, str], modules: Mapping[str, Any]) -> str:
    """Describe how a global tracer provider is set; return an empty string if none is set."""
    if getattr(modules.get("opentelemetry.trace"), "_TRACER_PROVIDER", None) is not None:
        return "a global TracerProvider is set"
    automatic = next((name for name in AUTOMATIC if variables.get(name)), "")
    return f"{automatic} sets a global TracerProvider" if automatic else ""


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _load(module: str) -> None:
    directory = str(Path.cwd())
    sys.path.insert(0, directory)
    try:
        importlib.import_module(module)
    except Exception as error:
        raise UsageError(
            f"cannot import the module: {type(error).__name__}",
            where=f"--load {module[:80]}",
            todo="Pass a module that can be imported from here, as in python -m",
        ) from error
    finally:
        sys.path.remove(directory)


def _finding(check: str, level: Level, found: str, where: str, todo: str) -> Finding:
    from agentobs.store.maintenance import Finding as FindingType

    return FindingType(check, level, found, where, todo)


def _with_texts(context: click.Context, found: list[Finding]) -> list[Finding]:
    """Return findings with texts in place of digests, such as the names of models; they are shown on this machine."""
    if not any(DIGEST in each.found + each.where for each in found):
        return found
    with open_store(context):
        _, rows = with_texts(([], [(each.found, each.where) for each in found]))
    return [
        dataclasses.replace(each, found=text, where=where)
        for each, (text, where) in zip(found, rows, strict=True)
    ]


def _print_findings(found: list[Finding]) -> None:
    for each in found:
        click.echo(printable(f"{each.level:<6} {each.check:<16} {each.found}"))
        if each.level != "ok":
            click.echo(printable(f"{'':<24}where: {each.where}"))
            click.echo(printable(f"{'':<24}to do: {each.todo}."))
    wrong = sum(each.level == "wrong" for each in found)
    click.echo(
        "no problems found"
        if not wrong
        else f"{wrong} {'problem' if wrong == 1 else 'problems'} found"
    )
