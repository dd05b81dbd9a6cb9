"""The command of a recorded session, as `agentobs record -- COMMAND` stores it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.determinism.entry import is_command
from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import ModelExchange, Recording


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """A recorded command."""

    argv: tuple[str, ...]
    """The program and its arguments."""
    exit_code: int | None = None
    """Its recorded exit code; None if it is not known."""
    directory: str | None = None
    """The recorded working directory; None if it is not known."""
    base_url_variables: tuple[str, ...] = ()
    """The variables with base URLs that the user named."""
    redirects_node: bool = False
    """Whether the requests of Node.js programs are redirected."""
    uses_bedrock: bool = False
    """Whether requests went to Bedrock."""

    def in_directory(self, directory: str) -> tuple[str, ...]:
        """Return the command with another directory in its arguments in place of the recorded one."""
        if not self.directory or self.directory == "/":
            return self.argv
        return tuple(_moved(each, self.directory, directory) for each in self.argv)


def command_of(recording: Recording) -> RecordedCommand | None:
    """Return the command of a recording; None if the recording is not from a command."""
    arguments = recording.arguments or {}
    argv = _texts(arguments.get("argv"))
    if not is_command(recording.entry) or not argv:
        return None
    directory = arguments.get("directory")
    result = recording.result.value if recording.result is not None else None
    code = result.get("exit_code") if isinstance(result, Mapping) else None
    return RecordedCommand(
        argv,
        code if isinstance(code, int) else None,
        directory if isinstance(directory, str) else None,
        _texts(arguments.get("base_url_variables")),
        arguments.get("redirects_node") is True,
        _uses_bedrock(recording),
    )


def _uses_bedrock(recording: Recording) -> bool:
    paths = {e.question.path for e in recording.exchanges if isinstance(e, ModelExchange)}
    dialects = [(dialect_of(path), path) for path in paths]
    return any(
        each.name == "aws.bedrock" or each.platform(each.endpoint(path)) == "bedrock"
        for each, path in dialects
    )


def _texts(value: Any) -> tuple[str, ...]:
    """Return a list of texts; empty if a value is something else."""
    listed = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return tuple(listed) if all(isinstance(each, str) for each in listed) else ()


def _moved(argument: str, old: str, new: str) -> str:
    """Return an argument with another directory wherever it contains the recorded one as a complete path."""
    pattern = rf"(?:(?<=://)|(?<![\w.~/-])){re.escape(old)}(?![\w.-])"
    return re.sub(pattern, lambda _: new, argument)
