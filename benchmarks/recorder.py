"""The cost of recording, for streamed calls and complete sessions of the SDK."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import httpx2
from anthropic import Anthropic

import agentobs
from agentobs.recording.session import start_recorder
from benchmarks.conversation import (
    Size,
    history,
    request_body,
    response_chunks,
    run,
    send,
    send_plain,
    steps,
    turn_of,
)
from benchmarks.measure import PARTS, Cost, Round, compare, cost_of, milliseconds, ratio
from benchmarks.provider import KEY, URL, Canned, ChunkStore, client
from benchmarks.report import Section, Verdict, ratio_rows

SIZE = Size(deltas=300, result_bytes=12_000)
"""About the size of a turn of a coding agent: 200 turns are 2.7 MB of new content."""
RESPONSES = 20
"""The number of different responses that the provider returns in turn."""
LATENCY_S = 0.05
"""The time until a response of a fast provider begins, in seconds; real providers are slower."""
ALONE, REPEATED = "the SDK alone", "floor, repeated"
STORED, RECORDED = "chunks are only stored", "recorded"
HEADER = ("", "wall", "CPU, caller's thread", "CPU, process")

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Bench:
    clients: dict[str, Anthropic]
    """The SDK clients, by the name of the variant."""
    http: dict[str, httpx2.Client]
    """The HTTP clients of the SDK clients."""
    providers: Sequence[Canned]
    """The transports that return the responses."""
    flush: Callable[[], object]
    """A function that waits until the recorder has written everything."""

    def settle(self, variant: str) -> Callable[[], object] | None:
        return self.flush if variant == RECORDED else None


def sections() -> Iterator[Section]:
    """Measure the cost of recording."""
    with _bench() as bench:
        yield _calls(bench, "messages.stream", send, 100, rounds=80)
        yield _calls(bench, "messages.create(stream=True)", send_plain, 100, rounds=80)
        yield _calls(bench, "messages.stream", send, 1000, rounds=25)
        yield _turns(bench, 60, sessions=5)
        yield _sessions(bench, 60, rounds=7)
        yield _first_chunks(bench, 100, rounds=100)


@contextmanager
def _bench() -> Iterator[_Bench]:
    responses = [response_chunks(turn, SIZE) for turn in range(1, RESPONSES + 1)]
    transports = {variant: Canned(responses) for variant in (ALONE, REPEATED, STORED, RECORDED)}
    http = {variant: httpx2.Client(transport=each) for variant, each in transports.items()}
    http[STORED] = httpx2.Client(transport=ChunkStore(transports[STORED]))
    with tempfile.TemporaryDirectory() as home:
        agentobs.record(http[RECORDED], home=home)
        recorder = start_recorder(home)
        assert recorder is not None, "the home cannot be used"
        try:
            clients = {variant: client(each) for variant, each in http.items()}
            yield _Bench(clients, http, list(transports.values()), partial(recorder.flush, 60.0))
        finally:
            agentobs.stop_recorder()
        assert recorder.statistics().dropped == 0, (
            "the recorder dropped exchanges, so the measurement is not complete"
        )


def _calls(
    bench: _Bench,
    name: str,
    send: Callable[[Anthropic, Messages], object],
    turns: int,
    rounds: int,
) -> Section:
    """Compare single calls that continue a conversation of `turns` turns."""

    def call(variant: str, messages: Messages) -> Cost:
        return cost_of(partial(send, bench.clients[variant], messages), bench.settle(variant))

    base = history(turns, SIZE)
    with agentobs.session("calls"):
        for variant in bench.clients:
            call(variant, base)
        variants = {variant: partial(call, variant) for variant in bench.clients}
        measured = compare(variants, _growing(base, rounds))
    verdicts = [_caller_verdict(f"a call at {turns:,} turns with `{name}`", measured)]
    if turns == 1000:
        verdicts.append(_process_verdict(f"a call at {turns:,} turns", measured, 1.02))
    return Section(
        f"One call with `{name}` after {turns:,} turns",
        f"{rounds} rounds. The SDK alone takes {milliseconds(measured, ALONE, 'process_ns'):.1f} ms of CPU. "
        f"Each response has {SIZE.deltas} deltas in separate chunks. Each round adds a turn with a tool result of "
        f"{SIZE.result_bytes // 1000} KB. The first request of the session, which the recorder has to parse "
        "completely, is not measured.",
        HEADER,
        ratio_rows(_ratios(measured)),
        tuple(verdicts),
    )


def _growing(base: Messages, turns: int) -> Iterator[Messages]:
    """Yield a conversation `turns` times; each time it has one more turn."""
    messages = base
    for turn in range(turns):
        messages = messages + turn_of(1_000_000 + turn, SIZE)
        yield messages


def _turns(bench: _Bench, turns: int, sessions: int) -> Section:
    """Compare the turns of sessions; each turn starts after the recorder has written the previous one."""
    measured = [each for _ in range(sessions) for each in _session_turns(bench, turns)]
    subject = f"a turn of a session of {turns} turns"
    return Section(
        f"The turns of a session of {turns} turns",
        f"{sessions} complete sessions; the variants alternate after each turn, so there are {len(measured)} rounds of "
        f"one turn. The SDK alone takes {milliseconds(measured, ALONE, 'process_ns'):.1f} ms of CPU per turn. The "
        "recorder's thread runs between the turns, as it does while a real provider generates a response.",
        HEADER,
        ratio_rows(_ratios(measured)),
        (_caller_verdict(subject, measured), _process_verdict(subject, measured, 1.03)),
    )


def _session_turns(bench: _Bench, turns: int) -> list[Round]:
    agents = {variant: steps(each, turns, SIZE) for variant, each in bench.clients.items()}

    def turn(variant: str, _: int) -> Cost:
        return cost_of(partial(next, agents[variant]), bench.settle(variant))

    with agentobs.session("turns"):
        return compare({variant: partial(turn, variant) for variant in agents}, range(turns))


def _sessions(bench: _Bench, turns: int, rounds: int) -> Section:
    """Compare complete sessions without pauses, from the first request until the last record is in the journal."""

    def session(variant: str, _: int) -> Cost:
        work = partial(run, bench.clients[variant], turns, SIZE)
        return cost_of(
            partial(_in_session, work) if variant == RECORDED else work, bench.settle(variant)
        )

    session(RECORDED, 0)
    measured = compare(
        {variant: partial(session, variant) for variant in bench.clients}, range(rounds)
    )
    return Section(
        f"A complete session of {turns} turns without pauses",
        f"{rounds} rounds, until the last record is in the journal. The provider responds immediately, which no real "
        "provider does, so the recorder's thread competes with the caller for the interpreter all the time. This is "
        "the worst case and a noisy measurement; it has no target.",
        HEADER,
        ratio_rows(_ratios(measured)),
    )


def _in_session(work: Callable[[], None]) -> None:
    with agentobs.session("session"):
        work()


def _first_chunks(bench: _Bench, turns: int, rounds: int) -> Section:
    """Compare the times until the client's transport returns the first chunk of a response."""

    def wait(variant: str, body: bytes) -> Cost:
        started = time.perf_counter_ns()
        with bench.http[variant].stream(
            "POST", URL, headers={"x-api-key": KEY}, content=body
        ) as response:
            chunks = response.iter_raw()
            next(chunks)
            received = time.perf_counter_ns()
            for _ in chunks:
                pass
        if settle := bench.settle(variant):
            settle()
        return Cost(received - started)

    def waits(latency_s: float) -> list[Round]:
        for each in bench.providers:
            each.latency_s = latency_s
        variants = {variant: partial(wait, variant) for variant in bench.http}
        return compare(variants, map(request_body, _growing(history(turns, SIZE), rounds)))

    with agentobs.session("first chunks"):
        usual, immediate = waits(LATENCY_S), waits(0.0)
    added = {
        variant: (_added_ms(usual, variant), _added_ms(immediate, variant))
        for variant in bench.http
    }
    return Section(
        "The first token",
        f"{rounds} rounds with {turns} turns of history. Wall time from passing the request to httpx2 until it "
        "returns the first chunk; the median over the rounds of the difference from httpx2 alone. The SDK is not "
        "included, because it takes about 10 ms to build a request. With a provider that responds immediately, "
        f"httpx2 alone takes {milliseconds(immediate, ALONE, 'wall_ns'):.2f} ms.",
        (
            "",
            f"added delay, provider latency {LATENCY_S * 1e3:.0f} ms",
            "added delay, no provider latency",
        ),
        tuple((variant, *(f"{ms:+.3f} ms" for ms in delays)) for variant, delays in added.items()),
        (
            Verdict(
                f"delay of the first token, provider latency {LATENCY_S * 1e3:.0f} ms",
                0.1,
                added[RECORDED][0],
                "{:.3f} ms",
                "Recording the request, its caller and the response headers takes 0.07 ms if code and data are in the "
                "CPU caches, and three times as long if other processes have used the caches meanwhile.",
            ),
            Verdict(
                "delay of the first token, no provider latency",
                0.1,
                added[RECORDED][1],
                "{:.3f} ms",
                "See above.",
            ),
        ),
    )


