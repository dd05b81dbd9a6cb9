"""Which recorded requests must come after which: all in their order, but for those that were in flight together.

Those come after what their own task asked before, and the one that started it.

And how they are written down: those of agents that ran beside each other, as if they had run one after the other. Of
requests that were in flight together a fixture tells who asked, where they ask the same, and which ended first.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from agentobs.recording.origins import shortest, unshared
from agentobs.records.canonical import canonical
from agentobs.records.exchanges import ModelExchange, is_beside, lane_under
from agentobs.records.messages import assemble, blocks, tool_results, tool_uses
from replay.causality import Numbered, paths_apart, waited_for
from replay.pieces import value_of
from replay.renaming import bare_bytes


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
        afters = _order(lane)
        if afters is not None:
            told = {number: {"after": after} for number, after in afters.items()}
            reached = _reached(afters)
            for each in (_askers(lane, reached), _ends(lane, reached)):
                for number, keys in each.items():
                    told[number].update(keys)
            found |= told
    return found


def _order(lane: list[Numbered]) -> dict[int, list[int]] | None:
    """Return for each request of a lane those that it comes after; None if each comes after all earlier ones."""
    overlapped = any(_overlap(a, b) for (_, a), (_, b) in itertools.pairwise(lane))
    waited = waited_for(lane)
    has_jobs = waited is not None and len({e.job.serial for _, e in lane if e.job}) > 1
    has_workers = any(exchange.job is not None and exchange.job.is_worker for _, exchange in lane)
    is_known = overlapped or has_jobs or has_workers or _begins_again(lane)
    continued = _continued(lane) if is_known else {}
    talks = _conversations(lane, continued)
    is_beside = _beside_each_other([exchange for _, exchange in lane], talks)
    if not (overlapped or is_beside or has_jobs or has_workers):
        return None
    continued = continued or _continued(lane)
    earlier = _asked_before(lane, talks if is_beside and not overlapped else None)
    if has_workers:
        earlier = _without_other_work(lane, talks, earlier)
    found: dict[int, list[int]] = {}
    reached: dict[int, set[int]] = {}
    for number, _ in lane:
        bound = {*continued[number], *earlier.get(number, ()), *(waited or {}).get(number, ())}
        known: set[int] = set()
        after: list[int] = []
        for each in sorted(bound, reverse=True):
            if each not in known:
                after.append(each)
                known |= {each, *reached[each]}
        found[number], reached[number] = sorted(after), known
    numbers = [number for number, _ in lane]
    is_strict = all(a in reached[b] for a, b in itertools.pairwise(numbers))
    return None if is_strict and not overlapped and not is_beside else found


def _without_other_work(
    lane: list[Numbered], talks: list[int], earlier: dict[int, list[int]]
) -> dict[int, list[int]]:
    """Return what was asked before, except by a worker that took another job from its queue in between.

    Which worker takes which job is chance.
    """
    talk = {number: each for (number, _), each in zip(lane, talks, strict=True)}
    jobs = {number: exchange.job for number, exchange in lane}

    def is_bound(number: int, before: int) -> bool:
        one, other = jobs[number], jobs[before]
        if one is None or other is None or one.serial != other.serial:
            return True
        return not one.is_worker or talk[number] == talk[before]

    return {
        number: [each for each in before if is_bound(number, each)]
        for number, before in earlier.items()
    }


def _asked_before(lane: list[Numbered], talks: list[int] | None) -> dict[int, list[int]]:
    """Return for each ask the one that its own task asked before, or the one that started that task.

    What a task asks one after the other has that order by its code, and no chance has a part in it. It tells nothing
    where that one was not answered yet: then two tasks share what is known of one. Where conversations are given, it
    counts in one of them, and where it starts another one, and so made calls or goes on after that: that one task led
    several, one after the other or by turns, may be otherwise in a replay.
    """
    asked = {exchange.attempt_id: (number, exchange) for number, exchange in lane}
    talk = {number: each for (number, _), each in zip(lane, talks or [0] * len(lane), strict=True)}
    last = {each: number for number, each in talk.items()}
    first: dict[int, int] = {}
    for number, each in talk.items():
        first.setdefault(each, number)
    found: dict[int, list[int]] = {}
    for number, exchange in lane:
        one = asked.get(exchange.before or "")
        if one is None or one[0] >= number or _span(*one).came_ns > exchange.started_ns:
            continue
        above = talk[one[0]]
        starts = first[talk[number]] == number
        if above == talk[number] or (starts and (last[above] > number or _calls(one[1]))):
            found[number] = [one[0]]
    return found


def _conversations(lane: list[Numbered], continued: dict[int, list[int]]) -> list[int]:
    """Return the conversation of each ask, as a number: that of the asks it goes on from, or of its first message.

    Agents that are given the very same task begin alike. What begins again what was answered already is another one.
    """
    openings = {number: _opening(exchange.question.body) for number, exchange in lane}
    talks: dict[int, int] = {}
    opened: dict[bytes, int] = {}
    answered: set[tuple[int, str, bytes]] = set()
    for number, exchange in lane:
        asked = exchange.question
        opening = openings[number]
        after = continued.get(number, ())
        alike = [each for each in after if openings[each] == opening]
        if alike:
            talk = talks[max(alike)]
        else:
            talk = opened.get(opening, number)
            if (talk, asked.path, asked.body) in answered and not after:
                talk = number
            opened[opening] = talk
        talks[number] = talk
        if _is_answered(exchange):
            answered.add((talk, asked.path, asked.body))
    return list(talks.values())


def _begins_again(lane: list[Numbered]) -> bool:
    """Return whether what was answered was asked again: otherwise first messages tell conversations apart."""
    answered: set[tuple[str, bytes]] = set()
    for _, exchange in lane:
        asked = exchange.question.path, exchange.question.body
        if asked in answered:
            return True
        if _is_answered(exchange):
            answered.add(asked)
    return False


def _is_answered(exchange: ModelExchange) -> bool:
    return exchange.answer.status == 200 and exchange.answer.ending == "complete"


def _beside_each_other(lane: list[ModelExchange], talks: list[int]) -> bool:
    """Return whether conversations of a lane ran beside each other, though no two of their requests overlapped.

    They did where they alternate. They may have, and may now, where one answer made two calls or more and two of them
    began before it was answered.
    """
    last = {talk: at for at, talk in enumerate(talks)}
    if len(last) < 2:
        return False
    calls = functools.cache(lambda at: len(_calls(lane[at])))
    latest: dict[int, int] = {}
    # The conversations that are not over, each with how many began since its last request.
    under: list[tuple[int, int]] = []
    for at, talk in enumerate(talks):
        while under and last[under[-1][0]] < at and not calls(last[under[-1][0]]):
            under.pop()
        if under and under[-1][0] == talk:
            under[-1] = (talk, 0)
        elif any(talk == other for other, _ in under):
            return True
        else:
            if any(begun and calls(latest[above]) > 1 for above, begun in under):
                return True
            under = [*((above, begun + 1) for above, begun in under), (talk, 0)]
        latest[talk] = at
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
        body = bare_bytes(asked.body)  # which secret it holds may be all that tells it from another
        groups.setdefault((asked.method, asked.path, body), []).append((number, exchange))
    numbers = {exchange.attempt_id: number for number, exchange in lane}
    found: dict[int, dict[str, Any]] = {}
    for group in groups.values():
        if all(a[0] in reached[b[0]] for a, b in itertools.pairwise(group)):
            continue
        serials = {number: exchange.job.serial for number, exchange in group if exchange.job}
        by = unshared({number: exchange.by for number, exchange in group}, serials)
        common = Counter(digest for digests in by.values() for digest in digests)
        short = shortest(common)
        told = {n: [short[d] for d in by[n] if common[d] < len(group)] for n, _ in group}
        paths = paths_apart(group)
        is_beside = any(_beside(*each) for each in itertools.pairwise(group))
        if not any(told.values()) and not paths and not is_beside:
            continue  # somebody asks again
        for number, exchange in group:
            since = numbers.get(exchange.before or "")
            found[number] = {
                "by": told[number],
                **({"since": since} if since else {}),
                **({"job": paths[number]} if paths else {}),
            }
    return found


@dataclass(frozen=True, slots=True)
class _Span:
    """When an ask was in flight, on the clock of the recording."""

    number: int
    started_ns: int
    came_ns: int
    """When something of its answer came first."""
    ended_ns: int
    is_given_up: bool
    """Whether its client gave it up."""


def _ends(lane: list[Numbered], reached: dict[int, set[int]]) -> dict[int, dict[str, Any]]:
    """Return the asks that ended before each one which might have ended in another order; only the last of them.

    They were in flight with it, or could have been: their jobs are known, and neither comes after the other.
    """
    finals = _finals(lane)
    spans = sorted((_span(*each) for each in lane), key=lambda span: span.ended_ns)
    delayed = [_delayed(span, finals, spans) for span in spans]
    spans = sorted(delayed, key=lambda s: (s.ended_ns, finals.get(s.number, s.ended_ns)))
    knows_jobs = all(exchange.job is not None for _, exchange in lane)
    found: dict[int, dict[str, Any]] = {}
    earlier: dict[int, set[int]] = {}
    over: dict[int, set[int]] = {}
    for at, span in enumerate(spans):
        own = reached[span.number]
        before = [
            each
            for each in spans[:at]
            if each.ended_ns > span.started_ns
            or (knows_jobs and each.number not in own and span.number not in reached[each.number])
        ]
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
        implied = set[int]().union(*(over[each] for each in known))
        done = {
            each.number
            for each in before
            if finals.get(each.number, span.ended_ns + 1) <= span.ended_ns
        }
        over[span.number] = implied | done
        if done - implied:
            found[span.number]["over"] = sorted(done - implied)
    return found


def _finals(lane: list[Numbered]) -> dict[int, int]:
    """Return the last request of each job whose end was recorded, with that end in nanoseconds since 1970.

    Jobs that started others are left out: those may depend on them in ways that no request shows. So are workers, which
    end when all work is done.
    """
    workers = {e.job.serial for _, e in lane if e.job and e.job.is_worker}
    above = workers | {
        step[2] for _, exchange in lane if exchange.job for step in exchange.job.path[:-1]
    }
    last = {exchange.job.serial: (number, exchange) for number, exchange in lane if exchange.job}
    return {
        number: exchange.job.ended_ns
        for number, exchange in last.values()
        if exchange.job and exchange.job.ended_ns is not None and exchange.job.serial not in above
    }


def _delayed(span: _Span, finals: dict[int, int], spans: list[_Span]) -> _Span:
    """Return the last request of a job as if it had ended with its job, but before anything was sent or given up since.

    What waits for several jobs goes on in the order in which they end.
    """
    over_ns = finals.get(span.number, 0)
    events = [each.started_ns for each in spans]
    events += [each.ended_ns for each in spans if each.is_given_up]
    bounds = [at_ns - 1 for at_ns in events if span.ended_ns < at_ns <= over_ns]
    return replace(span, ended_ns=max(span.ended_ns, min([over_ns, *bounds])))


def _last(
    numbers: set[int], known: set[int], earlier: dict[int, set[int]]
) -> tuple[list[int], set[int]]:
    """Return those that the others do not come behind, and all that is known to come before by then."""
    implied = known.union(*(earlier[number] for number in numbers))
    return sorted(numbers - implied), implied | numbers


def _span(number: int, exchange: ModelExchange) -> _Span:
    started, ended = exchange.started_ns, exchange.started_ns + exchange.ended_ns
    came = ended if exchange.headers_ns is None else started + exchange.headers_ns
    return _Span(number, started, came, ended, exchange.answer.ending == "cancelled")


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
    """Return for each ask the earlier ones whose answers it goes on from: by ids of calls, and by what it repeats."""
    issued: dict[str, set[int]] = {}
    asked: dict[bytes, list[_Heard]] = {}
    found: dict[int, list[int]] = {}
    for number, exchange in lane:
        body = value_of(exchange.question.body)
        listed = body.get("messages") if isinstance(body, dict) else None
        messages = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        histories = list(_digests(messages))
        repeated = set(_histories(messages, histories, asked, exchange.before))
        thread = body.get("thread") if isinstance(body, dict) else None
        before = thread.get("previous_message_id") if isinstance(thread, dict) else None
        heard = [*_answered(messages), *([str(before)] if before else [])]
        # An id of several answers is of the one whose messages are repeated.
        known = [issued.get(each, set()) for each in heard]
        issuers = {issuer for each in known for issuer in each & repeated or each}
        found[number] = sorted(issuers | repeated)
        message = assemble(exchange.answer.headers, exchange.answer.body)
        for each in (message, *tool_uses(message)):
            issued.setdefault(str(each.get("id")), set()).add(number)
        told = _Heard(number, exchange.attempt_id, _said(message))
        asked.setdefault(histories[-1], []).append(told)
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


def _digests(messages: list[dict[str, Any]]) -> Iterator[bytes]:
    """Yield digests of the first messages: of none, of one, and so on to all."""
    told = hashlib.blake2b(digest_size=16)
    yield told.digest()
    for message in messages:
        told.update(canonical(message).encode("utf-8", "surrogatepass") + b"\n")
        yield told.digest()


def _histories(
    messages: list[dict[str, Any]],
    histories: list[bytes],
    asked: dict[bytes, list[_Heard]],
    before: str | None,
) -> Iterator[int]:
    """Yield the asks whose messages a body repeats before an answer of the model; of equal ones, that which had it.

    Where several had it and nothing tells which of them this one goes on from, none: a guess is to bind nobody.
    """
    for at, message in enumerate(messages):
        if message.get("role") != "assistant" or not (known := asked.get(histories[at])):
            continue
        if len(known) > 1:
            said = _said(message)
            known = [each for each in known if each.said == said] or known
            known = [each for each in known if each.attempt_id == before] or known
        if len(known) == 1:
            yield known[0].number


def _said(message: dict[str, Any]) -> str:
    """Return the text and the calls of an answer, as far as a client repeats them."""
    told = [
        [b.get("text"), b.get("id")]
        for b in blocks(message)
        if b.get("type") in ("text", "tool_use")
    ]
    return canonical(told)
