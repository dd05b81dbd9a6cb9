"""Known calls: the tool calls of all sessions of a process, with the time in which each may have changed files.

A command in the background is closed when it ends, if commands are observed, and otherwise never. A command that leaves
a process with `&` is never closed, because the end of this process is not observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.effects.workspaces.attribution import Call
from agentobs.provider.content_encoding import decoded
from agentobs.provider.registry import dialect_of
from agentobs.recording.facts.background_commands import is_background_command, leaves_process
from agentobs.records.backend import WrittenFact
from agentobs.records.effect_facts import Command, EffectLink
from agentobs.records.exchanges import ModelExchange, ObservedEffect, ToolExchange
from agentobs.records.facts import Attempt, ToolResult, ToolUse

ATTEMPTS_MAX = 10_000
"""The maximum number of recorded attempts that are remembered. Our choice."""
COMMAND_RULES = ("equal_command", "contained_command")
"""The rules by which a command is the whole command of its call."""


class KnownCalls:
    """Follows requests and their facts; only one thread may use it."""

    def __init__(self) -> None:
        """Start without calls."""
        self._open: dict[str, int] = {}
        """The requests that are sent but not recorded, with the time at which each was sent."""
        self._attempts: dict[str, Attempt] = {}
        self._calls: dict[tuple[str, int], Call] = {}
        """The calls by attempt and position in its response."""
        self._early: dict[tuple[str, int], ToolResult] = {}
        self._commands: dict[str, tuple[int, str | None]] = {}
        """When each observed command has ended, and where it has started, by its ID, until it is linked to a call."""
        self.lanes: dict[str, None] = {}
        """All lanes with requests."""

    def sent(self, attempt_id: str, started_ns: int) -> None:
        """Note that a request was sent."""
        if attempt_id not in self._attempts:
            self._open[attempt_id] = started_ns

    def is_unknown_before(self, at_ns: int) -> bool:
        """Return whether a request that was sent before a time is not recorded yet."""
        return any(started_ns < at_ns for started_ns in self._open.values())

    def attempt(self, attempt_id: str) -> Attempt | None:
        """Return the facts of a recorded attempt; None if it was not recorded."""
        return self._attempts.get(attempt_id)

    def calls(self) -> Sequence[Call]:
        """Return all calls that are not forgotten."""
        return list(self._calls.values())

    def record(
        self,
        record: ModelExchange | ToolExchange | ObservedEffect,
        facts: Sequence[WrittenFact],
    ) -> None:
        """Note the facts of a record."""
        self._note_commands(record, facts)
        attempt = next((each.fact for each in facts if isinstance(each.fact, Attempt)), None)
        results = [each.fact for each in facts if isinstance(each.fact, ToolResult)]
        for result in results:
            self._close(result)
        if not isinstance(record, ModelExchange):
            return
        self._open.pop(record.attempt_id, None)
        if attempt is None:
            return
        self._attempts[attempt.attempt_id] = attempt
        if len(self._attempts) > ATTEMPTS_MAX:
            del self._attempts[next(iter(self._attempts))]
        self.lanes[str(attempt.lane)] = None
        self._close_answered(attempt)
        uses = [each.fact for each in facts if isinstance(each.fact, ToolUse)]
        if uses:
            self._add(record, attempt, uses)

    def forget_before(self, at_ns: int) -> None:
        """Forget calls that were closed before a time."""
        for key, call in list(self._calls.items()):
            if call.closed_ns is not None and call.closed_ns <= at_ns:
                del self._calls[key]

    def _note_commands(
        self,
        record: ModelExchange | ToolExchange | ObservedEffect,
        facts: Sequence[WrittenFact],
    ) -> None:
        """Note the directories of commands, and close the calls in the background whose commands have ended."""
        if isinstance(record, ObservedEffect) and isinstance(record.fact, Command):
            directory = (record.content or {}).get("directory")
            if record.fact.ended_ns is not None:
                self._commands[record.fact.command_id] = record.fact.ended_ns, directory
            if len(self._commands) > ATTEMPTS_MAX:
                del self._commands[next(iter(self._commands))]
        for each in facts:
            link = each.fact
            if isinstance(link, EffectLink) and link.rule in COMMAND_RULES:
                self._link(link)

    def _link(self, link: EffectLink) -> None:
        """Note that a command which has ended is the one of a call."""
        call = self._calls.get((link.attempt_id, link.ordinal))
        ended_ns, directory = self._commands.pop(link.effect_id, (None, None))
        if call is None or ended_ns is None:
            return
        call.directory = directory
        if leaves_process(call.input):
            return
        call.ended_ns = ended_ns
        if call.returned_ns is not None:
            call.closed_ns = max(call.returned_ns, ended_ns)

    def _add(self, exchange: ModelExchange, attempt: Attempt, uses: Sequence[ToolUse]) -> None:
        inputs: dict[int, Any] = dict(
            enumerate(dialect_of(exchange.question.path).facts(decoded(exchange).answer).calls, 1)
        )
        for use in uses:
            call = inputs.get(use.ordinal)
            if call is None:
                continue
            key = (use.attempt_id, use.ordinal)
            self._calls[key] = Call(
                session_id=use.session_id,
                attempt_id=use.attempt_id,
                ordinal=use.ordinal,
                tool_use_id=call.id,
                name=call.name,
                input=call.input,
                lane=str(use.lane),
                turn=use.turn,
                interaction_id=use.interaction_id,
                opened_ns=response_start_ns(attempt),
            )
            if (early := self._early.pop(key, None)) is not None:
                self._close(early)

    def _close(self, result: ToolResult) -> None:
        if result.attempt_id is None or result.ordinal is None:
            return
        key = (result.attempt_id, result.ordinal)
        call = self._calls.get(key)
        if call is None:
            self._early[key] = result
            if len(self._early) > ATTEMPTS_MAX:
                del self._early[next(iter(self._early))]
            return
        _return(call, result.result_ns)
        if result.started_ns is not None:
            call.opened_ns = result.started_ns

    def _close_answered(self, attempt: Attempt) -> None:
        """Close the calls of the response that a request continues, even if it contains no results for them."""
        for call in self._calls.values():
            if call.returned_ns is None and call.attempt_id == attempt.continues_attempt_id:
                _return(call, attempt.started_ns)


def _return(call: Call, at_ns: int) -> None:
    """Note when the result of a call was known."""
    call.returned_ns = at_ns
    if call.ended_ns is not None or not (
        is_background_command(call.input) or leaves_process(call.input)
    ):
        call.closed_ns = max(at_ns, call.ended_ns or 0)


def response_start_ns(attempt: Attempt) -> int:
    """Return when the response of an attempt started, so that the client could run its first call."""
    known = (attempt.first_token_ns, attempt.first_chunk_ns, attempt.headers_ns)
    return attempt.started_ns + next((e for e in known if e is not None), attempt.duration_ns)


__all__ = ["KnownCalls", "response_start_ns"]
