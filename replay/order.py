"""Which recorded requests must come after which: all in their order, but for those that were in flight together.

Those come after what their own task asked before, and the one that started it.

And how they are written down: those of agents that ran beside each other, as if they had run one after the other. Of
requests that were in flight together a fixture tells who asked, where they ask the same, and which ended first.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentobs.recording.origins import shortest
from agentobs.records.canonical import canonical
from agentobs.records.exchanges import ModelExchange, is_beside, lane_under
from agentobs.records.messages import assemble, blocks, tool_results, tool_uses
from replay.pieces import value_of

Numbered = tuple[int, ModelExchange]
"""A request with its number in the fixture."""


def together(models: list[ModelExchange]) -> dict[int, dict[str, Any]]:
    """Return what is told of each ask of the lanes whose requests overlapped, as keys of its line.

    When nothing overlapped, every request of a lane comes after all earlier ones, and nothing is said.
    Where some were in flight together, or belong to conversations beside each other, their order was chance: an ask
    then comes only `after` those whose answers its body goes on from, and the one that the same task asked before. Who
    asked is told `by` digests, and `since` which ask of the same task, where several ask the same. Its answer comes
    `behind` those that had ended before anything of it came, and ends behind those that had ended before it did
    (`ends_behind`), and `amid` is the last one that had been asked by then.
    """
    lanes: dict[str, list[Numbered]] = {}
    for number, exchange in enumerate(models, 1):
        lanes.setdefault(exchange.place.lane, []).append((number, exchange))
    found: dict[int, dict[str, Any]] = {}
    for lane in lanes.values():
        overlapped = any(_overlap(a, b) for (_, a), (_, b) in itertools.pairwise(lane))
        if overlapped or _beside_each_other([exchange for _, exchange in lane]):
            earlier = _asked_before(lane, anywhere=overlapped)
            afters = {
                number: sorted({*after, *earlier.get(number, ())})
                for number, after in _continued(lane).items()
            }
            told = {number: {"after": after} for number, after in afters.items()}
            for each in (_askers(lane, _reached(afters)), _ends(lane)):
                for number, keys in each.items():
                    told[number].update(keys)
            found |= told
    return found


def _asked_before(lane: list[Numbered], *, anywhere: bool) -> dict[int, list[int]]:
    """Return for each ask the one that its own task asked before, or the one that started that task.

    What a task asks one after the other has that order by its code, and no chance has a part in it. It tells nothing
    where that one was not answered yet: then two tasks share what is known of one. Unless it counts `anywhere`, it
    does in one conversation only: that one task led several, one after the other, may be otherwise in a replay.
    """
    asked = {exchange.attempt_id: (number, exchange) for number, exchange in lane}
    found: dict[int, list[int]] = {}
    for number, exchange in lane:
        one = asked.get(exchange.before or "")
        if one is None or one[0] >= number or _span(*one).came_ns > exchange.started_ns:
            continue
        if anywhere or _opening(one[1].question.body) == _opening(exchange.question.body):
            found[number] = [one[0]]
    return found


def _beside_each_other(lane: list[ModelExchange]) -> bool:
    """Return whether conversations of a lane ran beside each other, though no two of their requests overlapped.

    They did where they alternate. They may have, and may now, where one answer made two calls or more and two of them
    began before it was answered. Conversations are told apart by their first message.
    """
    openings = [_opening(exchange.question.body) for exchange in lane]
    last = {opening: at for at, opening in enumerate(openings)}
    if len(last) < 2:
        return False
    # The conversations that are not over, each with how many began since its last request.
    under: list[tuple[bytes, int]] = []
    for at, opening in enumerate(openings):
        while under and last[under[-1][0]] < at and not _calls(lane[last[under[-1][0]]]):
            under.pop()
        if under and under[-1][0] == opening:
            under[-1] = (opening, 0)
        elif any(opening == other for other, _ in under):
            return True
        else:
            for above, begun in under:
                before = max(n for n in range(at) if openings[n] == above)
                if begun and len(_calls(lane[before])) > 1:
                    return True
            under = [*((above, begun + 1) for above, begun in under), (opening, 0)]
    return False


def _calls(exchange: ModelExchange) -> list[dict[str, Any]]:
    return list(tool_uses(assemble(exchange.answer.headers, exchange.answer.body)))


OPENING_BYTES = 4096
"""How much of its first message tells a conversation from others. Our choice."""


def _opening(body: bytes) -> bytes:
    """Return the beginning of the first message of a body; of one without messages, of the body."""
    at = max(body.find(b'"messages"'), 0)
    text = body[at : at + OPENING_BYTES].decode("utf-8", "replace")
    start = text.find("{")
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return text.encode()
    return text[start:end].encode()


def _reached(afters: dict[int, list[int]]) -> dict[int, set[int]]:
    """Return all asks that each ask comes after, directly or not."""
    reached: dict[int, set[int]] = {}
    for number in sorted(afters):  # each comes after earlier ones alone
        reached[number] = set(afters[number]).union(*(reached[each] for each in afters[number]))
    return reached


def _askers(lane: list[Numbered], reached: dict[int, set[int]]) -> dict[int, dict[str, Any]]:
    """Return who asked what others asked, too, and might have asked beside it, as far as that tells them apart.

    Whether they overlapped does not matter: two that come after nothing of each other may do so in a replay.
    """
    groups: dict[tuple[str, str, bytes], list[Numbered]] = {}
    for number, exchange in lane:
        asked = exchange.question
        groups.setdefault((asked.method, asked.path, asked.body), []).append((number, exchange))
    numbers = {exchange.attempt_id: number for number, exchange in lane}
    found: dict[int, dict[str, Any]] = {}
    for group in groups.values():
        if all(a[0] in reached[b[0]] for a, b in itertools.pairwise(group)):
            continue
        common = Counter(digest for _, exchange in group for digest in exchange.by)
        short = shortest(common)
        told = {
            n: [short[d] for d in exchange.by if common[d] < len(group)] for n, exchange in group
        }
        if not any(told.values()) and not any(_beside(*each) for each in itertools.pairwise(group)):
            continue  # somebody asks again
        for number, exchange in group:
            by = told[number]
            since = numbers.get(exchange.before or "")
            found[number] = {"by": by, **({"since": since} if since else {})}
    return found


@dataclass(frozen=True, slots=True)
class _Span:
    """When an ask was in flight, on the clock of the recording."""

    number: int
    started_ns: int
    came_ns: int
    """When something of its answer came first."""
    ended_ns: int


def _ends(lane: list[Numbered]) -> dict[int, dict[str, Any]]:
    """Return the asks that ended while another one was in flight; of those only the last ones that say it all."""
    spans = sorted((_span(*each) for each in lane), key=lambda span: span.ended_ns)
    found: dict[int, dict[str, Any]] = {}
    earlier: dict[int, set[int]] = {}
    for at, span in enumerate(spans):
        before = [each for each in spans[:at] if each.ended_ns > span.started_ns]
        first = {each.number for each in before if each.ended_ns <= span.came_ns}
        rest = {each.number for each in before} - first
        behind, known = _last(first, set(), earlier)
        ends, known = _last(rest, known, earlier)
        earlier[span.number] = known
        asked = [each for each in spans if each.started_ns < span.ended_ns]
        amid = max(each.number for each in asked)
        found[span.number] = {
            **({"amid": amid} if any(each.ended_ns > span.ended_ns for each in asked) else {}),
            **({"behind": behind} if behind else {}),
            **({"ends_behind": ends} if ends else {}),
        }
    return found


def _last(
    numbers: set[int], known: set[int], earlier: dict[int, set[int]]
) -> tuple[list[int], set[int]]:
    """Return those that the others do not come behind, and all that is known to come before by then."""
    implied = known.union(*(earlier[number] for number in numbers))
    return sorted(numbers - implied), implied | numbers


def _span(number: int, exchange: ModelExchange) -> _Span:
    started, ended = exchange.started_ns, exchange.started_ns + exchange.ended_ns
    came = ended if exchange.headers_ns is None else started + exchange.headers_ns
    return _Span(number, started, came, ended)


def _beside(one: Numbered, other: Numbered) -> bool:
    return _overlap(one[1], other[1]) and _overlap(other[1], one[1])


def by_calls(models: list[ModelExchange]) -> list[ModelExchange]:
    """Return requests with those of each sub-agent behind the request whose answer started it, in order of the calls.

    Which of several that ran beside each other came first was chance, and is not to be seen in a fixture.
    """
    issuers: dict[str, int] = {}
    for number, exchange in enumerate(models):
        for call in tool_uses(assemble(exchange.answer.headers, exchange.answer.body)):
            issuers[lane_under(exchange.place.lane, str(call.get("id")))] = number
    started: dict[int, dict[str, list[int]]] = {}
    apart: list[int] = []
    for number, exchange in enumerate(models):
        lane = _started_lane(exchange.place.lane, issuers)
        if lane is None or issuers[lane] >= number:
            apart.append(number)
        else:
            started.setdefault(issuers[lane], {}).setdefault(lane, []).append(number)
    order, left = list[ModelExchange](), list(reversed(apart))
    while left:
        number = left.pop()
        order.append(models[number])
        lanes = started.get(number, {})
        calls = sorted(lanes, key=list(issuers).index)
        left += reversed([inner for lane in calls for inner in lanes[lane]])
    return order


def _started_lane(lane: str, issuers: dict[str, int]) -> str | None:
    """Return the nearest lane at or above this one that a call started."""
    while lane not in issuers:
        if not is_beside(lane):
            return None
        lane = lane.rpartition("/")[0]
    return lane


def _overlap(earlier: ModelExchange, later: ModelExchange) -> bool:
    return later.started_ns < earlier.started_ns + earlier.ended_ns


def _continued(lane: list[tuple[int, ModelExchange]]) -> dict[int, list[int]]:
    issued: dict[str, set[int]] = {}
    asked: dict[str, list[_Heard]] = {}
    found: dict[int, list[int]] = {}
    for number, exchange in lane:
        body = value_of(exchange.question.body)
        listed = body.get("messages") if isinstance(body, dict) else None
        messages = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        repeated = set(_histories(messages, asked, exchange.before))
        thread = body.get("thread") if isinstance(body, dict) else None
        before = str(thread.get("previous_message_id")) if isinstance(thread, dict) else ""
        heard = [*_answered(messages), *([before] if before else [])]
        # An id of several answers is of the one whose messages are repeated.
        known = [issued.get(each, set()) for each in heard]
        issuers = {issuer for each in known for issuer in each & repeated or each}
        found[number] = sorted(issuers | repeated)
        message = assemble(exchange.answer.headers, exchange.answer.body)
        for each in (message, *tool_uses(message)):
            issued.setdefault(str(each.get("id")), set()).add(number)
        told = _Heard(number, exchange.attempt_id, _said(message))
        asked.setdefault(canonical(messages), []).append(told)
    return found


@dataclass(frozen=True, slots=True)
class _Heard:
    """What was answered to an ask."""

    number: int
    attempt_id: str
    said: str


def _answered(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the ids of the calls that a body answers."""
    for message in messages:
        for result in tool_results(message):
            yield str(result.get("tool_use_id"))


def _histories(
    messages: list[dict[str, Any]], asked: dict[str, list[_Heard]], before: str | None
) -> Iterator[int]:
    """Yield the asks whose messages a body repeats before an answer of the model; of equal ones, that which had it."""
    for at, message in enumerate(messages):
        if message.get("role") != "assistant" or not (known := asked.get(canonical(messages[:at]))):
            continue
        if len(known) > 1:
            said = _said(message)
            known = [each for each in known if each.said == said] or known
            known = [each for each in known if each.attempt_id == before] or known
        yield known[-1].number


def _said(message: dict[str, Any]) -> str:
    """Return the text and the calls of an answer, as far as a client repeats them."""
    told = [
        [b.get("text"), b.get("id")]
        for b in blocks(message)
        if b.get("type") in ("text", "tool_use")
    ]
    return canonical(told)
