"""The description of a failing agent, with its provider, its right fixes and its wrong fixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.failing_agents.provider import Reply, Request

SOURCES = Path(__file__).parent / "agents"


@dataclass(frozen=True)
class Edit:
    """A replacement of one text in one file of the agent."""

    path: str
    old: str
    new: str

    def apply(self, project: Path) -> None:
        """Edit the file in the folder `project`.

        Raises:
            ValueError: the old text does not occur exactly once.
        """
        file = project / self.path
        source = file.read_text()
        if source.count(self.old) != 1:
            found = source.count(self.old)
            raise ValueError(f"{file}: expected the text once, found it {found} times: {self.old}")
        file.write_text(source.replace(self.old, self.new))


@dataclass(frozen=True)
class Change:
    """A change to the agent: a right fix, or a wrong fix that does not remove the failure."""

    description: str
    edits: tuple[Edit, ...]
    assertion: str | None = None
    """The line that the author of the agent adds to `test_fixed`, if any."""
    needs_provider: bool = False
    """Whether the fix changes the prompt or the text of an error, so that only a run with the provider can verify it.

    Offline, `test_fixed` stays red, and its message states this.
    """
    turn: int | None = None
    """The earlier turn in which the fix changes a tool result, if any. `test_fixed` of the turn that `freeze` chooses
    then still fails and suggests `--turn`; `test_fixed` of this turn passes.
    """
    only_with_assertion: bool = False
    """Whether the wrong fix changes the failing turn, so that only the assertion of the agent's author detects it."""


@dataclass(frozen=True)
class Case:
    """A failing agent."""

    name: str
    """The folder of its sources in `agents/`."""
    shape: str
    tools: str
    """How its tools are recorded: `record_tool`, `own loop` (by the loop of agentobs), `plain` (not recorded) or `none`
    (it has no tools)."""
    failure: str
    run: tuple[str, ...]
    """The interpreter's arguments that start the agent."""
    answer: Callable[[Request], Reply]
    """The rules of the provider, which return the response to a request, depending on the request's content."""
    fails: str
    """A regular expression that the output of the buggy agent must match."""
    succeeds: str
    """A regular expression that the output of the fixed agent must match."""
    fixes: tuple[Change, ...]
    wrong: tuple[Change, ...]
    named: str
    """A regular expression that the message of a red `test_fixed` must match, so that the reason is right."""
    turns: tuple[int, ...]
    """The turns that a person would choose as the failing turn."""
    freeze: tuple[str, ...] = ("--last-failed",)
    """The arguments of `agentobs freeze`; `SESSION` represents the ID of the session."""
    completes: bool = False
    """Whether the buggy session completes with a wrong answer."""
    tampered: Change | None = None
    """A change after the first fix that affects only the returned value, and that `test_same_path` must detect. None if
    the recording does not contain the value: a session in a `with` block records a result only with `session.result`.
    """
    needs: tuple[str, ...] = ()
    """The packages to install into a separate environment; empty if the environment of the project suffices."""
    source_root: str = "."
    """The folder of the project to add to `PYTHONPATH`, instead of installing the project."""
    is_quick: bool = False
    """Whether `make test` includes the agent."""
