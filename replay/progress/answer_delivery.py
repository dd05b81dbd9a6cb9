"""Arriving: in which pieces a recorded answer comes again, and when.

A fixture tells an answer event by event, and beside it how long each piece was in which it came off the wire. By
default it comes at once and in one piece, which a client reads fastest. Pieces that split an event, a character or a
line are what parsers of one's own fail on; times are for whoever builds what shows an answer while it comes.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from agentobs.provider.messages import is_stream, split_events
from agentobs.records.exchanges import Answer, Chunk
from replay.fixture.format import Ask
from replay.scenario.faults import refusal
from replay.scenario.replay_options import ReplayOptions

AT_ONCE_MS = 0.001
"""What a client that asks again is told to wait. To the SDK (anthropic 2.12) 0 says nothing: it would decide itself."""


def answer_of(ask: Ask, options: ReplayOptions, *, is_ours: bool, stops: bool = False) -> Answer:
    """Return the answer to a request as the options want it to come; our own loop waits by the world's clock.

    Where a run of its lane `stops` in the middle of one, it comes event by event: what came after is not to come.
    """
    answer, pace = ask.answer, factor(options)
    if options.serve_rest and answer.ending == "cancelled" and answer.status is not None:
        answer = replace(answer, ending="complete")
    if is_unread(answer) and answer.status is not None and not is_ours:
        made = refusal(answer.status, "it was not read when this was recorded")
        answer = replace(answer, chunks=made.chunks, ending="complete")
    if options.chunks != "whole" or pace or ask.behind or ask.ends_behind or ask.over or stops:
        answer = replace(answer, chunks=tuple(_chunks(ask, options, pace)))
    if answer.status is not None and answer.status >= 400 and not is_ours:
        answer = replace(answer, retry_ms=_retry_ms(answer, pace))
    return answer


def is_unread(answer: Answer) -> bool:
    """Return whether an answer is an error of which nothing but the status was read, as a client does that retries."""
    return (answer.status or 0) >= 400 and answer.ending == "cancelled" and not answer.chunks


def factor(options: ReplayOptions) -> float:
    """Return how many times as fast as recorded time passes; 0 where it does not pass."""
    return 1.0 if options.pace == "recorded" else options.pace or 0.0


def _retry_ms(answer: Answer, pace: float) -> float | None:
    """Return how long a client waits before it asks again; None where it decides, or an instant was named."""
    if not pace:
        return AT_ONCE_MS
    for name, factor_ms in (("retry-after-ms", 1.0), ("retry-after", 1000.0)):
        with contextlib.suppress(KeyError, ValueError):
            return float(answer.headers[name]) * factor_ms / pace
    return None


def _chunks(ask: Ask, options: ReplayOptions, pace: float) -> Iterator[Chunk]:
    """Yield the body in the pieces that are asked for, each at the time at which all of it had come."""
    body, before = ask.answer.body, 0
    arrived = list(itertools.accumulate(size for size, _ in ask.pieces))
    for end in _ends(ask, options, len(body)):
        if end > before:
            piece = min(bisect.bisect_left(arrived, end), len(arrived) - 1)
            after_ms = ask.pieces[piece][1] / pace if pace and arrived else 0
            yield Chunk(body[before:end], int(after_ms * 1_000_000))
            before = end


def _ends(ask: Ask, options: ReplayOptions, length: int) -> Iterable[int]:
    """Return where the pieces end; the last one ends where the body does."""
    if options.chunks == "recorded":
        ends = itertools.accumulate(size for size, _ in ask.pieces)
        return [*(end for end in ends if end < length), length]
    if isinstance(options.chunks, str):
        pieces = split_events(ask.answer.body) if is_stream(ask.answer.headers) else ()
        return [*itertools.accumulate(map(len, pieces)), length]
    return [*range(options.chunks, length, options.chunks), length]
