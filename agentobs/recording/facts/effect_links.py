"""Effect links: which tool call a command or an MCP call belongs to.

Only a link that the agent itself names is observed. Every other link is inferred by a rule from the tool calls that
were open when the effect started; docs/effects.md describes the rules. If two calls fit a rule equally, the effect has
no link.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agentobs.recording.facts.background_commands import is_background_command
from agentobs.records.canonical_json import canonical
from agentobs.records.effect_facts import Certainty, Command, EffectLink, LinkRule, McpCall
from agentobs.records.exchanges import ObservedEffect
from agentobs.records.facts import ToolResult, ToolUse

CALLS_MAX = 1000
"""The maximum number of tool calls of a session that are remembered. Our choice."""
WAITING_MAX = 1000
"""The maximum number of effects that wait for the response that contains their call. Our choice."""
TEXT_MAX = 256 * 1024
"""The longest command that is searched for the input of a call, in characters. Our choice."""


@dataclass(slots=True)
class _Call:
    fact: ToolUse
    input: object
    texts: tuple[str, ...]
    """The texts of the input, such as a command."""
    started_ns: int
    """When the request started whose response contains the call: clients may execute a call during the response."""
    result_ns: int | None = None
    has_command: bool = False
    """Whether a command with its input is known."""

    def is_open_at(self, at_ns: int) -> bool:
        return self.fact.requested_ns <= at_ns and self._is_open_until(at_ns)

    def may_run_at(self, at_ns: int) -> bool:
        """Return whether the client may run the call at a time. A command in the background may start after its result,
        but only once.
        """
        is_late = not self.has_command and is_background_command(self.input)
        return self.started_ns <= at_ns and (self._is_open_until(at_ns) or is_late)

    def _is_open_until(self, at_ns: int) -> bool:
        return self.result_ns is None or at_ns <= self.result_ns


@dataclass(slots=True)
class EffectLinks:
    """The tool calls and the effects of one session."""

    _calls: dict[tuple[str, int], _Call] = field(default_factory=dict)
    """The calls by attempt and position."""
    _waiting: dict[str, ObservedEffect] = field(default_factory=dict)
    """The effects without a link."""
    _linked: dict[str, _Call] = field(default_factory=dict)
    """The calls of commands that may be the parents of later ones."""

    def note_call(self, fact: ToolUse, tool_input: object, started_ns: int) -> None:
        """Remember a call; `started_ns` is when the request of its response started."""
        texts = tuple(_texts(tool_input))
        self._calls[fact.attempt_id, fact.ordinal] = _Call(fact, tool_input, texts, started_ns)
        if len(self._calls) > CALLS_MAX:
            del self._calls[next(iter(self._calls))]

    def note_result(self, result: ToolResult) -> Iterator[EffectLink]:
        """Note the result of a call; yield the links of the effects in its span."""
        if result.attempt_id is None or result.ordinal is None:
            return
        call = self._calls.get((result.attempt_id, result.ordinal))
        if call is None:
            return
        call.result_ns = result.result_ns
        if result.span_id is None:
            return
        for effect_id, effect in list(self._waiting.items()):
            if result.span_id in effect.spans:
                yield self._link(effect_id, effect, call, "observed", "same_span")

    def effect(self, effect: ObservedEffect) -> Iterator[EffectLink]:
        """Yield the link of an effect, if the calls that are known already contain its call."""
        effect_id = _id(effect)
        self._waiting[effect_id] = effect
        # The result of a call of the agent loop names the span, which is better than equal texts.
        found = self._certain(effect) if not effect.spans else None
        if found is not None:
            yield self._link(effect_id, effect, *found)
        elif len(self._waiting) > WAITING_MAX:
            oldest = next(iter(self._waiting))
            yield from self._settle(oldest)
            self._waiting.pop(oldest, None)

    def settle(self, at_ns: int | None = None) -> Iterator[EffectLink]:
        """Yield the links of waiting effects, now that the calls until `at_ns` are known; by default all."""
        # A command ends before its parent, but takes the link of its parent.
        for effect_id in sorted(
            self._waiting, key=lambda each: self._waiting[each].fact.started_ns
        ):
            if at_ns is None or self._waiting[effect_id].fact.started_ns <= at_ns:
                yield from self._settle(effect_id)
                self._waiting.pop(effect_id, None)

    def _settle(self, effect_id: str) -> Iterator[EffectLink]:
        effect = self._waiting[effect_id]
        found = self._certain(effect) or self._only_open(effect)
        if found is not None:
            yield self._link(effect_id, effect, *found)

    def _link(
        self,
        effect_id: str,
        effect: ObservedEffect,
        call: _Call,
        certainty: Certainty,
        rule: LinkRule,
    ) -> EffectLink:
        self._waiting.pop(effect_id, None)
        self._linked[effect_id] = call
        call.has_command |= rule in ("equal_command", "contained_command")
        if len(self._linked) > CALLS_MAX:
            del self._linked[next(iter(self._linked))]
        use = call.fact
        return EffectLink(
            session_id=effect.fact.session_id,
            effect_id=effect_id,
            kind="command" if isinstance(effect.fact, Command) else "mcp_call",
            tool_use_id=use.tool_use_id,
            attempt_id=use.attempt_id,
            ordinal=use.ordinal,
            interaction_id=use.interaction_id,
            lane=use.lane,
            turn=use.turn,
            certainty=certainty,
            rule=rule,
        )

    def _certain(self, effect: ObservedEffect) -> tuple[_Call, Certainty, LinkRule] | None:
        """Return the call whose input contains the effect, with the certainty and the rule."""
        fact = effect.fact
        running = [each for each in self._in_lane(fact) if each.may_run_at(fact.started_ns)]
        if isinstance(fact, McpCall):
            named = [each for each in self._calls.values() if each.fact.tool_use_id in effect.texts]
            if len(named) == 1:
                return named[0], "observed", "named_call"
            tool, arguments = str(fact.tool), _json(effect.arguments)
            equal = [
                each
                for each in running
                if _is_tool(str(each.fact.name), tool) and _json(each.input) == arguments
            ]
            return (equal[0], "inferred", "equal_call") if len(equal) == 1 else None
        if fact.parent_command_id in self._linked:
            return self._linked[fact.parent_command_id], "inferred", "parent_command"
        if fact.parent_command_id is not None:
            return None
        return _call_of_command(effect.texts, running)

    def _only_open(self, effect: ObservedEffect) -> tuple[_Call, Certainty, LinkRule] | None:
        fact = effect.fact
        if isinstance(fact, McpCall) and fact.method != "tools/call":
            return None  # a client also lists tools and pings on its own
        found = [each for each in self._in_lane(fact) if each.is_open_at(fact.started_ns)]
        return (found[0], "inferred", "only_open_call") if len(found) == 1 else None

    def _in_lane(self, fact: Command | McpCall) -> Iterator[_Call]:
        """Yield the calls in the lane of an effect, or in all lanes if its lane is not known."""
        for each in self._calls.values():
            if fact.lane is None or fact.lane == each.fact.lane:
                yield each


def _call_of_command(
    arguments: tuple[str, ...], calls: list[_Call]
) -> tuple[_Call, Certainty, LinkRule] | None:
    """Return the call whose input is a command, or is contained in it, as in `eval '...'` of some agents."""
    commands = {" ".join(arguments), shlex.join(arguments), *arguments[1:]}
    equal = [each for each in calls if not commands.isdisjoint(each.texts)]
    if equal:
        return (equal[0], "inferred", "equal_command") if len(equal) == 1 else None
    words = [_words(each) for each in arguments[1:] if len(each) <= TEXT_MAX]
    sizes = [
        (max(len(text) for text in each.texts if _is_contained(text, words)), each)
        for each in calls
        if any(_is_contained(text, words) for text in each.texts)
    ]
    longest = max((size for size, _ in sizes), default=0)
    found = [each for size, each in sizes if size == longest]
    return (found[0], "inferred", "contained_command") if len(found) == 1 else None


def _is_contained(text: str, commands: list[list[str]]) -> bool:
    """Return whether the words of a text follow each other in the words of a command, or are one of its words."""
    words = _words(text) if text.strip() else []
    if not words:
        return False
    for command in commands:
        if text in command:
            return True
        starts = range(len(command) - len(words) + 1)
        if any(command[at] == words[0] and command[at : at + len(words)] == words for at in starts):
            return True
    return False


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unbalanced quote
        return text.split()


def _is_tool(name: str, tool: str) -> bool:
    """Return whether a model calls a tool of an MCP server by this name, such as `mcp__github__search`."""
    return name == tool or name.endswith((f"__{tool}", f".{tool}", f"-{tool}"))


def _texts(value: object) -> Iterable[str]:
    """Yield the texts of the first level of an input, and lists of words as commands."""
    for each in value.values() if isinstance(value, dict) else ():
        if isinstance(each, str):
            yield each
        elif isinstance(each, list) and each and all(isinstance(word, str) for word in each):
            yield shlex.join(each)


def _json(value: object) -> str:
    try:
        return canonical(value if value is not None else {})
    except (TypeError, ValueError, RecursionError):
        return ""


def _id(effect: ObservedEffect) -> str:
    fact = effect.fact
    return fact.command_id if isinstance(fact, Command) else fact.call_id


__all__ = ["EffectLinks"]
