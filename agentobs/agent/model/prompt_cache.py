"""The provider's prompt cache: the places of breakpoints, and latched settings that keep the prefix stable.

A prompt is cached from its start: first the tools, then the system prompt, then the messages. A breakpoint
(`cache_control`) marks the end of a prefix that is worth caching. Source of the rules: provider documentation, 2026-11
(platform.claude.com/docs/en/build-with-claude/prompt-caching). A request has at most four breakpoints, a breakpoint
must not be set on thinking or on empty text, and the provider looks back 20 blocks from each breakpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from agentobs.agent.model.thinking import is_thinking, without_trailing_thinking
from agentobs.records.canonical_json import Json

Lifetime = Literal["5m", "1h"]
"""How long the provider keeps a cached prefix after its last use."""

BREAKPOINTS_MAX = 4
"""Maximum number of breakpoints in one request (provider documentation, see above)."""

LOOKBACK_BLOCKS = 20
"""The number of blocks before a breakpoint in which the provider searches for a cached prefix
(provider documentation, see above).
"""


class RequestMessages:
    """The messages of a conversation in request format, each converted only once."""

    def __init__(self) -> None:
        """Start without messages."""
        self._originals: tuple[Json, ...] = ()
        self._converted: list[Json] = []
        self._in_blocks = False
        self.breakpoints = 0
        """Number of breakpoints in the messages that `converted` returned last."""

    def converted(self, messages: tuple[Json, ...], *, in_blocks: bool) -> list[Json]:
        """Return the messages for a request. In a request, no response may end with thinking.

        A message that needs no conversion is the same object as before.

        Args:
            messages: the conversation.
            in_blocks: whether to write all user texts as blocks, as breakpoints require.
        """
        known = len(self._originals)
        if messages[:known] != self._originals or in_blocks != self._in_blocks:
            self._converted, self._in_blocks, self.breakpoints, known = [], in_blocks, 0, 0
        for message in without_trailing_thinking(messages[known:]):
            converted = _as_blocks(message) if in_blocks else message
            self._converted.append(converted)
            self.breakpoints += _count_breakpoints(_blocks(converted))
        self._originals = messages
        return list(self._converted)


def with_breakpoints(
    arguments: dict[str, Any], lifetime: Lifetime, static_blocks: int, message_breakpoints: int
) -> dict[str, Any]:
    """Return the arguments of a request with cache breakpoints; changed values are copied.

    A request has three zones: the messages, the system prompt and the tools. The first three breakpoints are set on the
    last eligible block of the messages, the last block of the system prompt and the last tool. The others are set at
    the end of the static system prompt, and at the end of the previous request if that end is beyond the lookback. A
    zone that already has breakpoints, or that `extra_body` sets, gets no breakpoints. Existing breakpoints count toward
    the maximum.

    Args:
        arguments: the arguments of the SDK's `messages.create`, with the system prompt as a list
            and the user's texts as blocks.
        lifetime: how long the provider keeps the cached prefix.
        static_blocks: the number of blocks at the start of the system prompt that do not change
            within the conversation.
        message_breakpoints: the number of breakpoints that the messages already have.
    """
    extra = arguments.get("extra_body") or {}
    zones: dict[str, Any] = {
        zone: extra.get(zone, arguments.get(zone)) for zone in ("tools", "system", "messages")
    }
    counts = {zone: _breakpoints_in(zones[zone]) for zone in ("tools", "system")}
    counts["messages"] = (
        _breakpoints_in_messages(extra["messages"]) if "messages" in extra else message_breakpoints
    )
    # With `cache_control` at the top level, the provider itself sets a breakpoint at the end.
    caches_all = "cache_control" in extra
    available = BREAKPOINTS_MAX - sum(counts.values()) - caches_all
    open_zones = {zone for zone in zones if zone not in extra and zones[zone] and not counts[zone]}
    changed = {**arguments}
    sets_messages = "messages" in open_zones and not caches_all
    places = list(_message_places(changed["messages"])) if sets_messages else []
    wanted: list[tuple[str, Any]] = [("messages", place) for place in places[:1]]
    if "system" in open_zones:
        wanted.append(("system", len(zones["system"]) - 1))
    if "tools" in open_zones:
        wanted.append(("tools", len(zones["tools"]) - 1))
    if "system" in open_zones and 0 < static_blocks < len(zones["system"]):
        wanted.append(("system", static_blocks - 1))
    wanted += [("messages", place) for place in places[1:]]
    for zone, place in wanted[: max(available, 0)]:
        changed[zone] = _with_breakpoint(changed[zone], place, _breakpoint(lifetime))
    return changed


def latched_settings(
    latched: Mapping[str, Any], wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings for a request, and the names of the settings whose change is not applied.

    Args:
        latched: the settings of the first request of the conversation, which stay in force.
        wanted: the settings in the current options.
    """
    return dict(latched), [name for name in wanted if latched[name] != wanted[name]]


