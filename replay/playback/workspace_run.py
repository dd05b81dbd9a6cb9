"""The recorded files in which an agent is replayed: the current directory during the replay, and their comparison."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from replay.agent_code.project import project, project_at
from replay.analysis.divergence_report import report
from replay.fixture.format import Fixture
from replay.progress.replay_state import ReplayState
from replay.scenario.replay_options import ReplayOptions
from replay.workspace.file_difference import FileDifference
from replay.workspace.recorded_workspace import RecordedWorkspace, workspace_of
from replay.workspace.scratch import Scratch, temporary_scratch

DIFFERENT_FILES = (
    "all requests match the recording, but the files at the end differ from the recorded ones"
)
"""The summary of the divergence."""


class WorkspaceRun:
    """The files of one replay; without recorded files, nothing changes."""

    def __init__(self, fixture: Fixture, options: ReplayOptions, state: ReplayState) -> None:
        """Prepare the files of a fixture, or of the fork in the options.

        Raises:
            UsageError: there are no files for the turn of a fork.
        """
        fork = options.fork
        self._workspace: RecordedWorkspace | None = workspace_of(fixture)
        if fork is not None and fork.workspace is not None:
            self._workspace = fork.workspace
        self._output = fork.output if fork is not None else None
        self._fixture, self._options, self._state = fixture, options, state
        self._tree: str | None = None
        if fork is not None and self._workspace is not None:
            self._tree = self._workspace.at_turn(fork.turn)
        self.restored: int | None = None
        """The number of files that differed from the recorded ones when a fork went live, and were therefore
        replaced.
        """
        self.files: FileDifference | None = None
        """How the files at the end differ from the recorded ones; None if they were not compared."""
        self.is_complete = False
        """Whether the files at the end are known when the replay stops."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Make a directory with the files the current directory; compare them at the end of a complete replay.

        Raises:
            UsageError: the files cannot be read or written.
        """
        if self._workspace is None:
            yield
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(project_at(project()))
            if self._output is None:
                scratch = stack.enter_context(temporary_scratch(self._workspace))
            else:
                scratch = Scratch(self._workspace, Path(self._output))
                stack.callback(scratch.close)
            if self._tree is not None:
                self._state.agent.before_live = lambda: self._restore(scratch)
            before = Path.cwd()
            os.chdir(scratch.directory)
            try:
                yield
                if self.is_complete and self._workspace.end is not None:
                    self.files = scratch.difference(self._workspace.end)
            finally:
                os.chdir(before)

    def _restore(self, scratch: Scratch) -> None:
        assert self._tree is not None
        self.restored = scratch.restore(self._tree)

    def note_complete(self) -> None:
        """Note that the whole recording was repeated, so that the files at its end can be compared.

        They can be compared only if all tools ran for real: results from the recording change no files.
        """
        options = self._options
        runs_tools = not self._fixture.tools or options.tools == "live"
        can_compare = runs_tools and options.fork is None and not options.faults
        has_end = self._workspace is not None and self._workspace.end is not None
        self.is_complete = can_compare and has_end

    def check(self) -> None:
        """Check that the files at the end are equal to the recorded ones, if they were compared.

        Raises:
            DivergenceError: they differ.
        """
        if self.files is None or self.files.is_equal:
            return
        lane, line = self._state.exchanges.main, self.files.line()
        found = report(self._state, "files", lane, DIFFERENT_FILES, why=line)
        lines = tuple(self.files.patch_lines())
        raise self._state.findings.diverge(dataclasses.replace(found, file_diff=lines))
