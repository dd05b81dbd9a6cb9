"""Delivery: in which chunks a recorded response arrives again, and when.

A fixture holds a response event by event, and the size of each chunk in which it was received. By default it arrives
immediately and in one chunk, which a client reads fastest. Chunks that split an event, a character or a line are what
custom parsers fail on; delays are for interfaces that show a response while it arrives.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import Answer, Chunk
from replay.fixture.format import Ask
from replay.scenario.faults import refusal
from replay.scenario.replay_options import ReplayOptions

AT_ONCE_MS = 0.001
"""The delay in the `retry-after` header of a replay. The SDK (anthropic 2.12) ignores 0 and chooses a delay itself."""


def answer_of(ask: Ask, options: ReplayOptions, *, is_ours: bool, stops: bool = False) -> Answer:
    """Return the response to a request in the chosen form; the agent loop of agentobs waits by the world's clock.

    If a run of its lane `stops` in the middle of it, it arrives event by event, so that the rest is not delivered.
    """
    answer, pace = ask.answer, factor(options)
    if options.serve_rest and answer.ending == "cancelled" and answer.status is not None:
        answer = replace(answer, ending="complete")
    if is_unread(answer) and answer.status is not None and not is_ours:
        made = refusal(answer.status, "it was not read when this was recorded", ask.path)
        answer = replace(answer, chunks=made.chunks, ending="complete")
    if (
        options.chunks != "whole"
        or pace
        or ask.starts_after
        or ask.ends_after
        or ask.ended_jobs
        or stops
    ):
        answer = replace(answer, chunks=tuple(_chunks(ask, options, pace)))
    if answer.status is not None and answer.status >= 400 and not is_ours:
        answer = replace(answer, retry_ms=_retry_ms(ask, pace))
    return answer


def is_unread(answer: Answer) -> bool:
    """Return whether a response is an error of which only the status was read, as by a client that retries."""
    return (answer.status or 0) >= 400 and answer.ending == "cancelled" and not answer.chunks


def factor(options: ReplayOptions) -> float:
    """Return how many times as fast as recorded time passes; 0 if it does not pass."""
    return 1.0 if options.pace == "recorded" else options.pace or 0.0


def _retry_ms(ask: Ask, pace: float) -> float | None:
    """Return how long a client waits before its retry; None if it decides itself, or a date was given."""
    if not pace:
        return AT_ONCE_MS
    wait_ms = dialect_of(ask.path).retry_after_ms(ask.answer.headers)
    return None if wait_ms is None else wait_ms / pace


def _chunks(ask: Ask, options: ReplayOptions, pace: float) -> Iterator[Chunk]:
    """Yield the body in the requested chunks, each at the time at which all of it had arrived."""
    body, before = ask.answer.body, 0
    arrived = list(itertools.accumulate(size for size, _ in ask.pieces))
    for end in _ends(ask, options, len(body)):
        if end > before:
            piece = min(bisect.bisect_left(arrived, end), len(arrived) - 1)
            after_ms = ask.pieces[piece][1] / pace if pace and arrived else 0
            yield Chunk(body[before:end], int(after_ms * 1_000_000))
            before = end


def _ends(ask: Ask, options: ReplayOptions, length: int) -> Iterable[int]:
    """Return where the chunks end; the last one ends at the end of the body."""
    if options.chunks == "recorded":
        ends = itertools.accumulate(size for size, _ in ask.pieces)
        return [*(end for end in ends if end < length), length]
    if isinstance(options.chunks, str):
        split = dialect_of(ask.path).stream_pieces(ask.answer.headers, ask.answer.body)
        pieces = split if len(split) > 1 else ()
        return [*itertools.accumulate(map(len, pieces)), length]
    return [*range(options.chunks, length, options.chunks), length]
