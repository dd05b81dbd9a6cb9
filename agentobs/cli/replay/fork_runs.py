"""The forks of a comparison: each runs in its own process and directory, and is verified by a command."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from agentobs import world
from agentobs.errors import AgentobsError, UsageError
from replay.command.child_program import ChildProgram
from replay.scenario.live_meter import LiveUse
from replay.workspace.recorded_workspace import RecordedWorkspace
from replay.workspace.scratch import Scratch, changed_files

INTERRUPTED_SECONDS = 20.0
"""How long an interrupted fork may take to end its session. Our choice."""
NOT_STARTED = (126, 127)
"""The exit codes of a shell if a command cannot be executed, or does not exist."""

Verdict = Literal["passed", "failed", "timeout"]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of the command that verifies the files of a run."""

    verdict: Verdict
    exit_code: int | None
    """Its exit code; None if it reached its time limit."""
    output: str = field(repr=False)
    """The end of its output."""

    def text(self) -> str:
        """Return the verdict with its exit code."""
        return self.verdict if self.verdict != "failed" else f"failed (exit {self.exit_code})"


@dataclass(slots=True)
class Row:
    """One line of a comparison."""

    model: str
    run: int | None
    """The number of the run of this model; None for the recorded session."""
    use: LiveUse = field(default_factory=LiveUse)
    verified: Verified | None = None
    """None if nothing was verified."""
    duration_ns: int | None = None
    files_changed: int | None = None
    session_ids: Sequence[str] = ()
    directory: Path | None = None
    problem: str | None = None
    """Why the run did not end by itself, or was not started."""

    def as_json(self) -> dict[str, Any]:
        """Return the row as a JSON value."""
        return {
            "model": self.model,
            "run": self.run,
            "verdict": self.verified.verdict if self.verified else None,
            "verify_exit_code": self.verified.exit_code if self.verified else None,
            **self.use.as_json(),
            "duration_ns": self.duration_ns,
            "files_changed": self.files_changed,
            "session_ids": list(self.session_ids),
            "directory": None if self.directory is None else str(self.directory),
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Verification:
    """The command that decides whether a run has passed."""

    command: str
    """The command, for `sh -c`."""
    timeout: float
    """Its time limit, in seconds."""

    def run(self, directory: Path) -> Verified:
        """Run the command in a directory.

        Raises:
            UsageError: there is no shell.
        """
        environment = {**world.environment(), "PWD": str(directory)}
        child = ChildProgram(["sh", "-c", self.command], directory, environment)
        try:
            has_ended = child.has_ended.wait(self.timeout)
        finally:
            child.stop()
        output = f"{child.stdout.text()}{child.stderr.text()}"
        if not has_ended:
            return Verified("timeout", None, output)
        code = child.exit_code
        return Verified("failed" if code else "passed", code, output)


def recorded_row(
    workspace: RecordedWorkspace, use: LiveUse, model: str, verification: Verification, root: Path
) -> Row:
    """Return the row of the recorded session, whose files at the end are verified in the new directory `root`.

    Raises:
        UsageError: the command that verifies does not exist or cannot be executed.
    """
    row = Row(model, None, use)
    scratch = Scratch(workspace, root)
    try:
        row.directory = scratch.directory
        end = workspace.end or workspace.turns[max(workspace.turns)]
        scratch.restore(end)
        row.files_changed = len(scratch.difference(workspace.start, to=end).changes)
    finally:
        scratch.close()
    found = verification.run(row.directory)
    if found.exit_code in NOT_STARTED:
        raise UsageError(
            f"the command ended with exit code {found.exit_code}, so it does not exist or cannot be executed: "
            f"{found.output.strip()[-200:]}",
            where="--verify",
            todo="Nothing was sent. Correct the command; ignored files such as node_modules are not recorded, and can "
            "be linked with --link",
        )
    if workspace.end is None:
        row.problem = "the files at the end were not recorded"
    else:
        row.verified = found
    return row


def run_fork(
    row: Row,
    arguments: Sequence[str],
    usd_max: Decimal,
    workspace: RecordedWorkspace,
    verification: Verification,
    root: Path,
) -> None:
    """Run a fork in the new directory `root`, verify its files, and complete its row.

    Args:
        row: the row to complete.
        arguments: the arguments of `agentobs` up to the options of the fork.
        usd_max: the limit of its cost, in dollars.
        workspace: the recorded files.
        verification: the command that verifies.
        root: its directory; next to it are the output and the result of the fork.
    """
    result, log = root.with_name(f"{root.name}.json"), root.with_name(f"{root.name}.log")
    options = ["--model", row.model, "--max-usd", f"{usd_max:f}", "-o", str(root)]
    # If the process is killed, it writes no result, but it may have spent something.
    row.use = LiveUse(status="lower_bound")
    command = [sys.executable, "-m", "agentobs", *arguments, *options, "--result-file", str(result)]
    try:
        code = _run(command, log)
    finally:
        _read(row, result)
    if code != 0 and row.problem is None:
        row.problem = f"exit code {code}; see {log}"
    row.directory = root / workspace.directory
    if not row.directory.is_dir():
        row.directory = None
        return
    try:
        row.files_changed = len(changed_files(workspace, root).changes)
        row.verified = verification.run(row.directory)
    except AgentobsError as error:
        row.problem = row.problem or str(error)


def _run(command: Sequence[str], log: Path) -> int:
    """Run a process to its end, and return its exit code; Ctrl-C interrupts it once, and waits for its end."""
    with log.open("wb") as output:
        # In its own process session, it gets Ctrl-C only from here, and can end its session in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(INTERRUPTED_SECONDS)
            process.kill()
            process.wait()
            raise


def _read(row: Row, result: Path) -> None:
    """Take the result of a fork over into its row."""
    try:
        value: Mapping[str, Any] = json.loads(result.read_text("utf-8"))
    except (OSError, ValueError):
        return
    usd = None if value["usd"] is None else Decimal(value["usd"])
    row.use = LiveUse(value["turns"], value["tokens"], usd, value["cost_status"])
    row.session_ids, row.duration_ns = value["session_ids"], value["duration_ns"]
    row.problem = value["problem"]
    if row.problem is None and value["exit_code"]:
        row.problem = f"the agent ended with exit code {value['exit_code']}"


__all__ = ["Row", "Verification", "Verified", "recorded_row", "run_fork"]
