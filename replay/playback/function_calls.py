"""Functions that `agentobs.record_tool` recorded, in a replay: whether each runs, and what it returns.

A call is identified by the ID with which the model made it. If that is unknown, calls with one name in one lane are
distinguished by their arguments, because their order may have been chance.
"""

from __future__ import annotations

import dataclasses
import json
import threading

from agentobs.determinism.functions import Call
from agentobs.determinism.values import MARK, RAISED, not_kept_in
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import differences
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from replay.analysis.divergence_report import report, tool_mismatch
from replay.comparison.alignment import safe
from replay.divergence.divergence import Divergence
from replay.fixture.format import RecordedTool
from replay.matching.tool_calls import same_answer, same_call
from replay.matching.world_answers import never
from replay.progress.replay_state import State
from replay.scenario.tool_policies import policy_of


class Functions:
    """Decides about each call of a recorded function; see `agentobs.determinism.functions.Answerer`."""

    def __init__(self, state: State) -> None:
        """Answer from the recording in `state`."""
        self._state = state
        self._compared: dict[int, RecordedTool] = {}
        """The recorded calls that are compared when the function has ended, by the identity of the call."""
        self._lock = threading.RLock()  # a finalizer may call a recorded function

    def begin(self, call: Call) -> tuple[Call, ToolAnswer | None]:
        """Return a call by its recorded ID, and its answer; None if the function is to run."""
        state = self._state
        with state.lock:
            state.raise_divergence()
            recorded = self._recorded(call)
            if recorded is not None:
                called = dataclasses.replace(
                    call.question, tool_use_id=recorded.question.tool_use_id
                )
                call = dataclasses.replace(call, question=called)
            lane, question = call.place.lane, call.question
            turn = state.calls.turn_of(recorded) if recorded is not None else None
            if (failed := state.faults.tool(question.name, turn)) is not None:
                state.calls.came(recorded)
                return call, state.calls.ran(lane, question.tool_use_id, _raised(failed))
            policy = self._policy(call, recorded)
            if policy == "execute":
                state.calls.live.add((lane, question.tool_use_id))
                state.calls.came(recorded)
                return call, None
            is_recorded = recorded is not None and same_call(
                recorded.question, question, state.renaming
            )
            if not (is_recorded and recorded and not self._is_moved(recorded)) and state.departs():
                of = call.of
                state.check_departed(of.name, is_mutating=of.is_mutating, is_function=True)
                state.calls.live.add((lane, question.tool_use_id))
                return call, None
            if recorded is None or not is_recorded:
                raise state.error(tool_mismatch(state, lane, question, recorded))
            if self._is_moved(recorded):
                raise state.error(moved(state, recorded))
            if (kind := not_kept_in(recorded.answer.content)) is not None:
                raise self.unreadable(call, kind)
            state.calls.came(recorded)
            if self._is_held(call, recorded):
                state.calls.held[call.of.name] = None
            if policy == "verify":
                state.calls.live.add((lane, question.tool_use_id))
                with self._lock:
                    self._compared[id(call)] = recorded
                return call, None
            return call, state.calls.ran(lane, question.tool_use_id, recorded.answer)

    def ended(self, call: Call, answer: ToolAnswer) -> None:
        """Compare the outcome of a function, if that was requested."""
        state, lane = self._state, call.place.lane
        with self._lock:
            recorded = self._compared.pop(id(call), None)
        with state.lock:
            state.calls.ran(lane, call.question.tool_use_id, answer)
            if recorded is not None and not same_answer(recorded.answer, answer, state.renaming):
                raise state.error(verified_otherwise(state, lane, recorded, answer))

    def unreadable(self, call: Call, why: str) -> BaseException:
        """Return the exception for an answer that was not recorded, or has a class that is unknown here."""
        with self._state.lock:
            lane, question = call.place.lane, call.question
            return self._state.error(_unreadable(self._state, lane, question, why))

    async def cancelled(self, call: Call) -> None:
        """Wait until the caller cancels the call, as in the recording."""
        lane, question = call.place.lane, call.question
        await never(lambda: self._state.error(tool_mismatch(self._state, lane, question, None)))

    def _recorded(self, call: Call) -> RecordedTool | None:
        lane, question = call.place.lane, call.question
        calls = self._state.calls
        if (recorded := calls.of(lane, question.tool_use_id)) is not None and not call.is_counted:
            return recorded
        left = calls.left_of(lane, question.name)
        if self._state.beyond:
            # What was recorded after the end of the path belongs to responses that were not given.
            left = [tool for tool in left if not self._state.is_after(tool)]
        here = [tool for tool in left if tool.after in (None, self._state.lane(lane).asked)]
        likely = [*here, *left]
        same = (t for t in likely if same_call(t.question, question, self._state.renaming))
        return next(same, next(iter(likely), None))

    def _is_moved(self, recorded: RecordedTool) -> bool:
        """Return whether a call comes at another position of its lane; after the path of `until` an agent is free."""
        lane = self._state.lane(recorded.lane)
        return recorded.after not in (None, lane.asked) and not self._state.is_past(lane)

    def _is_held(self, call: Call, recorded: RecordedTool) -> bool:
        """Return whether a function would have run if it were not mutating."""
        state, name = self._state, call.of.name
        if not call.of.is_mutating or state.is_before(recorded):
            return False
        chosen = (
            policy_of(state.tools, name, is_mutating=m, is_function=True) for m in (True, False)
        )
        return tuple(chosen) == ("replay", "execute")

    def _policy(self, call: Call, recorded: RecordedTool | None) -> str:
        state, of = self._state, call.of
        if recorded is None and state.beyond:
            state.check_beyond(of.name, is_mutating=of.is_mutating, is_function=True)
            return "execute"  # the call of an answer that was not recorded
        if recorded is not None and state.is_before(recorded):
            return "replay"
        if state.is_live:
            return "execute"
        return policy_of(state.tools, of.name, is_mutating=of.is_mutating, is_function=True)


