"""The command line. The module of a command is imported when the command runs, so that `--help` is fast."""

from __future__ import annotations

import importlib
import io
import os
import sys
from keyword import iskeyword

import click

from agentobs.errors import AgentobsError

_COMMANDS = {
    "demo": (
        "agentobs.cli.demo",
        "Record a failed session, query it, and turn it into a test. Needs no key.",
    ),
    "record": (
        "agentobs.cli.record",
        "Run a command and record its requests to the provider.",
    ),
    "mcp-tee": (
        "agentobs.cli.mcp_tee",
        "Run an MCP server and record its requests and responses.",
    ),
    "proxy": (
        "agentobs.cli.record",
        "Record the requests of programs that use this proxy in place of the provider.",
    ),
    "collect": (
        "agentobs.cli.collect",
        "Receive the telemetry (OTLP) of Claude Code and other programs.",
    ),
    "run": (
        "agentobs.cli.run",
        "Run the agent loop on a prompt with the real provider, and record it.",
    ),
    "sessions": ("agentobs.cli.inspection.sessions", "List recorded sessions, newest first."),
    "show": (
        "agentobs.cli.inspection.sessions",
        "Show one session: turns, tool calls, cost, and time.",
    ),
    "tail": (
        "agentobs.cli.inspection.tail",
        "Follow sessions live, one line per step: requests, tools, results, failures, cost.",
    ),
    "tui": (
        "agentobs.cli.tui",
        "Browse sessions in the terminal: failures, steps, transcript, cost, and playback step by step.",
    ),
    "score": (
        "agentobs.cli.inspection.notes",
        "Score a session, one of its turns or one of its tool calls.",
    ),
    "title": (
        "agentobs.cli.inspection.notes",
        "Set the title of a session. Local commands and pages show it.",
    ),
    "diagnose": (
        "agentobs.cli.inspection.diagnosis",
        "Report why a session failed, its failure signatures, and what to do about them.",
    ),
    "time": (
        "agentobs.cli.inspection.time_use",
        "Split the wall time of each interaction of a session into parts that do not overlap.",
    ),
    "tools": (
        "agentobs.cli.inspection.time_use",
        "Show the slowest tools: p50, p95 and p99, excluding recorded approval waits.",
    ),
    "waits": (
        "agentobs.cli.inspection.time_use",
        "Show approval waits, and the outcomes of hooks.",
    ),
    "models": (
        "agentobs.cli.inspection.time_use",
        "Show the time to the first chunk and the first token of each model.",
    ),
    "lines": (
        "agentobs.cli.inspection.time_use",
        "Show the lines that edit tools added and removed, by session and tool.",
    ),
    "limits": (
        "agentobs.cli.inspection.time_use",
        "Show how close each model came to its rate limits, by hour.",
    ),
    "orphans": (
        "agentobs.cli.inspection.time_use",
        "Show the operations that were still running when a process died.",
    ),
    "cost": (
        "agentobs.cli.inspection.cost_commands",
        "Show costs by model, session, day, agent, source, branch, commit or repository; compare them with the "
        "provider's report.",
    ),
    "reprice": (
        "agentobs.cli.inspection.cost_commands",
        "Recompute the cost of stored calls with different prices. Stored data does not change.",
    ),
    "cache": (
        "agentobs.cli.inspection.cost_commands",
        "Show what caching saved, what cache misses cost, and why they happened.",
    ),
    "sql": ("agentobs.cli.inspection.sql", "Run a read-only SQL query on the store."),
    "dashboard": ("agentobs.cli.inspection.dashboard", "Show recordings in a browser, live."),
    "freeze": ("agentobs.cli.replay.freeze", "Turn a recorded session into a fixture and a test."),
    "replay": (
        "agentobs.cli.replay.replay",
        "Replay an agent against a fixture and report the first divergence.",
    ),
    "fork": (
        "agentobs.cli.replay.fork",
        "Replay a fixture or a session up to a turn, then continue live.",
    ),
    "compare": (
        "agentobs.cli.replay.compare",
        "Fork a session with several models, and verify the files of each fork with a command.",
    ),
    "workspace": (
        "agentobs.cli.inspection.workspace_commands",
        "Restore the files of a session's workspace at a turn into a new directory.",
    ),
    "restore": (
        "agentobs.cli.inspection.workspace_commands",
        "Restore the files that a session has changed to their state before a turn.",
    ),
    "why": (
        "agentobs.cli.inspection.cause_commands",
        "Show the causes of a changed file, a command, a turn or a line.",
    ),
    "blame": (
        "agentobs.cli.inspection.cause_commands",
        "Show which session, turn and prompt wrote each line of a file.",
    ),
    "diff": (
        "agentobs.cli.inspection.diff",
        "Compare two sessions step by step, with cost, tokens and time.",
    ),
    "serve": (
        "agentobs.cli.replay.answer_server",
        "Serve the responses of a recording over loopback HTTP, in place of the provider.",
    ),
    "import": ("agentobs.cli.transfer.imports", "Import sessions that were recorded elsewhere."),
    "archive": (
        "agentobs.cli.transfer.archive",
        "Keep the session logs that other programs delete.",
    ),
    "labels": (
        "agentobs.cli.maintenance.label_audit",
        "List all `Label.reviewed(...)` calls in the source, each with its reason.",
    ),
    "export": (
        "agentobs.cli.transfer.export",
        "Export recorded data for other tools: tables, flame graphs, traces.",
    ),
    "bundle": (
        "agentobs.cli.transfer.bundle",
        "Pack sessions into one file for another machine, without prompts and responses.",
    ),
    "report": (
        "agentobs.cli.inspection.report",
        "Write one HTML file that shows a session, or a range of sessions.",
    ),
    "journal": (
        "agentobs.cli.maintenance.journal",
        "Print the records of a segment.",
    ),
    "ingest": (
        "agentobs.cli.maintenance.store_commands",
        "Load new recorded data into the DuckDB file.",
    ),
    "doctor": (
        "agentobs.cli.maintenance.doctor",
        "Check the setup and the recordings, and suggest fixes.",
    ),
    "verify": (
        "agentobs.cli.maintenance.store_commands",
        "Read all recorded data back and report damage.",
    ),
    "prune": (
        "agentobs.cli.maintenance.store_commands",
        "Delete old sessions, or only their content.",
    ),
    "repair": (
        "agentobs.cli.maintenance.store_commands",
        "Repair damaged files; replaced files are kept in <home>/damaged/.",
    ),
}


