"""The next step: what an agent does after the recorded path, compared with the recorded step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.dialect import Block, text_of
from agentobs.provider.registry import history, turns
from agentobs.records.canonical_json import canonical
from agentobs.records.facts import Permission
from agentobs.sink import Record


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A tool call of the last turn, with the result that the agent sent to the model."""

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
    """The step after a turn: the next request, or the end of the session."""

    request: dict[str, Any] | None = field(repr=False)
    """The next request's body; None if the agent sent no further request."""
    tools: tuple[ToolOutcome, ...]
    """The calls of the previous turn, with their results in this request."""
    outcome: str | None
    """How the session ended if there was no request: `completed` or `failed`."""
    reason: str | None
    """Why it failed."""
    returned: dict[str, Any] = field(default_factory=dict, repr=False)
    """The result of the session under the key `result`; empty if results are not compared."""

    def tool(self, name: str) -> ToolOutcome:
        """Return the first call of a tool.

        Raises:
            LookupError: the tool was not called in that turn.
        """
        for tool in self.tools:
            if tool.name == name:
                return tool
        called = ", ".join(tool.name for tool in self.tools) or "none"
        raise LookupError(f"{name} was not called in this turn (called: {called})")

    def lines(self) -> list[str]:
        """Return the step as text, one fact per line."""
        lines = [
            f"{tool.name}({json.dumps(tool.input, ensure_ascii=False)}) -> "
            f"{'error: ' if tool.is_error else ''}{tool.text}"
            for tool in self.tools
        ]
        if self.request is None:
            lines.append(
                f"the session ended: {self.outcome or 'unknown'} {self.reason or ''}".rstrip()
            )
            lines += [
                f"it returned {json.dumps(each, ensure_ascii=False)}"
                for each in self.returned.values()
            ]
        else:
            lines.append(f"makes another model call, with {len(history(self.request))} messages")
        return lines


@dataclass(frozen=True, slots=True)
class Next:
    """The live and the recorded step after a turn."""

    now: Step = field(repr=False)
    recorded: Step = field(repr=False)
    result: Any = None
    """The return value of the agent if it finished; None if it was stopped at its next request."""
    later: tuple[Step, ...] = ()
    """The steps after this one, if responses were scripted."""
    decisions: tuple[Permission, ...] = ()
    """The permission decisions about the calls of the turn and of later turns."""
    held: tuple[str, ...] = ()
    """The functions that did not run although all tools were live, because they are mutating."""
    turn: int = 0
    """The turn of the main lane that this step follows."""
    failure: str = ""
    """A clause that describes the failure of the recorded session; empty if the replay does not test a failure."""
    remarks: tuple[str, ...] = ()
    """Caveats for judging the agent by this step, such as a changed prompt."""
    is_early: bool = False
    """Whether the agent left the recorded path before the tested turn, so that nothing is known about that turn."""
    repeats: bool = False
    """Whether the agent only continues a loop: one more request than recorded, with the same message as before."""

    @property
    def failed(self) -> bool:
        """Whether the session ended here, and failed."""
        return self.now.request is None and self.now.outcome == "failed"

    @property
    def differs(self) -> bool:
        """Whether the agent does something different from the recording, in the tested turn or later."""
        return not (self.is_early or self.repeats) and _essence(self.now) != _essence(self.recorded)

    def tool(self, name: str) -> ToolOutcome:
        """Return the first live call of a tool in the turn.

        Raises:
            LookupError: the tool was not called in that turn.
        """
        return self.now.tool(name)

    def decision(self, name: str) -> Permission:
        """Return the decision about the first call of a tool.

        Raises:
            LookupError: there was no decision about a call of the tool.
        """
        for decision in self.decisions:
            if decision.tool == name:
                return decision
        raise LookupError(f"no decision was made about {name}")

    def require(self, expect: Expectation) -> None:
        """Raise if a condition does not hold for this step. `expect` asserts the condition, or returns False.

        Raises:
            AssertionError: the condition does not hold; the message contains both steps.
        """
        try:
            holds = expect(self)
        except (AssertionError, LookupError) as error:
            raise AssertionError(f"{error}\n{self.describe()}") from error
        if holds is False:
            name = getattr(expect, "__name__", repr(expect))
            raise AssertionError(f"the expectation {name} does not hold\n{self.describe()}")

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
            verdict = "the agent does not reach the turn that is tested"
        else:
            verdict = "the agent does the same as recorded"
        verdict = "\n".join((verdict, *self.remarks))
        recorded = "\n".join(f"    {line}" for line in self.recorded.lines())
        held = [
            f"{name} was answered from the recording because it has side effects; add it to tools= to run it"
            for name in self.held
        ]
        now = "\n".join(f"    {line}" for line in [*self.now.lines(), *held])
        return f"{verdict}\nrecorded after turn {self.turn}:\n{recorded}\nnow:\n{now}"


Expectation = Callable[[Next], object]
"""A condition on a step: a function that asserts it, or returns False if it does not hold."""


def decisions_of(records: Iterable[tuple[Record, int | None]], turn: int) -> Iterator[Permission]:
    """Yield the decisions about the main agent's calls in a turn and later turns."""
    for record, _ in records:
        if isinstance(record, Permission) and record.lane == "main" and (record.turn or 0) >= turn:
            yield record


def step_of(
    request: dict[str, Any] | None,
    outcome: str | None = None,
    reason: str | None = None,
    returned: dict[str, Any] | None = None,
) -> Step:
    """Return the step for the next request, or the end of the session if there is none."""
    if request is None:
        return Step(None, (), outcome, reason, returned or {})
    sent = turns(request)
    calls = {call.id: call for turn in sent for call in turn.calls}
    results = sent[-1].results if sent else []
    tools = tuple(_tool(result, calls.get(result.id)) for result in results)
    return Step(request, tools, None, None)


def _tool(result: Block, call: Block | None) -> ToolOutcome:
    return ToolOutcome(
        name=str(call and call.name),
        input=call and call.value,
        result="" if result.value is None else result.value,
        is_error=result.is_error,
    )


def _essence(step: Step) -> str:
    tools = [[tool.name, tool.input, tool.result, tool.is_error] for tool in step.tools]
    return canonical([step.request, tools, step.outcome, step.reason, step.returned])
