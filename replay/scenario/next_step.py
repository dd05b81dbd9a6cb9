"""What an agent does next: the step after the recorded path ends, now and as it was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.messages import blocks, text_of
from agentobs.records.canonical_json import canonical
from agentobs.records.facts import Permission
from agentobs.sink import Record


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A tool call of the last turn and the result that the agent gave."""

    name: str
    input: Any
    result: Any
    """A string or a list of content blocks."""
    is_error: bool

    @property
    def text(self) -> str:
        """The result's text."""
        return text_of(self.result)


@dataclass(frozen=True, slots=True)
class Step:
    """What follows a turn: the next request, or the end."""

    request: dict[str, Any] | None = field(repr=False)
    """The next request's body; None where the agent asked nothing more."""
    tools: tuple[ToolOutcome, ...]
    """The results that it carries for the calls of the turn before."""
    outcome: str | None
    """How the session ended where nothing was asked: `completed` or `failed`."""
    reason: str | None
    """Why it failed."""
    returned: dict[str, Any] = field(default_factory=dict, repr=False)
    """The result of the session under the key `result`; empty if results are not compared."""

    def tool(self, name: str) -> ToolOutcome:
        """Return the first call of a tool.

        Raises:
            LookupError: it was not called in that turn.
        """
        for tool in self.tools:
            if tool.name == name:
                return tool
        called = ", ".join(tool.name for tool in self.tools) or "none"
        raise LookupError(f"{name} was not called in this turn (called: {called})")

    def lines(self) -> list[str]:
        """Return the step for people, one fact a line."""
        told = [
            f"{tool.name}({json.dumps(tool.input, ensure_ascii=False)}) -> "
            f"{'error: ' if tool.is_error else ''}{tool.text}"
            for tool in self.tools
        ]
        if self.request is None:
            told.append(
                f"the session ended: {self.outcome or 'unknown'} {self.reason or ''}".rstrip()
            )
            told += [
                f"it returned {json.dumps(each, ensure_ascii=False)}"
                for each in self.returned.values()
            ]
        else:
            told.append(
                f"asks the model again, with {len(self.request.get('messages', []))} messages"
            )
        return told


@dataclass(frozen=True, slots=True)
class Next:
    """The step after a turn, beside the recorded one."""

    now: Step = field(repr=False)
    recorded: Step = field(repr=False)
    result: Any = None
    """What the agent returned, where it came to its end; None where it was stopped at its next question."""
    later: tuple[Step, ...] = ()
    """The steps after that one, where answers were scripted."""
    decisions: tuple[Permission, ...] = ()
    """How it was decided about the calls of the turn, and of later ones."""
    held: tuple[str, ...] = ()
    """The functions that did not run, though all were to, because they change something outside."""
    turn: int = 0
    """The turn of the main lane that this step follows."""
    failure: str = ""
    """How the recorded session failed, as a clause; empty if the replay was not after that."""
    remarks: tuple[str, ...] = ()
    """What must be known to judge the agent by this step, such as that its prompt has changed."""
    is_early: bool = False
    """Whether the agent left the recorded path before the turn that is tested: nothing is known of that turn then."""
    repeats: bool = False
    """Whether the agent only continues a loop: one request more than recorded, with the same message as before."""

    @property
    def failed(self) -> bool:
        """Whether the session ended here, and failed."""
        return self.now.request is None and self.now.outcome == "failed"

    @property
    def differs(self) -> bool:
        """Whether the agent does something else now than was recorded, in the turn that is tested or later."""
        return not (self.is_early or self.repeats) and _essence(self.now) != _essence(self.recorded)

    def tool(self, name: str) -> ToolOutcome:
        """Return the first call of a tool in the turn, as it went now.

        Raises:
            LookupError: it was not called in that turn.
        """
        return self.now.tool(name)

    def decision(self, name: str) -> Permission:
        """Return how it was decided about the first call of a tool.

        Raises:
            LookupError: nothing was decided about it.
        """
        for decision in self.decisions:
            if decision.tool == name:
                return decision
        raise LookupError(f"nothing was decided about {name}")

    def require(self, expect: Expectation) -> None:
        """Raise where something does not hold of this step: `expect` asserts it, or returns False.

        Raises:
            AssertionError: it does not hold; the steps stand beside it.
        """
        try:
            holds = expect(self)
        except (AssertionError, LookupError) as error:
            raise AssertionError(f"{error}\n{self.describe()}") from error
        if holds is False:
            name = getattr(expect, "__name__", repr(expect))
            raise AssertionError(f"{name} does not hold\n{self.describe()}")

    def describe(self) -> str:
        """Return both steps as text, after one line that compares them."""
        if self.failed and not self.differs:
            verdict = f"the session fails as recorded: {self.failure}".removesuffix(": ")
        elif self.failed:
            verdict = "the session fails"
        elif self.differs:
            verdict = "the agent does something that differs from the recording"
        elif self.repeats:
            verdict = "the agent makes one more request of the same loop"
        elif self.is_early:
            verdict = "the agent does not get to the turn that is tested"
        else:
            verdict = "the agent does the same as recorded"
        verdict = "\n".join((verdict, *self.remarks))
        recorded = "\n".join(f"    {line}" for line in self.recorded.lines())
        held = [
            f"{name} was answered from the recording: it changes something; name it in tools= to run it"
            for name in self.held
        ]
        now = "\n".join(f"    {line}" for line in [*self.now.lines(), *held])
        return f"{verdict}\nrecorded after turn {self.turn}:\n{recorded}\nnow:\n{now}"


Expectation = Callable[[Next], object]
"""What must hold of a step: a function that asserts it, or returns False where it does not hold."""


def decisions_of(records: Iterable[tuple[Record, int | None]], turn: int) -> Iterator[Permission]:
    """Yield how it was decided about the agent's own calls of a turn and of those after it."""
    for record, _ in records:
        if isinstance(record, Permission) and record.lane == "main" and (record.turn or 0) >= turn:
            yield record


def step_of(
    request: dict[str, Any] | None,
    outcome: str | None = None,
    reason: str | None = None,
    returned: dict[str, Any] | None = None,
) -> Step:
    """Return the step that a next request is, or the end of the session where there is none."""
    if request is None:
        return Step(None, (), outcome, reason, returned or {})
    messages = [m for m in request.get("messages", []) if isinstance(m, dict)]
    calls = {
        str(block.get("id")): block
        for message in messages
        for block in blocks(message)
        if block.get("type") == "tool_use"
    }
    last = blocks(messages[-1]) if messages else []
    tools = tuple(
        _tool(block, calls.get(str(block.get("tool_use_id")), {}))
        for block in last
        if block.get("type") == "tool_result"
    )
    return Step(request, tools, None, None)


def _tool(block: dict[str, Any], call: dict[str, Any]) -> ToolOutcome:
    return ToolOutcome(
        name=str(call.get("name")),
        input=call.get("input"),
        result=block.get("content", ""),
        is_error=bool(block.get("is_error")),
    )


def _essence(step: Step) -> str:
    tools = [[tool.name, tool.input, tool.result, tool.is_error] for tool in step.tools]
    return canonical([step.request, tools, step.outcome, step.reason, step.returned])
