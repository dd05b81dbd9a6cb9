"""`agentobs demo`: a recorded session that fails, its tests, and the fix that makes them pass."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.errors import UsageError
from agentobs.installation import install_extra
from agentobs.records.display import printable

AGENT = "refund_agent"
BUG = "float(amount)"
FIXED = 'float(amount.replace(",", "."))'
PROMPT = "My parcel for order A-17 never came. Please refund me."


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for the demo, empty or new. Default: agentobs-demo, or the next free name.",
)
@click.pass_context
def demo(context: click.Context, output: Path | None) -> None:
    """Record a failed session, query it, and turn it into a test. Needs no key.

    All files are written to a separate folder, which is kept. With `agentobs --home DIR demo`, the recordings are
    written to DIR.
    """
    if importlib.util.find_spec("pytest") is None:
        raise UsageError(
            "the demo runs generated tests, but pytest is not installed here",
            todo=f"Install the extra `pytest`: {install_extra('pytest')}",
        )
    folder = _prepare(output)
    home = Path(chosen).absolute() if (chosen := home_option(context)) else folder / ".agentobs"
    _print(
        "The provider in this demo is a local server with prepared responses. It needs no key and "
        "no network."
    )
    _step(
        "1",
        (
            "Run an agent and record its HTTP traffic. The provider is overloaded once, then a "
            "refund fails."
        ),
    )
    _run_agent(folder, home)
    _step("2", "What happened, and what did it cost?")
    for command in (["sessions"], ["show", "refund-loop"], ["cost"], ["cost", "--detail"]):
        _agentobs(folder, home, command)
    _step(
        "3",
        (
            "Turn the failed session into two tests: one reproduces the failure, one fails until "
            "it is fixed."
        ),
    )
    _agentobs(folder, home, ["freeze", "--last-failed"])
    _pytest(folder, home, expect_failure=True)
    _step("4", f"Fix the agent: {BUG} becomes {FIXED}. Now both tests pass, offline.")
    _change(folder / f"{AGENT}.py", BUG, FIXED)
    _pytest(folder, home, expect_failure=False)
    _step(
        "5",
        (
            "Replay: the agent takes the same path, and no tool runs. Then a tool runs live and "
            "returns a different result."
        ),
    )
    _agentobs(folder, home, ["replay", "fixtures/refund-loop"])
    _change(folder / f"{AGENT}.py", '"total": "41,90"', '"total": "41.90"')
    _agentobs(folder, home, ["replay", "fixtures/refund-loop", "--tools", "live"], expect=1)
    _change(folder / f"{AGENT}.py", '"total": "41.90"', '"total": "41,90"')
    _print(
        f"\nEverything is in {os.path.relpath(folder)}: the agent, the fixture with its test, "
        f"and the store{'' if home.parent == folder else f' ({printable(os.path.relpath(home))})'}."
    )
    recordings = shlex.quote(os.path.relpath(home))
    _print(f"View it in a browser: agentobs --home {recordings} dashboard")


def _prepare(output: Path | None) -> Path:
    """Return a new folder that contains the agent. Existing files are never changed."""
    folder = (output or _unused_path(Path("agentobs-demo"))).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(
            "the folder is not empty", where=str(folder), todo="Choose another folder with -o"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        agent = files("agentobs.cli.demo").joinpath(f"{AGENT}.py").read_text(encoding="utf-8")
        (folder / f"{AGENT}.py").write_text(agent, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write here: {error.strerror}",
            where=str(folder),
            todo="Choose another folder with -o",
        ) from error
    return folder


def _unused_path(path: Path) -> Path:
    names = itertools.chain(
        [path], (path.with_name(f"{path.name}-{n}") for n in itertools.count(2))
    )
    return next(name for name in names if not name.exists())


def _run_agent(folder: Path, home: Path) -> None:
    """Run and record the agent in this process, with the local provider over loopback HTTP."""
    from agentobs.cli.demo.provider import recording
    from agentobs.recording.session import start_recorder, stop_recorder
    from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions

    with ServedProvider(recording(), ServeOptions(match="order", pace=1.0)) as provider:
        os.environ.update(
            ANTHROPIC_BASE_URL=provider.url,
            ANTHROPIC_API_KEY="a-made-up-key",
            AGENTOBS_HOME=str(home),
            NO_PROXY="127.0.0.1",
            no_proxy="127.0.0.1",
        )
        sys.path.insert(0, str(folder))
        start_recorder(str(home))
        agent = importlib.import_module(AGENT)
        _print(f"\n  user   {PROMPT}")
        _print(f"  agent  {asyncio.run(agent.answer(PROMPT))}")
        stop_recorder()


def _agentobs(folder: Path, home: Path, arguments: list[str], expect: int = 0) -> None:
    """Run an agentobs command as a user would, in the folder of the demo."""
    _print(f"\n$ agentobs {' '.join(arguments)}")
    _child(folder, home, [sys.executable, "-m", "agentobs", *arguments], expect)


def _pytest(folder: Path, home: Path, *, expect_failure: bool) -> None:
    _print("\n$ pytest fixtures/refund-loop")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "fixtures/refund-loop",
    ]
    _child(folder, home, command, 1 if expect_failure else 0)


def _child(folder: Path, home: Path, command: list[str], expect: int) -> None:
    sys.stdout.flush()
    cleaned = {
        name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")
    }
    environment = {
        **cleaned,
        "AGENTOBS_HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    finished = subprocess.run(command, cwd=folder, env=environment, check=False)
    if finished.returncode != expect:
        raise UsageError(
            f"a command of the demo exited with {finished.returncode}, expected {expect}",
            where=" ".join(command),
        )


def _change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if old not in text:
        raise UsageError(f"the file does not contain {old!r}", where=str(path))
    path.write_text(text.replace(old, new), encoding="utf-8")


def _step(number: str, text: str) -> None:
    click.secho(f"\n{number}. {text}", bold=True)


def _print(line: str) -> None:
    click.echo(line)