def _breakpoint(lifetime: Lifetime) -> Json:
    return {"type": "ephemeral"} if lifetime == "5m" else {"type": "ephemeral", "ttl": lifetime}


def _message_places(messages: Sequence[Json]) -> Iterator[tuple[int, int]]:
    """Yield the place of the breakpoint in the messages, then the place of the previous request's breakpoint if needed.

    A place is the index of a message and of a block in it. The previous request's breakpoint is
    needed if it is beyond the lookback.
    """
    last = _last_place(messages, len(messages))
    if last is None:
        return
    yield last
    places = reversed(range(len(messages)))
    last_response = next((at for at in places if messages[at].get("role") == "assistant"), None)
    previous = _last_place(messages, last_response) if last_response is not None else None
    if previous is not None and _blocks_between(messages, previous, last) >= LOOKBACK_BLOCKS:
        yield previous


def _last_place(messages: Sequence[Json], end: int) -> tuple[int, int] | None:
    """Return the place of the last block before message `end` that is eligible for a breakpoint."""
    for at in reversed(range(end)):
        blocks = _blocks(messages[at])
        for number in reversed(range(len(blocks))):
            if _is_eligible(blocks[number]):
                return at, number
    return None


def _blocks_between(messages: Sequence[Json], first: tuple[int, int], last: tuple[int, int]) -> int:
    count = sum(len(_blocks(message)) for message in messages[first[0] : last[0]])
    return count - first[1] + last[1]


def _is_eligible(block: Any) -> bool:
    if not isinstance(block, dict) or is_thinking(block) or block.get("type") == "fallback":
        return (
            False  # These types have no `cache_control` (anthropic 2.12, types/*_block_param.py).
        )
    return block.get("type") != "text" or bool(str(block.get("text", "")).strip())


def _blocks(message: Json) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _as_blocks(message: Json) -> Json:
    content = message.get("content")
    is_text = message.get("role") == "user" and isinstance(content, str) and content.strip()
    return {**message, "content": _blocks(message)} if is_text else message


def _breakpoints_in(value: Any) -> int:
    """Return the number of breakpoints in tools or a system prompt."""
    return _count_breakpoints(value if isinstance(value, list) else [])


def _breakpoints_in_messages(messages: Any) -> int:
    listed = messages if isinstance(messages, list) else []
    return sum(_count_breakpoints(_blocks(each)) for each in listed if isinstance(each, dict))


def _count_breakpoints(blocks: Sequence[Any]) -> int:
    return sum(isinstance(block, dict) and "cache_control" in block for block in blocks)


def _with_breakpoint(values: Sequence[Any], place: Any, cache_control: Json) -> list[Any]:
    """Return messages with a breakpoint at the place (message, block), or blocks with a breakpoint at an index."""
    changed = list(values)
    if isinstance(place, tuple):
        at, number = place
        blocks = _with_breakpoint(_blocks(values[at]), number, cache_control)
        changed[at] = {**values[at], "content": blocks}
    else:
        changed[place] = {**values[place], "cache_control": dict(cache_control)}
    return changed
