"""The trajectory: what an agent did, one line a step, stable enough to keep as a snapshot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from agentobs.records.exchanges import ModelExchange, Place, ToolExchange, WorldExchange
from agentobs.records.facts import Permission, SessionEnd
from agentobs.records.messages import assemble, blocks, tool_uses
from agentobs.redaction import redact
from agentobs.sink import Record
from replay.aligning import safe
from replay.pieces import value_of

WIDTH = 100
"""Characters of a text that a line shows."""


def trajectory(records: Iterable[Record]) -> str:
    """Return the steps of a run, lane by lane, then how it ended. No time, id or chance is in it."""
    lanes: dict[str, list[str]] = {}
    tools: list[ToolExchange] = []
    decided: list[Permission] = []
    asked: list[WorldExchange] = []
    ends: list[str] = []
    turns = _Turns()
    for record in records:
        if isinstance(record, ModelExchange):
            turns.answered(record)
            lanes.setdefault(record.place.lane, []).extend(_asked(record))
        elif isinstance(record, ToolExchange):
            tools.append(record)
        elif isinstance(record, Permission):
            decided.append(record)
        elif isinstance(record, WorldExchange):
            asked.append(record)
        elif isinstance(record, SessionEnd):
            ends.append(f"end {record.outcome} {record.reason or ''}".rstrip())
    # Lanes that ran beside each other have begun in any order.
    steps = [line for name in sorted(lanes, key=_place) for line in [f"lane {name}", *lanes[name]]]
    told = [
        *_tools([turns.placed(each) for each in tools]),
        *_permissions(decided),
        *_outside(asked),
        *ends,
    ]
    # Names, too, come from the provider, and from whoever made the fixture.
    text = "\n".join(map(safe, [*steps, *told])) + "\n"
    return redact(text.encode("utf-8", "replace")).decode()


def _asked(exchange: ModelExchange) -> Iterator[str]:
    body = value_of(exchange.question.body)
    asked = body if isinstance(body, dict) else {}
    answer = exchange.answer
    message = assemble(answer.headers, answer.body)
    refused = answer.status is not None and answer.status >= 400
    stop = message.get("stop_reason") or _error(message) or ("" if refused else answer.ending)
    status = "no answer" if answer.status is None else answer.status
    asks = f"{asked.get('model', '')}{_count(asked.get('messages'))}{_thread(asked)}"
    question = exchange.question
    yield f"  {question.method} {question.path}  {asks}  -> {status} {stop}{_tokens(message)}".rstrip()
    for block in blocks(message):
        if block.get("type") == "text":
            yield f"    says {_short(block.get('text', ''))}"
        elif block.get("type") == "tool_use":
            yield f"    calls {block.get('name')} {_short(json.dumps(block.get('input'), ensure_ascii=False))}"


class _Turns:
    """In which turns calls of other agents were made, who do not say it: those of the answers that make them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._of: dict[tuple[str, str], int] = {}

    def answered(self, exchange: ModelExchange) -> None:
        """Count an answer that makes a turn, and note its calls."""
        lane, path = exchange.place.lane, exchange.question.path.partition("?")[0]
        message = assemble(exchange.answer.headers, exchange.answer.body)
        if path != "/v1/messages" or exchange.answer.status != 200 or not message.get("role"):
            return
        turn = exchange.place.turn or self._counts[lane] + 1
        self._counts[lane] = max(self._counts[lane], turn)
        for use in tool_uses(message):
            self._of[lane, str(use.get("id"))] = turn

    def placed(self, tool: ToolExchange) -> ToolExchange:
        """Return a call with its turn, where that is known."""
        place = tool.place
        turn = place.turn or self._of.get((place.lane, tool.question.tool_use_id))
        return replace(tool, place=replace(place, turn=turn))


def _tools(ran: list[ToolExchange]) -> Iterator[str]:
    if ran:
        yield "tools"
    for tool in sorted(
        ran, key=lambda r: (r.place.lane, r.place.turn or 0, r.question.tool_use_id)
    ):
        result = _short(str(tool.answer.content))
        yield f"  {_where(tool.place)}  {tool.question.name} {tool.answer.outcome}: {result}"


def _permissions(decided: list[Permission]) -> Iterator[str]:
    """Yield the decisions that somebody was asked about, or that denied a call."""
    shown = [each for each in decided if each.asked or each.behaviour == "deny"]
    if shown:
        yield "permissions"
    for each in sorted(shown, key=lambda p: (p.lane, p.turn or 0, p.tool_use_id)):
        why = " ".join(filter(None, dict.fromkeys((each.reason_type, each.source, each.resolver))))
        yield f"  {_where(each)}  {each.behaviour} {each.tool}  ({why})"


def _outside(asked: list[WorldExchange]) -> Iterator[str]:
    """Yield what else came from outside: answers about calls, words, aborts."""
    if asked:
        yield "from outside"
    for each in sorted(
        asked, key=lambda e: (e.place.lane, e.place.turn or 0, e.question.kind, e.question.key)
    ):
        answer = _short(json.dumps(each.answer, ensure_ascii=False, default=repr))
        yield f"  {_where(each.place)}  {each.question.kind} {safe(each.question.key)}: {answer}"


def _place(lane: str) -> tuple[bool, str]:
    return lane != "main", lane


def _where(place: Place | Permission) -> str:
    turn = f"turn {place.turn}"
    return turn if place.lane == "main" else f"{safe(place.lane)} {turn}"


def _count(messages: object) -> str:
    if not isinstance(messages, list):
        return ""
    return f"  {len(messages)} message{'s' * (len(messages) != 1)}"


def _thread(asked: dict[str, object]) -> str:
    """Return that a request goes on in a thread, which holds the messages before its own; not which: that is an id."""
    thread = asked.get("thread")
    goes_on = isinstance(thread, dict) and thread.get("previous_message_id")
    return " more in the thread" if goes_on else ""


def _tokens(message: dict[str, object]) -> str:
    usage = message.get("usage")
    if not isinstance(usage, dict):
        return ""
    names = {
        "in": "input_tokens",
        "out": "output_tokens",
        "cache read": "cache_read_input_tokens",
        "cache write": "cache_creation_input_tokens",
    }
    counts = [f"{short} {usage[name]}" for short, name in names.items() if usage.get(name)]
    return f"  ({', '.join(counts)})" if counts else ""


def _error(message: dict[str, object]) -> str:
    error = message.get("error")
    return str(error.get("type")) if isinstance(error, dict) else ""


def _short(text: str) -> str:
    shown = safe(text)
    return shown if len(shown) <= WIDTH else shown[: WIDTH - 1] + "…"
