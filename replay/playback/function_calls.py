"""Calls of recorded functions (`agentobs.record_tool`) in a replay: whether each one runs, and what it returns.

A call is identified by the ID that the model gave it. If this ID is unknown, calls with the same name and lane are
distinguished by their arguments, because their order may have been random.
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
from replay.matching.world_answers import wait_for_cancellation
from replay.progress.replay_state import ReplayState
from replay.scenario.tool_policies import policy_of


class FunctionCalls:
    """Decides about each call of a recorded function; see `agentobs.determinism.functions.FunctionAnswerer`."""

    def __init__(self, state: ReplayState) -> None:
        """Answer from the recording in `state`."""
        self._state = state
        self._exchanges, self._path, self._findings = state.exchanges, state.path, state.findings
        self._renaming = state.setup.renaming
        self._verified: dict[int, RecordedTool] = {}
        """The recorded calls whose results are compared when the function has ended, by the identity of the call."""
        self._lock = threading.RLock()  # a finalizer may call a recorded function

    def begin(self, call: Call) -> tuple[Call, ToolAnswer | None]:
        """Return a call with its recorded ID, and its recorded result; the result is None if the function must run."""
        state = self._state
        with state.lock:
            self._findings.raise_first()
            recorded, calls = self._recorded(call), self._exchanges.calls
            if recorded is not None:
                renamed = dataclasses.replace(
                    call.question, tool_use_id=recorded.question.tool_use_id
                )
                call = dataclasses.replace(call, question=renamed)
            lane, question = call.place.lane, call.question
            key = lane, question.tool_use_id
            turn = calls.turn_of(recorded) if recorded is not None else None
            if (failed := self._exchanges.faults.tool_result(question.name, turn)) is not None:
                calls.mark_matched(recorded)
                return call, calls.note_answer(*key, _raised(failed))
            policy = self._policy(call, recorded)
            if policy == "execute":
                calls.live.add(key)
                calls.mark_matched(recorded)
                return call, None
            is_recorded = recorded is not None and same_call(
                recorded.question, question, self._renaming
            )
            is_expected = is_recorded and recorded and not self._is_moved(recorded)
            if not is_expected and self._path.depart():
                self._path.check_call_after_departure(
                    call.recorded.name, is_mutating=call.recorded.is_mutating, is_function=True
                )
                calls.live.add(key)
                return call, None
            if recorded is None or not is_recorded:
                raise self._findings.diverge(tool_mismatch(state, lane, question, recorded))
            if self._is_moved(recorded):
                raise self._findings.diverge(moved_call(state, recorded))
            if (kind := not_kept_in(recorded.answer.content)) is not None:
                raise self.unreadable(call, kind)
            calls.mark_matched(recorded)
            if self._is_withheld(call, recorded):
                calls.skipped_functions[call.recorded.name] = None
            if policy == "verify":
                calls.live.add(key)
                with self._lock:
                    self._verified[id(call)] = recorded
                return call, None
            return call, calls.note_answer(*key, recorded.answer)

    def ended(self, call: Call, answer: ToolAnswer) -> None:
        """Remember the result of a function that ran, and compare it if the policy of the function is `verify`."""
        state, lane = self._state, call.place.lane
        with self._lock:
            recorded = self._verified.pop(id(call), None)
        with state.lock:
            self._exchanges.calls.note_answer(lane, call.question.tool_use_id, answer)
            if recorded is not None and not same_answer(recorded.answer, answer, self._renaming):
                raise self._findings.diverge(
                    verified_result_mismatch(state, lane, recorded, answer)
                )

    def unreadable(self, call: Call, why: str) -> BaseException:
        """Return the exception for a result that was not recorded, or whose class is unknown in this process."""
        with self._state.lock:
            lane, question = call.place.lane, call.question
            return self._findings.diverge(_unreadable(self._state, lane, question, why))

    async def cancelled(self, call: Call) -> None:
        """Wait until the caller cancels the call, as in the recording."""
        lane, question = call.place.lane, call.question
        await wait_for_cancellation(
            lambda: self._findings.diverge(tool_mismatch(self._state, lane, question, None))
        )

    def _recorded(self, call: Call) -> RecordedTool | None:
        lane, question = call.place.lane, call.question
        calls = self._exchanges.calls
        if (recorded := calls.find(lane, question.tool_use_id)) is not None and not call.is_counted:
            return recorded
        unused = calls.unused_functions(lane, question.name)
        if self._path.later_requests:
            # Calls after the end of the recorded path belong to responses that the agent did not get.
            unused = [tool for tool in unused if not self._path.is_after_last_turn(tool)]
        sent = self._exchanges.lane(lane).used_count
        here = [tool for tool in unused if tool.after in (None, sent)]
        likely = [*here, *unused]
        same = (t for t in likely if same_call(t.question, question, self._renaming))
        return next(same, next(iter(likely), None))

    def _is_moved(self, recorded: RecordedTool) -> bool:
        """Return whether a call before the end of the path is at a different position in its lane than recorded."""
        lane = self._exchanges.lane(recorded.lane)
        return recorded.after not in (None, lane.used_count) and not self._path.has_ended(lane)

    def _is_withheld(self, call: Call, recorded: RecordedTool) -> bool:
        """Return whether a function does not run only because it is mutating."""
        name = call.recorded.name
        if not call.recorded.is_mutating or self._path.is_before_live_turns(recorded):
            return False
        chosen = (
            policy_of(self._path.tools, name, is_mutating=m, is_function=True)
            for m in (True, False)
        )
        return tuple(chosen) == ("replay", "execute")

    def _policy(self, call: Call, recorded: RecordedTool | None) -> str:
        function = call.recorded
        if recorded is None and self._path.later_requests:
            self._state.check_later_call(
                function.name, is_mutating=function.is_mutating, is_function=True
            )
            return "execute"  # a call in a response that was not recorded
        if recorded is not None and self._path.is_before_live_turns(recorded):
            return "replay"
        if self._path.is_live:
            return "execute"
        return policy_of(
            self._path.tools, function.name, is_mutating=function.is_mutating, is_function=True
        )


def _raised(failed: ToolAnswer) -> ToolAnswer:
    """Return the result of a function that a fault makes fail: an exception."""
    content = {MARK: RAISED, "type": "builtins:RuntimeError", "text": str(failed.content)}
    return dataclasses.replace(failed, content=content)


def moved_call(state: ReplayState, recorded: RecordedTool) -> Divergence:
    """Describe a call that was recorded after a request but is made before this request, or the reverse."""
    lane, call = state.exchanges.lane(recorded.lane), recorded.question
    assert recorded.after is not None
    summary = (
        f"tool {safe(call.name)} ({safe(call.tool_use_id)}) was called after {_requests(lane.used_count)} of its lane; "
        f"in the recording, after {_requests(recorded.after)}"
    )
    when = "earlier" if lane.used_count < recorded.after else "later"
    why = f"the agent calls it {when} than in the recording, relative to its model requests"
    return report(state, "order", lane, summary, why=why, between=True, live=True)


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"


def verified_result_mismatch(
    state: ReplayState, lane: str, recorded: RecordedTool, live: ToolAnswer
) -> Divergence:
    """Describe a call that ran for verification and returned a different result than the recorded one."""
    name, tool_use_id = safe(recorded.question.name), safe(recorded.question.tool_use_id)
    content = json.loads(state.setup.renaming.clean_text(canonical(live.content)))
    old = {"outcome": recorded.answer.outcome, "result": recorded.answer.content}
    found = differences({name: old}, {name: {"outcome": live.outcome, "result": content}})
    summary = f"tool {name} ({tool_use_id}) ran live, and its result differs from the recorded one"
    why = f"{name} has the policy `verify`, so its result was compared with the recorded one"
    return report(
        state, "tool", state.exchanges.lane(lane), summary, found, why, between=True, live=True
    )


def _unreadable(state: ReplayState, lane: str, question: ToolQuestion, why: str) -> Divergence:
    """Describe a recorded result that cannot be returned, because only its type is known."""
    name = safe(question.name)
    summary = f"the result of tool {name} was not kept ({safe(why)}), so the tool must run live"
    todo = (
        f"ReplayOptions(tools={{{name!r}: 'execute'}}) runs it; after agentobs.register_type, new recordings keep "
        "values of a class"
    )
    return report(
        state, "tool", state.exchanges.lane(lane), summary, why=todo, between=True, live=True
    )
