"""The provider's prompt cache: placement of breakpoints, and latched settings that keep the prefix
stable.

A prompt is cached from its start: tools, system, messages. A breakpoint (`cache_control`) says up to where it is worth
caching. Source of the rules: provider documentation, 2026-11 (platform.claude.com/docs/en/build-with-claude/
prompt-caching): at most four breakpoints, none on thinking or on empty text, a lookback of 20 blocks from each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from agentobs.agent.model.thinking import is_thinking, never_last
from agentobs.records.canonical_json import Json

Lifetime = Literal["5m", "1h"]
"""How long the provider caches a prefix after it was last read."""

MARKS_MAX = 4
"""Maximum breakpoints of one request (provider documentation, see above)."""

LOOKED_BACK = 20
"""How many blocks before a breakpoint the provider searches for a cached prefix (provider
documentation, see above).
"""


class Sent:
    """The messages of a conversation in request format, each converted only once."""

    def __init__(self) -> None:
        """Start without messages."""
        self._seen: tuple[Json, ...] = ()
        self._ready: list[Json] = []
        self._in_blocks = False
        self.marks = 0
        """Number of breakpoints in the messages that were converted last."""

    def ready(self, messages: tuple[Json, ...], *, in_blocks: bool) -> list[Json]:
        """Return messages in which no response ends with thinking; unchanged messages are the same
        objects.

        Args:
            messages: the conversation.
            in_blocks: whether to write all user texts as blocks, as breakpoints require.
        """
        known = len(self._seen)
        if messages[:known] != self._seen or in_blocks != self._in_blocks:
            self._ready, self._in_blocks, self.marks, known = [], in_blocks, 0, 0
        for message in never_last(messages[known:]):
            converted = _as_blocks(message) if in_blocks else message
            self._ready.append(converted)
            self.marks += _count(_blocks(converted))
        self._seen = messages
        return list(self._ready)


def marked(
    arguments: dict[str, Any], lifetime: Lifetime, static: int, marks: int
) -> dict[str, Any]:
    """Return the arguments of a request with cache breakpoints; changed parts are copied.

    Breakpoints are set on the last eligible block of the messages, the last system block and the last tool. If any are
    left, they are set at the end of the static system prompt, and at the end of the previous request if that is beyond
    the lookback. Existing breakpoints count, and their zone gets no more; nor does a zone that `extra_body` sets.

    Args:
        arguments: of the SDK's `messages.create`, the system prompt as a list, the user's texts as
            blocks.
        lifetime: how long the provider caches the prefix.
        static: how many blocks of the system prompt stay for the conversation.
        marks: how many breakpoints the messages already have.
    """
    extra = arguments.get("extra_body") or {}
    sent: dict[str, Any] = {
        zone: extra.get(zone, arguments.get(zone)) for zone in ("tools", "system", "messages")
    }
    counts = {zone: _marks(sent[zone]) for zone in ("tools", "system")}
    counts["messages"] = _marks_of_all(extra["messages"]) if "messages" in extra else marks
    whole = "cache_control" in extra
    left, mark = MARKS_MAX - sum(counts.values()) - whole, _mark(lifetime)
    free = {zone for zone in sent if zone not in extra and sent[zone] and not counts[zone]}
    out = {**arguments}
    is_ours = "messages" in free and not whole
    places = list(_message_places(out["messages"])) if is_ours else []
    wanted: list[tuple[str, Any]] = [("messages", place) for place in places[:1]]
    if "system" in free:
        wanted.append(("system", len(sent["system"]) - 1))
    if "tools" in free:
        wanted.append(("tools", len(sent["tools"]) - 1))
    if "system" in free and 0 < static < len(sent["system"]):
        wanted.append(("system", static - 1))
    wanted += [("messages", place) for place in places[1:]]
    for zone, place in wanted[: max(left, 0)]:
        out[zone] = _with_mark(out[zone], place, mark)
    return out


def held(latched: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings for a request, and the names of the settings whose change was not applied.

    `latched` has the settings of the conversation's first request.
    """
    return dict(latched), [name for name in wanted if latched[name] != wanted[name]]


def _mark(lifetime: Lifetime) -> Json:
    return {"type": "ephemeral"} if lifetime == "5m" else {"type": "ephemeral", "ttl": lifetime}


def _message_places(messages: Sequence[Json]) -> Iterator[tuple[int, int]]:
    """Yield the message and block for the breakpoint of the messages, then those of the last request's breakpoint."""
    last = _last_place(messages, len(messages))
    if last is None:
        return
    yield last
    places = reversed(range(len(messages)))
    last_answer = next((at for at in places if messages[at].get("role") == "assistant"), None)
    before = _last_place(messages, last_answer) if last_answer is not None else None
    if before is not None and _between(messages, before, last) >= LOOKED_BACK:
        yield before


def _last_place(messages: Sequence[Json], end: int) -> tuple[int, int] | None:
    """Return the last block before message `end` that is eligible for a breakpoint."""
    for at in reversed(range(end)):
        blocks = _blocks(messages[at])
        for number in reversed(range(len(blocks))):
            if _is_eligible(blocks[number]):
                return at, number
    return None


def _between(messages: Sequence[Json], first: tuple[int, int], last: tuple[int, int]) -> int:
    whole = sum(len(_blocks(message)) for message in messages[first[0] : last[0]])
    return whole - first[1] + last[1]


def _is_eligible(block: Any) -> bool:
    if not isinstance(block, dict) or is_thinking(block) or block.get("type") == "fallback":
        return False  # block types without the field (anthropic 2.12, types/*_block_param.py)
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


def _marks(value: Any) -> int:
    """Return the number of breakpoints in tools or a system prompt."""
    return _count(value if isinstance(value, list) else [])


def _marks_of_all(messages: Any) -> int:
    listed = messages if isinstance(messages, list) else []
    return sum(_count(_blocks(each)) for each in listed if isinstance(each, dict))


def _count(blocks: Sequence[Any]) -> int:
    return sum(isinstance(block, dict) and "cache_control" in block for block in blocks)


def _with_mark(values: Sequence[Any], place: Any, mark: Json) -> list[Any]:
    out = list(values)
    if isinstance(place, tuple):
        at, number = place
        blocks = _with_mark(_blocks(values[at]), number, mark)
        out[at] = {**values[at], "content": blocks}
    else:
        out[place] = {**values[place], "cache_control": dict(mark)}
    return out
