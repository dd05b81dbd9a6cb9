"""The observer of commands: shims for a recorded command, a patch of subprocess for the agent's own process."""

from __future__ import annotations

from collections import deque

from agentobs.effects.commands.command_records import command_record
from agentobs.effects.commands.process_commands import leave_process, observe_process
from agentobs.effects.commands.shim_files import ShimFiles, check_shims, write_shims
from agentobs.effects.commands.shim_reports import CommandReport, ShimReports
from agentobs.effects.observation import Scope
from agentobs.errors import UsageError, warn_once
from agentobs.sink import sink

PROGRAMS_VARIABLE = "AGENTOBS_COMMANDS"
"""The names of further programs that are observed, separated by commas."""
WAITING_MAX = 10_000
"""The maximum number of commands that wait for the first session. Our choice."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""How much of their streams is kept, in bytes. Our choice."""


class CommandObserver:
    """Observes the commands that an agent runs."""

    def __init__(self) -> None:
        """Prepare to observe."""
        self._scope: Scope | None = None
        self._files: ShimFiles | None = None
        self._reports: ShimReports | None = None
        self._waiting: deque[CommandReport] = deque()
        """The commands before the first session."""
        self._waiting_bytes = 0
        self._dropped = 0
        """The number of commands before the first session that were too many to wait."""

    def start(self, scope: Scope) -> None:
        """Put the shims in front of the PATH of a recorded command, or patch subprocess in this process.

        Raises:
            UsageError: there is no Perl or no shell, or shims cannot be written or executed.
        """
        self._scope = scope
        if scope.environment is None:
            observe_process(scope)
            return
        listed = scope.environment.get(PROGRAMS_VARIABLE, "").split(",")
        further = [each.strip() for each in listed if each.strip()]
        try:
            files = write_shims(scope.environment, further, keeps_content=scope.keeps_content)
        except OSError as error:
            raise UsageError(
                f"the shims of commands cannot be written: {error.strerror or error}",
                where="TMPDIR",
                todo="Set TMPDIR to a directory that can be written, or leave out `commands`",
            ) from error
        try:
            check_shims(files, scope.environment)
            self._reports = ShimReports(files.socket, self._ended)
        except UsageError:
            files.remove()
            raise
        except OSError as error:
            files.remove()
            raise UsageError(
                f"the socket that receives commands cannot be created: {error}",
                where=str(files.socket),
                todo="Set TMPDIR to a directory with a short path that can be written",
            ) from error
        self._files = files
        files.put_into(scope.environment)

    def stop(self) -> None:
        """Record what has arrived, and remove the shims; commands that run later are not observed."""
        if self._reports is not None and self._files is not None:
            self._reports.stop()
            if missed := self._files.missed():
                warn_once(
                    f"commands that were not recorded, because the recorder did not answer in time: {missed:,}"
                )
            self._files.remove()
            self._emit_waiting()
            if self._dropped:
                warn_once(
                    "commands that were not recorded, because too many ran before the first request: "
                    f"{self._dropped:,}"
                )
        elif self._scope is not None:
            leave_process(self._scope)

    def _ended(self, report: CommandReport) -> None:
        self._waiting.append(report)
        self._waiting_bytes += _kept_bytes(report)
        while len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            self._waiting_bytes -= _kept_bytes(self._waiting.popleft())
            self._dropped += 1
        self._emit_waiting()

    def _emit_waiting(self) -> None:
        """Emit the commands that have ended, if there is a session."""
        assert self._scope is not None
        place = self._scope.place()
        if place is None:
            return
        while self._waiting:
            report = self._waiting.popleft()
            self._waiting_bytes -= _kept_bytes(report)
            sink.emit(command_record(place, report, keeps_content=self._scope.keeps_content))


def _kept_bytes(report: CommandReport) -> int:
    if report.end is None:
        return 0
    return sum(
        len(part)
        for each in (report.end.stdout, report.end.stderr)
        for part in (each.head, each.tail)
    )


__all__ = ["CommandObserver"]