def _raised(failed: ToolAnswer) -> ToolAnswer:
    """Return the answer of a function that is made to fail: an exception."""
    told = {MARK: RAISED, "type": "builtins:RuntimeError", "text": str(failed.content)}
    return dataclasses.replace(failed, content=told)


def moved(state: State, recorded: RecordedTool) -> Divergence:
    """Describe a call that came before a request that it followed in the recording, or after one that it preceded."""
    lane, call = state.lane(recorded.lane), recorded.question
    assert recorded.after is not None
    summary = (
        f"tool {safe(call.name)} was called after {_requests(lane.asked)} of its lane ({safe(call.tool_use_id)}); when "
        f"it was recorded, after {_requests(recorded.after)}"
    )
    when = "earlier" if lane.asked < recorded.after else "later"
    why = f"the agent calls it {when} than in the recording, before or after a model call"
    return report(state, "order", lane, summary, why=why, between=True, live=True)


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"


def verified_otherwise(
    state: State, lane: str, recorded: RecordedTool, came: ToolAnswer
) -> Divergence:
    """Describe a tool that ran to be compared, and returned something that differs from the recording."""
    name, tool_use_id = safe(recorded.question.name), safe(recorded.question.tool_use_id)
    told = json.loads(state.renaming.clean_text(canonical(came.content)))
    old = {"outcome": recorded.answer.outcome, "result": recorded.answer.content}
    found = differences({name: old}, {name: {"outcome": came.outcome, "result": told}})
    summary = (
        f"tool {name} ran and answered something that differs from the recording ({tool_use_id})"
    )
    why = (
        f"{name} was to be verified: it ran live, and its result was compared with the recorded one"
    )
    return report(state, "tool", state.lane(lane), summary, found, why, between=True, live=True)


def _unreadable(state: State, lane: str, question: ToolQuestion, why: str) -> Divergence:
    """Describe a recorded answer that cannot be given: only the type of the return value is known."""
    name = safe(question.name)
    summary = f"what tool {name} returned was not kept ({safe(why)}): it must run live"
    todo = (
        f"ReplayOptions(tools={{{name!r}: 'execute'}}) runs it; agentobs.register_type keeps "
        "values of a class from the next recording on"
    )
    return report(state, "tool", state.lane(lane), summary, why=todo, between=True, live=True)
