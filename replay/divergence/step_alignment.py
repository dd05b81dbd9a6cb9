"""The alignment of the steps of two sessions: which step of one session corresponds to which step of the other.

Turns are aligned first, then the steps of aligned turns. Both keep the order of the steps, and both maximize a sum of
scores: two turns with the same calls count much more than equal inputs, outcomes and results, and those decide between
turns with the same calls. So a turn whose call failed in one session only remains aligned with the turn at the same
place, instead of with a distant turn that failed as well, which would leave everything between them without a
counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentobs.records.differences import common_prefix, unequal_spans

SAME_ACTION = 1_000
"""The score of two turns or steps that do the same. All scores are our choice."""
ANY_REQUEST = 100
"""The score of two turns whose responses call different tools."""
SHARED_CALLS = 500
"""What two turns score in addition if all but a few of their calls are of the same tools, in proportion to their share.
"""
CONTIGUOUS = 400
"""What a pair scores in addition if the steps before it are a pair as well, so that gaps are few."""
WEIGHTS = (160, 80, 60, 40, 40, 20)
"""What equal details score: what was sent, the outcome, the response, the result, the new messages, and the model. The
sum is less than the score of the same action.
"""
CELLS_MAX = 1_000_000
"""Two sequences are aligned at once if the product of their lengths is at most this, which takes about a second."""
WINDOW = 300
"""The number of turns or steps of each session that are aligned at once in longer sequences."""
_NEVER = -(10**9)


class Details(NamedTuple):
    """What distinguishes steps that do the same, in the order of `WEIGHTS`."""

    sent: Hashable = None
    outcome: Hashable = None
    response: Hashable = None
    result: Hashable = None
    messages: Hashable = None
    model: Hashable = None


@dataclass(frozen=True, slots=True)
class AlignedStep:
    """One step of a lane."""

    turn: int | None
    """The turn; None if the step belongs to none."""
    kind: str
    name: str
    calls: tuple[str, ...]
    """The tools that a response calls, or the tool of a call."""
    details: Details
    is_retried: bool = False
    """Whether it is a failed attempt that another attempt followed. It is never aligned with a last attempt."""


Places = tuple[int | None, int | None]
"""The positions of two aligned steps; None if a step has no counterpart."""


def aligned_steps(a: Sequence[AlignedStep], b: Sequence[AlignedStep]) -> Iterator[Places]:
    """Yield the positions of aligned steps of one lane, in an order that both sessions have."""
    turns_a, turns_b = _turns(a), _turns(b)
    keys_a = [_turn_key([a[at] for at in turn]) for turn in turns_a]
    keys_b = [_turn_key([b[at] for at in turn]) for turn in turns_b]
    for at_a, at_b in _aligned(keys_a, keys_b, _turn_score):
        in_a = () if at_a is None else turns_a[at_a]
        in_b = () if at_b is None else turns_b[at_b]
        steps_a, steps_b = [_step_key(a[at]) for at in in_a], [_step_key(b[at]) for at in in_b]
        for step_a, step_b in _aligned(steps_a, steps_b, _step_score):
            yield (
                None if step_a is None else in_a[step_a],
                None if step_b is None else in_b[step_b],
            )


def _turns(steps: Sequence[AlignedStep]) -> list[list[int]]:
    """Return the positions of the steps of each turn. A step without a turn belongs to the turn before it."""
    found: dict[int | None, list[int]] = {}
    turn = None
    for at, step in enumerate(steps):
        turn = turn if step.turn is None else step.turn
        found.setdefault(turn, []).append(at)
    return list(found.values())


_Key = tuple[Hashable, tuple[Hashable, ...]]
"""What a turn or a step does, and its details."""


def _turn_key(steps: Sequence[AlignedStep]) -> _Key:
    requested = [each for each in steps if each.kind == "request" and not each.is_retried]
    run = [each for each in steps if each.kind == "tool_call"]
    calls = tuple(call for each in requested for call in each.calls)
    calls = calls or tuple(call for each in run for call in each.calls)
    details = (each.details for each in requested + run)
    return (bool(requested), calls), tuple(zip(*details, strict=True))


def _turn_score(a: tuple[bool, tuple[str, ...]], b: tuple[bool, tuple[str, ...]]) -> int:
    if a == b:
        return SAME_ACTION
    shared = (Counter(a[1]) & Counter(b[1])).total()
    if not shared and not (a[0] and b[0]):
        return _NEVER
    return ANY_REQUEST + SHARED_CALLS * shared // max(len(a[1]), len(b[1]), 1)


def _step_key(step: AlignedStep) -> _Key:
    return (step.kind, step.name, step.is_retried), step.details


def _step_score(a: Hashable, b: Hashable) -> int:
    return SAME_ACTION if a == b else _NEVER


_Score = Callable[..., int]
"""Returns the score of two actions."""


def _aligned(a: Sequence[_Key], b: Sequence[_Key], score: _Score) -> Iterator[Places]:
    """Yield the positions of aligned items. Long sequences are aligned piece by piece."""
    start = common_prefix(a, b)
    if (len(a) - start) * (len(b) - start) <= CELLS_MAX:
        yield from zip(range(start), range(start), strict=True)
        yield from _best(a[start:], b[start:], score, start, start)
        return
    at_a = at_b = 0
    for a1, a2, b1, b2 in unequal_spans(a, b):
        yield from zip(range(at_a, a1), range(at_b, b1), strict=True)
        size = max(a2 - a1, b2 - b1)
        count = -(-size // WINDOW) if (a2 - a1) * (b2 - b1) > CELLS_MAX else 1
        for at in range(count):
            from_a, to_a = (a1 + (a2 - a1) * each // count for each in (at, at + 1))
            from_b, to_b = (b1 + (b2 - b1) * each // count for each in (at, at + 1))
            yield from _best(a[from_a:to_a], b[from_b:to_b], score, from_a, from_b)
        at_a, at_b = a2, b2
    yield from zip(range(at_a, len(a)), range(at_b, len(b)), strict=True)


_PAIR, _PAIR_NEXT, _SKIP_B = 1, 2, 4
"""The decisions at two positions: whether they are a pair; whether they are one if the items before them are a pair;
and which item has no counterpart if they are not.
"""


def _best(
    a: Sequence[_Key], b: Sequence[_Key], score: _Score, first_a: int, first_b: int
) -> Iterator[Places]:
    """Yield the positions of items in the alignment with the highest score. Of equal ones, the one whose pairs are
    earliest is chosen.
    """
    decisions = _decisions(a, b, score)
    at_a = at_b = 0
    is_contiguous = True
    while at_a < len(a) and at_b < len(b):
        found = decisions[at_a][at_b]
        if found & (_PAIR_NEXT if is_contiguous else _PAIR):
            yield first_a + at_a, first_b + at_b
            at_a, at_b, is_contiguous = at_a + 1, at_b + 1, True
            continue
        is_contiguous = False
        if found & _SKIP_B:
            yield None, first_b + at_b
            at_b += 1
        else:
            yield first_a + at_a, None
            at_a += 1
    yield from ((first_a + at, None) for at in range(at_a, len(a)))
    yield from ((None, first_b + at) for at in range(at_b, len(b)))


def _decisions(a: Sequence[_Key], b: Sequence[_Key], score: _Score) -> list[bytearray]:
    """Return the decisions for each pair of positions. The rows are computed from the last one to the first one."""
    rows = _ScoreRows(b, score)
    found: list[bytearray] = []
    rest = [0] * (len(b) + 1)
    contiguous_rest = [0] * (len(b) + 1)
    for item in reversed(a):
        scores = rows.of(item)
        decided = bytearray(len(b))
        best, contiguous = [0] * (len(b) + 1), [0] * (len(b) + 1)
        after = 0
        for at in range(len(b) - 1, -1, -1):
            pair = scores[at] + contiguous_rest[at + 1]
            skip_a = rest[at]
            code, skip = (_SKIP_B, after) if after > skip_a else (0, skip_a)
            if pair + CONTIGUOUS >= skip:
                code |= _PAIR_NEXT
                contiguous[at] = pair + CONTIGUOUS
                if pair >= skip:
                    code |= _PAIR
                    skip = pair
            else:
                contiguous[at] = skip
            best[at] = after = skip
            decided[at] = code
        found.append(decided)
        rest, contiguous_rest = best, contiguous
    found.reverse()
    return found


class _ScoreRows:
    """The scores of an item with each item of the other side."""

    def __init__(self, b: Sequence[_Key], score: _Score) -> None:
        self._score = score
        self._actions = [action for action, _ in b]
        self._places: dict[tuple[int, Hashable], list[int]] = {}
        """The positions of the items with each detail."""
        for at, (_, details) in enumerate(b):
            for key in enumerate(details):
                self._places.setdefault(key, []).append(at)
        self._known: dict[_Key, Sequence[int]] = {}
        self._by_action: dict[Hashable, Sequence[int]] = {}

    def of(self, item: _Key) -> Sequence[int]:
        """Return the scores of an item."""
        if item not in self._known:
            self._known[item] = self._row(item)
        return self._known[item]

    def _row(self, item: _Key) -> Sequence[int]:
        action, details = item
        if action not in self._by_action:
            known: Mapping[Hashable, int] = {
                each: self._score(action, each) for each in set(self._actions)
            }
            self._by_action[action] = [known[each] for each in self._actions]
        found = list(self._by_action[action])
        for key in enumerate(details):
            for at in self._places.get(key, ()):
                found[at] += WEIGHTS[key[0]]
        return found