def _added_ms(rounds: list[Round], variant: str) -> float:
    return median(each[variant].wall_ns - each[ALONE].wall_ns for each in rounds) / 1e6


def _ratios(rounds: list[Round]) -> list[tuple[str, list[float]]]:
    return [
        (variant, [ratio(rounds, variant, ALONE, part) for part in PARTS]) for variant in rounds[0]
    ]


def _caller_verdict(subject: str, rounds: list[Round]) -> Verdict:
    measured = ratio(rounds, RECORDED, ALONE, "thread_ns")
    added = milliseconds(rounds, ALONE, "thread_ns") * (measured - 1)
    why = (
        f"Recording adds {added:.2f} ms: two appends per delta, the construction of the exchange once per call, and "
        "CPU cache misses, because the recorder's thread has used the caches."
    )
    return Verdict(f"recording {subject}, CPU of the caller's thread", 1.02, measured, why=why)


def _process_verdict(subject: str, rounds: list[Round], target: float) -> Verdict:
    measured = ratio(rounds, RECORDED, ALONE, "process_ns")
    recorder_ms = (
        median(each[RECORDED].process_ns - each[RECORDED].thread_ns for each in rounds) / 1e6
    )
    why = (
        f"The recorder's thread takes {recorder_ms:.1f} ms per call, while the caller waits for the provider. It "
        "compares the request with the previous one, searches the new part for secrets, derives the facts from the "
        "stream, and writes everything as JSON with a digest. In Python, each of these steps costs a few percent of "
        "the SDK's call."
    )
    return Verdict(f"recording {subject}, CPU of the process", target, measured, why=why)
