"""The command line. Each command's module is imported when it runs, so that `--help` is instant."""

from __future__ import annotations

import importlib
import io
import os
import sys
from keyword import iskeyword
from typing import Any

import click

from agentobs.errors import AgentobsError

_COMMANDS = {
    "demo": (
        "agentobs.cli.demo",
        "Record a failed session, query it, and turn it into a test. Needs no key.",
    ),
    "run": (
        "agentobs.cli.run",
        "Run the agent loop on a prompt against the real provider, recorded.",
    ),
    "sessions": ("agentobs.cli.look", "List recorded sessions, the newest first."),
    "show": ("agentobs.cli.look", "Show one session: turns, tools, money, where the time went."),
    "diagnose": (
        "agentobs.cli.diagnose",
        "Tell which failure signatures a session shows, and what to do about them.",
    ),
    "time": (
        "agentobs.cli.times",
        "Split the wall time of each interaction of a session, without overlap.",
    ),
    "tools": (
        "agentobs.cli.times",
        "Show the slowest tools: p50, p95 and p99, net of waiting for people.",
    ),
    "waits": (
        "agentobs.cli.times",
        "Show how long people were waited for, and what became of hooks.",
    ),
    "models": ("agentobs.cli.times", "Show how long each model takes to begin its answer."),
    "orphans": ("agentobs.cli.times", "Show what was open when a process died."),
    "cost": (
        "agentobs.cli.cost",
        "Show what was spent, by model, session, day, agent or source; reconcile with the invoice.",
    ),
    "reprice": ("agentobs.cli.cost", "Price stored calls again with other prices: a what-if."),
    "cache": ("agentobs.cli.cost", "Show what caching saved, and what misses wasted and why."),
    "sql": ("agentobs.cli.sql", "Ask the store in SQL, read-only."),
    "dashboard": ("agentobs.cli.dashboard", "Show recordings in a browser, live."),
    "freeze": ("agentobs.cli.again", "Make a recorded session a fixture and a test."),
    "replay": (
        "agentobs.cli.again",
        "Rerun an agent against a fixture and show where it parts from it.",
    ),
    "fork": (
        "agentobs.cli.fork",
        "Replay a fixture or a session up to a turn, and continue live from there.",
    ),
    "diff": (
        "agentobs.cli.compare",
        "Compare two sessions step by step, with money, tokens and time of each.",
    ),
    "serve": (
        "agentobs.cli.again",
        "Answer over loopback HTTP from a recording, in the provider's place.",
    ),
    "import": ("agentobs.cli.imports", "Bring in sessions that were recorded elsewhere."),
    "labels": (
        "agentobs.cli.labels",
        "List every reviewed label in the source, with its reason.",
    ),
    "export": (
        "agentobs.cli.export",
        "Write what was recorded to files for other tools: tables, flame graphs.",
    ),
    "bundle": (
        "agentobs.cli.bundle",
        "Put sessions into one file that another machine imports, without what was said.",
    ),
    "report": (
        "agentobs.cli.report",
        "Write one HTML file that shows a session, or a range of them.",
    ),
    "journal": ("agentobs.cli.journal", "Print what a segment holds, record by record."),
    "ingest": ("agentobs.cli.keep", "Publish what was recorded into the DuckDB file."),
    "doctor": (
        "agentobs.cli.doctor",
        "Look for what is wrong with the set-up and the recordings, and say what to do.",
    ),
    "verify": ("agentobs.cli.keep", "Read everything back and report what is damaged."),
    "prune": ("agentobs.cli.keep", "Delete old sessions, or only what was said in them."),
    "repair": (
        "agentobs.cli.keep",
        "Mend what is damaged; what is replaced goes to <home>/damaged/.",
    ),
}


class _Commands(click.Group):
    """The commands, imported one by one; only their names and one-line helps are known before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        # `import` is a word of the language.
        command: click.Command = getattr(module, f"{cmd_name}_" * iskeyword(cmd_name) or cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--home",
    metavar="DIR",
    help="Where recordings are. Default: AGENTOBS_HOME, else .agentobs here.",
)
@click.version_option(package_name="agentobs-kit", prog_name="agentobs")
@click.pass_context
def cli(context: click.Context, home: str | None) -> None:
    """A flight recorder for LLM agents: what happened, what it cost, where the time went.

    A session that failed becomes a test that runs offline: freeze it, replay it, mend the agent.
    """
    context.obj = home


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every error of ours is one line on standard error and a non-zero exit."""
    try:
        cli.main(arguments, prog_name="agentobs", standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        _say_error(told.getvalue().removesuffix("\n"))
        sys.exit(error.exit_code)
    except AgentobsError as error:
        _say_error(f"error: {error}")
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        _close_output()
        sys.exit(141)


def _say_error(told: str) -> None:
    """Print an error; what it quotes may hold what would steer a terminal, which shows as escapes."""
    from agentobs.records.shown import printable

    for line in told.split("\n"):
        click.echo(printable(line), err=True)


def _close_output() -> None:
    """Whoever read our output has gone; keep the interpreter from complaining about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def home_option(context: click.Context) -> Any:
    """Return the home that was named on the command line, or None."""
    return context.find_root().obj
