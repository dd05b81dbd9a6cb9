"""The command line. Each command's module is imported when it runs, so that `--help` is instant."""

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
    "run": (
        "agentobs.cli.run",
        "Run the agent loop on a prompt against the real provider, recorded.",
    ),
    "sessions": ("agentobs.cli.inspection.sessions", "List recorded sessions, the newest first."),
    "show": (
        "agentobs.cli.inspection.sessions",
        "Show one session: turns, tools, money, where the time went.",
    ),
    "diagnose": (
        "agentobs.cli.inspection.diagnosis",
        "Tell which failure signatures a session shows, and what to do about them.",
    ),
    "time": (
        "agentobs.cli.inspection.time_use",
        "Split the wall time of each interaction of a session, without overlap.",
    ),
    "tools": (
        "agentobs.cli.inspection.time_use",
        "Show the slowest tools: p50, p95 and p99, net of waiting for people.",
    ),
    "waits": (
        "agentobs.cli.inspection.time_use",
        "Show how long people were waited for, and what became of hooks.",
    ),
    "models": (
        "agentobs.cli.inspection.time_use",
        "Show how long each model takes to begin its answer.",
    ),
    "orphans": ("agentobs.cli.inspection.time_use", "Show what was open when a process died."),
    "cost": (
        "agentobs.cli.inspection.cost_commands",
        "Show what was spent, by model, session, day, agent or source; reconcile with the invoice.",
    ),
    "reprice": (
        "agentobs.cli.inspection.cost_commands",
        "Price stored calls again with other prices: a what-if.",
    ),
    "cache": (
        "agentobs.cli.inspection.cost_commands",
        "Show what caching saved, and what misses wasted and why.",
    ),
    "sql": ("agentobs.cli.inspection.sql", "Ask the store in SQL, read-only."),
    "dashboard": ("agentobs.cli.inspection.dashboard", "Show recordings in a browser, live."),
    "freeze": ("agentobs.cli.replay.freeze", "Make a recorded session a fixture and a test."),
    "replay": (
        "agentobs.cli.replay.replay",
        "Rerun an agent against a fixture and show where it parts from it.",
    ),
    "fork": (
        "agentobs.cli.replay.fork",
        "Replay a fixture or a session up to a turn, and continue live from there.",
    ),
    "diff": (
        "agentobs.cli.inspection.diff",
        "Compare two sessions step by step, with money, tokens and time of each.",
    ),
    "serve": (
        "agentobs.cli.replay.answer_server",
        "Answer over loopback HTTP from a recording, in the provider's place.",
    ),
    "import": ("agentobs.cli.transfer.imports", "Bring in sessions that were recorded elsewhere."),
    "labels": (
        "agentobs.cli.maintenance.label_audit",
        "List every reviewed label in the source, with its reason.",
    ),
    "export": (
        "agentobs.cli.transfer.export",
        "Write what was recorded to files for other tools: tables, flame graphs.",
    ),
    "bundle": (
        "agentobs.cli.transfer.bundle",
        "Put sessions into one file that another machine imports, without what was said.",
    ),
    "report": (
        "agentobs.cli.inspection.report",
        "Write one HTML file that shows a session, or a range of them.",
    ),
    "journal": (
        "agentobs.cli.maintenance.journal",
        "Print what a segment holds, record by record.",
    ),
    "ingest": (
        "agentobs.cli.maintenance.store_commands",
        "Publish what was recorded into the DuckDB file.",
    ),
    "doctor": (
        "agentobs.cli.maintenance.doctor",
        "Look for what is wrong with the set-up and the recordings, and say what to do.",
    ),
    "verify": (
        "agentobs.cli.maintenance.store_commands",
        "Read everything back and report what is damaged.",
    ),
    "prune": (
        "agentobs.cli.maintenance.store_commands",
        "Delete old sessions, or only what was said in them.",
    ),
    "repair": (
        "agentobs.cli.maintenance.store_commands",
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
    from agentobs.records.display import printable

    for line in told.split("\n"):
        click.echo(printable(line), err=True)


def _close_output() -> None:
    """Whoever read our output has gone; keep the interpreter from complaining about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