class _Commands(click.Group):
    """The group of all commands. It lists names and short help texts without importing the modules of the commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        # `import` is a Python keyword, so its function has a trailing underscore.
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_" * iskeyword(name) or name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--home",
    metavar="DIR",
    help=(
        "Directory of the recordings. Default: AGENTOBS_HOME, else .agentobs in the current "
        "directory."
    ),
)
@click.version_option(package_name="agentobs-kit", prog_name="agentobs")
@click.pass_context
def cli(context: click.Context, home: str | None) -> None:
    """A flight recorder for LLM agents: what happened, what it cost, where the time went.

    A failed session becomes a test that runs offline: freeze it, replay it, fix the agent.
    """
    context.obj = home


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Each agentobs error becomes one line on standard error and a non-zero exit code."""
    try:
        cli.main(arguments, prog_name="agentobs", standalone_mode=False)
    except click.exceptions.Exit as exit_request:
        sys.exit(exit_request.exit_code)
    except click.ClickException as error:
        output = io.StringIO()
        error.show(output)
        _print_error(output.getvalue().removesuffix("\n"))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        _close_output()
        sys.exit(141)
    except (Exception, KeyboardInterrupt) as error:
        if _is_interruption(error):
            click.echo("interrupted", err=True)
            sys.exit(130)
        if not isinstance(error, AgentobsError):
            raise
        _print_error(f"error: {error}")
        sys.exit(1)


def _is_interruption(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error. DuckDB, dataclasses and other code turn it into different exceptions,
    depending on where it happens.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, KeyboardInterrupt | click.Abort) or str(error) in _INTERRUPTED:
            return True
        error = error.__cause__ or error.__context__
    return False


_INTERRUPTED = ("Query interrupted", "INTERRUPT Error: Interrupted!")
"""The texts of DuckDB's exceptions after Ctrl-C (DuckDB 2.0): a RuntimeError and an InterruptException."""


def _print_error(text: str) -> None:
    """Print an error, with control characters escaped, because it may quote data."""
    from agentobs.records.display import printable

    for line in text.split("\n"):
        click.echo(printable(line), err=True)


def _close_output() -> None:
    """Redirect standard output to the null device, so that the interpreter does not report the broken pipe at exit."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
