"""The observer of commands: shims for a recorded command, a patch of subprocess for the agent's own process."""

from __future__ import annotations

from agentobs.effects.commands.command_records import command_record
from agentobs.effects.commands.process_commands import leave_process, observe_process
from agentobs.effects.commands.shim_files import ShimFiles, check_shims, write_shims
from agentobs.effects.commands.shim_reports import CommandReport, ShimReports
from agentobs.effects.observation import Scope
from agentobs.errors import UsageError, warn_once
from agentobs.sink import sink

PROGRAMS_VARIABLE = "AGENTOBS_COMMANDS"
"""The names of further programs that are observed, separated by commas."""
WAITING_MAX = 1000
"""How many commands wait for the first session. Our choice."""


class CommandObserver:
    """Observes the commands that an agent runs."""

    def __init__(self) -> None:
        """Prepare to observe."""
        self._scope: Scope | None = None
        self._files: ShimFiles | None = None
        self._reports: ShimReports | None = None
        self._waiting: list[CommandReport] = []
        """The commands before the first session."""

    def start(self, scope: Scope) -> None:
        """Put the shims in front of the PATH of a recorded command, or patch subprocess in this process.

        Raises:
            UsageError: there is no Perl, or shims cannot be executed.
        """
        self._scope = scope
        if scope.environment is None:
            observe_process(scope)
            return
        listed = scope.environment.get(PROGRAMS_VARIABLE, "").split(",")
        further = [each.strip() for each in listed if each.strip()]
        files = write_shims(scope.environment, further, keeps_content=scope.keeps_content)
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
                    f"{missed:,} commands were not recorded: the recorder did not answer in time"
                )
            self._files.remove()
            self._emit_waiting()
        elif self._scope is not None:
            leave_process(self._scope)

    def _ended(self, report: CommandReport) -> None:
        self._waiting.append(report)
        del self._waiting[:-WAITING_MAX]
        self._emit_waiting()

    def _emit_waiting(self) -> None:
        """Emit the commands that have ended, if there is a session."""
        assert self._scope is not None
        place = self._scope.place()
        if place is None:
            return
        waiting, self._waiting = self._waiting, []
        for report in waiting:
            sink.emit(command_record(place, report, keeps_content=self._scope.keeps_content))


__all__ = ["CommandObserver"]
