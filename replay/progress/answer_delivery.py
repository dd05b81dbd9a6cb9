"""Delivery: the chunks and the timing with which a client receives a recorded response.

A fixture holds the complete response, and the size and time of each recorded chunk. By default, a response arrives
immediately and in one chunk, because this is fastest. Custom parsers may fail if a chunk splits an event, a character
or a line; interfaces that show a response while it arrives may depend on delays. Both can be tested.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import Answer, Chunk
from agentobs.runtime import ServedAnswer
from replay.fixture.format import RecordedRequest
from replay.scenario.faults import error_response
from replay.scenario.replay_options import ReplayOptions

IMMEDIATE_RETRY_MS = 0.001
"""The delay in the `retry-after` header of a replay. The SDK (anthropic 2.12) ignores 0, and then chooses a delay
itself.
"""


def delivered_response(
    request: RecordedRequest,
    options: ReplayOptions,
    *,
    is_agent_loop: bool,
    is_stopped: bool = False,
) -> ServedAnswer:
    """Return the recorded response to a request, with the chunks and delays that the options specify.

    Args:
        request: the recorded request.
        options: the options of the replay.
        is_agent_loop: whether the agent loop of agentobs sent the request; the agent loop waits by the world's clock.
        is_stopped: whether a run of its lane was stopped in the recording. The response then arrives event by event,
            so that the events after the stop are not delivered.
    """
    response, pace = request.answer, speed_factor(options)
    if options.serve_rest and response.ending == "cancelled" and response.status is not None:
        response = replace(response, ending="complete")
    if is_unread(response) and response.status is not None and not is_agent_loop:
        error = error_response(
            response.status,
            "the client did not read the body of this error response in the recording",
            request.path,
        )
        response = replace(response, chunks=error.chunks, ending="complete")
    if (
        options.chunks != "whole"
        or pace
        or request.starts_after
        or request.ends_after
        or request.ended_jobs
        or is_stopped
    ):
        response = replace(response, chunks=tuple(_chunks(request, options, pace)))
    is_retried = (response.status or 0) >= 400 and not is_agent_loop
    return ServedAnswer.of(response, retry_ms=_retry_ms(request, pace) if is_retried else None)


def is_unread(response: Answer) -> bool:
    """Return whether a response is an error whose body was not read, for example because the client retried."""
    return (response.status or 0) >= 400 and response.ending == "cancelled" and not response.chunks


def speed_factor(options: ReplayOptions) -> float:
    """Return the factor by which time passes faster than recorded; 0 if no time passes."""
    return 1.0 if options.pace == "recorded" else options.pace or 0.0


def _retry_ms(request: RecordedRequest, pace: float) -> float | None:
    """Return the delay before a retry in milliseconds; None if the response has none, or specifies a date."""
    if not pace:
        return IMMEDIATE_RETRY_MS
    wait_ms = dialect_of(request.path).retry_after_ms(request.answer.headers)
    return None if wait_ms is None else wait_ms / pace


def _chunks(request: RecordedRequest, options: ReplayOptions, pace: float) -> Iterator[Chunk]:
    """Yield the body in the requested chunks, each with the time at which its last byte arrived."""
    body, start = request.answer.body, 0
    arrived = list(itertools.accumulate(size for size, _ in request.chunks))
    for end in _chunk_ends(request, options, len(body)):
        if end > start:
            last = min(bisect.bisect_left(arrived, end), len(arrived) - 1)
            after_ms = request.chunks[last][1] / pace if pace and arrived else 0
            yield Chunk(body[start:end], int(after_ms * 1_000_000))
            start = end


def _chunk_ends(request: RecordedRequest, options: ReplayOptions, length: int) -> Iterable[int]:
    """Return the position in the body at which each chunk ends."""
    if options.chunks == "recorded":
        ends = itertools.accumulate(size for size, _ in request.chunks)
        return [*(end for end in ends if end < length), length]
    if isinstance(options.chunks, str):
        split = dialect_of(request.path).stream_chunks(request.answer.headers, request.answer.body)
        events = split if len(split) > 1 else ()
        return [*itertools.accumulate(map(len, events)), length]
    return [*range(options.chunks, length, options.chunks), length]
