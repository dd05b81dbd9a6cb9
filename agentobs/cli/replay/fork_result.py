"""The result of a fork: what is printed about its files, and what `agentobs compare` reads."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs import world
from agentobs.cli.replay.workspace_choice import keep_with
from agentobs.errors import AgentobsError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from agentobs.effects.workspaces.fork_directories import ForkDirectory
    from replay.scenario.live_meter import LiveMeter


@dataclass(slots=True)
class ForkResult:
    """The result of a fork."""

    file: Path | None
    """The file to which the result is written as JSON; None if it is not written."""
    meter: LiveMeter
    directory: Path | None = None
    """The directory with its files."""
    kept: ForkDirectory | None = None
    """The temporary directory around it, if the user has chosen none."""
    session_ids: list[str] = field(default_factory=list)
    restored: int | None = None
    """The number of files that were changed to the recorded ones before it went live; None if the session has no
    files.
    """
    exit_code: int | None = None
    """The exit code of a command."""
    problem: str | None = None
    """Why it did not end by itself."""

    def print_files(self, turn: int) -> None:
        """Print where its files are, and whether the replayed tools had produced the recorded files."""
        if self.restored:
            files = "1 file" if self.restored == 1 else f"{self.restored} files"
            click.echo(
                f"note    replaced {files} that differed from the recorded ones at turn {turn}",
                err=True,
            )
        if self.directory is not None:
            click.echo(f"files   {printable(str(self.directory))}", err=True)

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Write the result at the end, even after an error."""
        started_ns = world.monotonic()
        try:
            yield
        except AgentobsError as error:
            self.problem = str(error)
            raise
        except KeyboardInterrupt:
            self.problem = "interrupted"
            raise
        finally:
            self._keep()
            if self.file is not None:
                value = self._as_json() | {"duration_ns": world.monotonic() - started_ns}
                self.file.write_text(json.dumps(value), encoding="utf-8")
            sys.stdout.flush()

    def _keep(self) -> None:
        """Keep the temporary directory as long as its sessions; delete it if the fork failed before it had one."""
        sessions = self.session_ids or list(self.meter.session_ids)
        if self.kept is not None and sessions:
            keep_with(self.kept, sessions)
        elif self.kept is not None and self.problem is not None:
            with contextlib.suppress(OSError):
                self.kept.delete()

    def _as_json(self) -> dict[str, Any]:
        return {
            **self.meter.use().as_json(),
            "session_ids": self.session_ids or list(self.meter.session_ids),
            "restored": self.restored,
            "exit_code": self.exit_code,
            "problem": self.meter.refusal or self.problem,
        }
